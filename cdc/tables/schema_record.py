"""Records on `<prefix>.__schema` with a table's columns, types and key by version. Jobs read them, not the source."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import orjson

from cdc.encoding.table_encoder import TableEncoder
from cdc.kafka.record import Record
from cdc.lsn import Version

FORMAT = 1


def describe(table: TableEncoder) -> dict[str, Any]:
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


def schema_digest(table: TableEncoder) -> str:
    return sha256(orjson.dumps(describe(table))).hexdigest()[:16]


def record(table: TableEncoder, version: Version, schema_topic: str) -> Record:
    """Return the schema record. Its key is table *and* version, so compaction keeps all versions of the schema."""
    stamp = str(version)
    key = orjson.dumps({"topic": table.topic, "version": stamp})
    value = orjson.dumps({"format": FORMAT, "version": stamp, **describe(table)})
    return Record(schema_topic, key, value, [("v", stamp.encode())])
