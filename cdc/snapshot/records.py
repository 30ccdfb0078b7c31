"""Records of snapshots on `<prefix>.__copies`: the snapshot, its chunks and its progress.

There is one record per snapshot and one per chunk. Each has its own key, so compaction keeps the last state of each.
A chunk's final record is in the same Kafka transaction as its rows: both are committed, or neither.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import orjson

FORMAT = 1

# open: the Postgres snapshot exists, the chunks are not planned yet. complete and abandoned are final.
State = Literal["open", "planned", "complete", "abandoned"]


class SnapshotState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one snapshot of some tables.

    `point` is the LSN whose state the rows show. `base` plus `point` is the position in the rows' version.
    """

    format: int = FORMAT
    id: str
    kind: Literal["first", "later"]
    state: State
    tables: list[str]  # oids of the tables (roots, not partitions)
    snapshot: str  # name of the exported Postgres snapshot; valid until the exporting session ends
    point: int
    base: int = 0
    chunks: int = 0
    size_bytes: int = 0  # of the tables, at planning time
    started_ms: int = 0
    ended_ms: int = 0
    reason: str = ""
    where: str = ""  # incremental snapshot only: SQL condition that selects the rows
    settings: dict[str, str] = {}  # by table: digest of the settings for its events; empty in older records

    @property
    def is_planned(self) -> bool:
        """Whether all chunks of the snapshot are on the topic. False if it was abandoned before planning."""
        return self.state == "planned" or self.chunks > 0

    @property
    def key(self) -> bytes:
        return orjson.dumps({"copy": self.id})

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class BlockRange(msgspec.Struct, frozen=True, kw_only=True):
    """A block range of one relation that holds rows: a table or a partition."""

    table: str  # oid of the table (the root)
    relation: int  # oid of the relation to read
    first_block: int
    end_block: int | None  # exclusive; None: to the end of the file at the time of the read
    storage: int = 0  # relfilenode of the blocks; 0 in older records


class ChunkState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one snapshot chunk.

    `left_out` maps the oid of each table that could not be read to the reason. Those tables are due for an incremental
    snapshot.
    """

    format: int = FORMAT
    copy: str
    number: int
    pieces: list[BlockRange]
    size_bytes: int
    done: bool = False
    rows: int = 0
    left_out: dict[str, str] = {}
    attempt: int = 0  # incremental snapshot only: the attempt that this record describes
    repeat: str = ""  # why the rows of that attempt are invalid and the chunk must be read again
    end_offsets: dict[str, list[int]] = {}  # initial snapshot only: topic ends after its rows; empty in older records
    refused: bool = False  # another attempt by the same job would be invalid too

    @property
    def key(self) -> bytes:
        return orjson.dumps({"copy": self.copy, "chunk": self.number})

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def finished(self, rows: int, left_out: dict[str, str]) -> ChunkState:
        return msgspec.structs.replace(self, done=True, rows=rows, left_out=left_out)


class SnapshotProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress figures of a snapshot, for display only. No decision depends on them."""

    format: int = FORMAT
    copy: str
    rows: int
    size_bytes: int
    total_bytes: int
    percent: float = 0.0  # of the bytes
    chunks: int
    total_chunks: int
    rows_per_second: float
    seconds_left: float | None
    wal_held_bytes: int | None
    written_ms: int
    paused: bool = False  # by an operator's request; the snapshot resumes on request

    @property
    def key(self) -> bytes:
        return orjson.dumps({"copy": self.copy, "progress": True})

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def chunk_transactional_id(prefix: str, slot: str, copy: str, number: int) -> str:
    """Return the `transactional.id` of a chunk's producer. A later producer with this id fences the earlier one."""
    return f"{prefix}.{slot}.copy.{copy}.{number}"


def driver_transactional_id(prefix: str, slot: str) -> str:
    return f"{prefix}.{slot}.copy"
