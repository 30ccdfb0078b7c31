"""The marks of a later copy in the log: logical messages, so that capture meets them in the order of commits.

Around each chunk stand a LOW and a HIGH mark; capture knows from them which changes the chunk's rows may have missed.
An END mark closes a copy of whole tables. Every mark names its pipeline: all pipelines of a database read the same log.
And it is signed, since any role may write there (`own_messages`).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import psycopg

from cdc.config import Config
from cdc.logical_messages import signed
from cdc.lsn import LSN
from cdc.snapshot.records import ChunkState, CopyState

PREFIX = signed.OWN_PREFIX + "copy"


def pipeline_of(config: Config) -> str:
    """Two pipelines of one database have either another prefix or another slot; neither may have a slash in it."""
    return f"{config.kafka.prefix}/{config.source.slot}"


class Low(msgspec.Struct, frozen=True, kw_only=True, tag="low"):
    """Committed before the chunk is read. `tables`: oids of the tables (roots) in it."""

    pipeline: str = ""  # marks of versions before this one name none: they are nobody's
    copy: str
    chunk: int
    attempt: int
    tables: list[str]
    settings: dict[str, str] = {}  # by table: digest of the job's settings (`table_settings`)
    reading: str = ""  # unlike that of any other run: Spark may run a task twice, also at the same time


class High(msgspec.Struct, frozen=True, kw_only=True, tag="high"):
    """Committed after the chunk's rows are on `__copy`, at offsets from `first` up to but not including `end`."""

    pipeline: str = ""
    chunk: ChunkState
    attempt: int
    snapshot: str  # pg_current_snapshot() of the transaction that read the rows
    first: int
    end: int
    writers: list[int] = []  # transactions that held a lock on the tables right before that
    settings: dict[str, str] = {}
    reading: str = ""  # that of its LOW mark


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """Every chunk has been published. `whole`: tables copied as a whole -> an LSN before their first chunk."""

    pipeline: str = ""
    copy: CopyState
    whole: dict[str, int] = {}
    settings: dict[str, str] = {}


Mark = Low | High | End

_decoder = msgspec.json.Decoder(Mark)


def decode_watermark(content: bytes) -> Mark | None:
    """None for what another version wrote. That it is of this pipeline was looked at before (`own_messages`)."""
    try:
        mark: Mark = _decoder.decode(content)
        return mark
    except msgspec.DecodeError:
        return None


def emit_watermark(connection: psycopg.Connection[Any], mark: Mark, secret: bytes) -> LSN:
    """In a transaction of its own. Gives an LSN at or before the mark's commit, and behind everything before it."""
    body = json.dumps(msgspec.to_builtins(mark)).encode("ascii")
    return signed.emit_signed(connection, secret, PREFIX, body)
