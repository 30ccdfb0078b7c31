"""What is written down about a copy, on `<prefix>.__copies`: the copy itself, its chunks, how far it has come.

One record per copy and one per chunk, each under its own key, so that compaction keeps just the last state of each. A
chunk's final record is written in the same Kafka transaction as its rows: both are there, or neither.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import orjson

FORMAT = 1

# open: the snapshot is there, nobody has planned yet. complete and abandoned are final.
State = Literal["open", "planned", "complete", "abandoned"]


class CopyState(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of some tables. `point`: the LSN that its rows stand for; `base` is added to it for their version."""

    format: int = FORMAT
    id: str
    kind: Literal["first", "later"]
    state: State
    tables: list[str]  # oids of the tables (roots, not partitions)
    snapshot: str  # its exported name; valid as long as the session that exported it lives
    point: int
    base: int = 0
    chunks: int = 0
    size_bytes: int = 0  # of the tables, when it was planned
    started_ms: int = 0
    ended_ms: int = 0
    reason: str = ""
    where: str = ""  # of a later copy: SQL that narrows it
    settings: dict[str, str] = {}  # by table: digest of the settings that its rows are published under; older: none

    @property
    def is_planned(self) -> bool:
        """Whether its chunks are all on the log: not so of one that was given up before anybody had planned it."""
        return self.state == "planned" or self.chunks > 0

    @property
    def key(self) -> bytes:
        return orjson.dumps({"copy": self.id})

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one relation that holds rows: a table, or a partition."""

    table: str  # oid of the table (the root)
    relation: int  # oid of what is read
    first_block: int
    end_block: int | None  # None: to the end, whatever that is by then
    storage: int = 0  # the relfilenode whose blocks these are; older records have none


class ChunkState(msgspec.Struct, frozen=True, kw_only=True):
    """`left_out`: tables (by oid) of which nothing could be read, and why; they are due for a later copy."""

    format: int = FORMAT
    copy: str
    number: int
    pieces: list[Piece]
    size_bytes: int
    done: bool = False
    rows: int = 0
    left_out: dict[str, str] = {}
    attempt: int = 0  # of a later copy: which reading of the chunk this record is about
    repeat: str = ""  # why that reading does not hold, and another one is due
    end_offsets: dict[str, list[int]] = {}  # of a first copy: where its topics ended behind its rows; older: none
    refused: bool = False  # another reading by the same job would not hold either

    @property
    def key(self) -> bytes:
        return orjson.dumps({"copy": self.copy, "chunk": self.number})

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def finished(self, rows: int, left_out: dict[str, str]) -> ChunkState:
        return msgspec.structs.replace(self, done=True, rows=rows, left_out=left_out)


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """For whoever looks on; nothing is decided by it."""

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
    paused: bool = False  # somebody has asked for that; it goes on when somebody asks for that

    @property
    def key(self) -> bytes:
        return orjson.dumps({"copy": self.copy, "progress": True})

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def chunk_transactional_id(prefix: str, slot: str, copy: str, number: int) -> str:
    """One producer at a time may write a chunk: whoever comes later under this id cuts the earlier one off."""
    return f"{prefix}.{slot}.copy.{copy}.{number}"


def driver_transactional_id(prefix: str, slot: str) -> str:
    return f"{prefix}.{slot}.copy"
