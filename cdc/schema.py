"""Records on `<prefix>.__schema`: each table's columns, types and key by version, so that no job needs the source."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import orjson

from cdc.lsn import Version
from cdc.record import Record
from cdc.relations import Table

FORMAT = 1


def describe(table: Table) -> dict[str, Any]:
    return {
        "schema": table.shape.schema,
        "table": table.shape.table,
        "topic": table.topic,
        "key": list(table.shape.key),
        "columns": [
            {"name": name, "type": type_name, "type_modifier": modifier}
            for name, type_name, modifier in table.columns()
        ],
    }


def digest(table: Table) -> str:
    return sha256(orjson.dumps(describe(table))).hexdigest()[:16]


def record(table: Table, version: Version, schema_topic: str) -> Record:
    """Keyed by table *and* version: compaction keeps every state that a table ever had."""
    stamp = str(version)
    key = orjson.dumps({"topic": table.topic, "version": stamp})
    value = orjson.dumps({"format": FORMAT, "version": stamp, **describe(table)})
    return Record(schema_topic, key, value, [("v", stamp.encode())])
