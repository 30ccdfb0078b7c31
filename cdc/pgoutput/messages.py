"""The types of pgoutput messages, as `decoder` returns them.

Formats: PostgreSQL manual, "Logical Replication Message Formats", protocol version 1. The types are msgspec structs
because the decoder creates one per row: creating a struct is six times faster than creating a frozen dataclass.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from cdc.lsn import LSN


class Unchanged(Enum):
    """Stands for a TOASTed value that Postgres omitted because the update did not change it. (None stands for NULL.)"""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED

# A column value as pgoutput sends it: text, NULL, or omitted.
Value = bytes | Unchanged | None


class ReplicaIdentity(Enum):
    """`pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Begin(msgspec.Struct, frozen=True, gc=False):
    final_lsn: LSN  # the LSN of the commit record: it gives the transaction's place in the total order
    commit_time_us: int  # microseconds since 2000-01-01 UTC
    xid: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    commit_lsn: LSN
    end_lsn: LSN  # first byte after the commit record: capture may confirm the slot up to here
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
    old_is_whole: bool  # True with REPLICA IDENTITY FULL; otherwise `old` has the key columns, and NULL for the rest
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
    """A message of `pg_logical_emit_message`: a heartbeat, a snapshot watermark, or a message of the application."""

    transactional: bool
    lsn: LSN
    prefix: str
    content: bytes


class Origin(msgspec.Struct, frozen=True, gc=False):
    commit_lsn: LSN
    name: str


Message = Begin | Commit | Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage | Origin
