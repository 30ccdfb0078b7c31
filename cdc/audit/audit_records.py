"""What an audit found, as it is printed, and as it is kept on `<prefix>.__audits` for whoever looks on.

One record per store and table: compaction keeps the last audit of each. No record holds a value of a row but its key.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec
import orjson

FORMAT = 1
#: The name under which the topic itself is audited.
TOPIC = "topic"

Verdict = Literal["equal", "equal except parked", "drift", "incomplete", "undecided"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`wrong`: "topic" where the topic is not what the source is (so the store cannot be), else "store".

    `kind`: missing, extra, ghost, content or version. `fields`: names of the columns that differ, where that is known.
    """

    id: str
    kind: str
    wrong: str
    fields: list[str] = []
    topic_version: str = ""
    store_version: str = ""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`store`: a store's name, or "topic". Equal as of `lsn`, or later.

    `looked_again`: rows that were not the same at first sight; most of them had just moved. `moving`: those that never
    stood still. `parked`: rows that are known to be missing (`cdc.publishing.parked`). `differing`: all that truly
    differ, the first of them in `differences`; `unchecked`: more than could be looked at again. `repaired`: of rows
    that differed before. `sampled`: rows of a continuous audit, not all of them.
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
        return msgspec.structs.replace(self, written_ms=time.time_ns() // 1_000_000)
