"""The result of an audit, as commands print it and as `<prefix>.__audits` stores it.

There is one record per store and table: compaction keeps the last audit of each. A record holds the keys of rows and
no other value of a row.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import orjson

from cdc.clock import now_ms

FORMAT = 1
#: The value of `AuditRecord.store` for an audit of the topic itself.
TOPIC = "topic"

Verdict = Literal["equal", "equal except parked", "drift", "incomplete", "undecided"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One row that differs.

    `wrong`: "topic" if the topic differs from the source (then the store cannot be right either), otherwise "store".
    `kind`: missing, extra, ghost, content or version. `fields`: names of the columns that differ, where known.
    """

    id: str
    kind: str
    wrong: str
    fields: list[str] = []
    topic_version: str = ""
    store_version: str = ""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one audit of one table in one store.

    `store`: the store's name, or "topic". The verdict holds as of `lsn` or a later LSN.

    `looked_again`: rows that differed in the first comparison and were rechecked. Most of them had changed between the
    reads. `moving`: rows that kept changing, so that no recheck could decide. `parked`: rows that are known to be
    missing (`cdc.publishing.parked`). `differing`: the number of rows that truly differ; `differences` lists the first
    of them. `unchecked`: rows that differed but exceeded the limit for rechecks. `repaired`: rows that differed and
    were repaired. `sampled`: the audit is the sampled one and did not read all rows.
    """

    format: int = FORMAT
    store: str
    table: str
    topic: str
    verdict: Verdict
    reason: str = ""
    lsn: str
    started_ms: int
    seconds: float = 0.0
    source_rows: int = 0
    store_rows: int = 0
    looked_again: int = 0
    moving: int = 0
    parked: int = 0
    evicted: int = 0
    differing: int = 0
    unchecked: int = 0
    repaired: int = 0
    sampled: bool = False
    differences: list[Difference] = []
    written_ms: int = 0

    @property
    def key(self) -> bytes:
        return orjson.dumps({"store": self.store, "table": self.table, "sampled": self.sampled})

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def stamped(self) -> AuditRecord:
        return msgspec.structs.replace(self, written_ms=now_ms())
