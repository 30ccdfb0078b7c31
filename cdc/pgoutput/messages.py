"""The pgoutput messages as facts: what `decoder` makes of the bytes, and nothing else.

Formats: PostgreSQL manual, "Logical Replication Message Formats", protocol version 1. They are msgspec structs, since
one is made for every row: six times cheaper than a frozen dataclass.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from cdc.lsn import LSN


class Unchanged(Enum):
    """A TOASTed value that Postgres left out because the update did not touch it. Never None: that is NULL."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED

# A column as pgoutput sends it: text, NULL, or left out.
Value = bytes | Unchanged | None


class ReplicaIdentity(Enum):
    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Begin(msgspec.Struct, frozen=True, gc=False):
    final_lsn: LSN  # the LSN of the commit record: where this transaction stands in the total order
    commit_time_us: int  # microseconds since 2000-01-01 UTC
    xid: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    commit_lsn: LSN
    end_lsn: LSN  # first byte after the commit record: what the slot may be confirmed up to
    commit_time_us: int


class RelationColumn(msgspec.Struct, frozen=True, gc=False):
    name: str
    type_oid: int
    type_modifier: int
    in_key: bool  # part of the replica identity (all columns under FULL)


class Relation(msgspec.Struct, frozen=True, gc=False):
    oid: int
    schema: str
    table: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


class Type(msgspec.Struct, frozen=True, gc=False):
    oid: int
    schema: str
    name: str


class Insert(msgspec.Struct, frozen=True, gc=False):
    relation_oid: int
    new: list[Value]


class Update(msgspec.Struct, frozen=True, gc=False):
    relation_oid: int
    old: list[Value] | None
    old_is_whole: bool  # REPLICA IDENTITY FULL; otherwise `old` has only the key columns, the rest NULL
    new: list[Value]


class Delete(msgspec.Struct, frozen=True, gc=False):
    relation_oid: int
    old: list[Value]
    old_is_whole: bool


class Truncate(msgspec.Struct, frozen=True, gc=False):
    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(msgspec.Struct, frozen=True, gc=False):
    """What `pg_logical_emit_message` wrote: heartbeats, copy marks, the user's own."""

    transactional: bool
    lsn: LSN
    prefix: str
    content: bytes


class Origin(msgspec.Struct, frozen=True, gc=False):
    commit_lsn: LSN
    name: str


Message = Begin | Commit | Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage | Origin
