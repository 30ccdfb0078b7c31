"""The watermarks of an incremental snapshot: logical messages in the WAL, which capture receives in commit order.

A low watermark precedes each chunk and a high watermark follows it. From them capture determines which changes the
chunk's rows may lack. An end watermark closes a snapshot of whole tables. Every watermark names its pipeline, since all
pipelines of a database read the same WAL. Every watermark is signed, since any role may write a logical message
(`cdc.logical_messages.signed`).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import psycopg

from cdc.config import Config
from cdc.logical_messages import signed
from cdc.lsn import LSN
from cdc.snapshot.records import ChunkState, SnapshotState

PREFIX = signed.OWN_PREFIX + "copy"


def pipeline_of(config: Config) -> str:
    """Return the pipeline's name in watermarks: its prefix and slot, separated by a slash.

    Two pipelines of one database differ in prefix or slot, and neither may contain a slash.
    """
    return f"{config.kafka.prefix}/{config.source.slot}"


class LowWatermark(msgspec.Struct, frozen=True, kw_only=True, tag="low"):
    """The low watermark, committed before the chunk is read. `tables`: oids of the chunk's tables (roots)."""

    pipeline: str = ""  # empty in watermarks of older releases, which capture ignores
    copy: str
    chunk: int
    attempt: int
    tables: list[str]
    settings: dict[str, str] = {}  # by table oid: digest of the job's settings (`event_settings`)
    reading: str = ""  # random, unique to this run: Spark may run a task twice, also at the same time


class HighWatermark(msgspec.Struct, frozen=True, kw_only=True, tag="high"):
    """The high watermark, committed after the chunk's rows are on `__copy`.

    Their offsets are from `first` up to but not including `end`.
    """

    pipeline: str = ""
    chunk: ChunkState
    attempt: int
    snapshot: str  # pg_current_snapshot() of the transaction that read the rows
    first: int
    end: int
    writers: list[int] = []  # transactions that held a lock on the tables just before the read
    settings: dict[str, str] = {}
    reading: str = ""  # equals that of the low watermark


class EndWatermark(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The end watermark: every chunk has been published.

    `whole` maps each table that was copied completely to an LSN before its first chunk.
    """

    pipeline: str = ""
    copy: SnapshotState
    whole: dict[str, int] = {}
    settings: dict[str, str] = {}


Watermark = LowWatermark | HighWatermark | EndWatermark

_decoder = msgspec.json.Decoder(Watermark)


def decode_watermark(content: bytes) -> Watermark | None:
    """Return the watermark, or None if it has a format that this release cannot read.

    The caller has verified the signature, so the message belongs to this pipeline.
    """
    try:
        mark: Watermark = _decoder.decode(content)
        return mark
    except msgspec.DecodeError:
        return None


def emit_watermark(connection: psycopg.Connection[Any], mark: Watermark, secret: bytes) -> LSN:
    """Write the watermark to the WAL in its own transaction.

    Returns an LSN at or before the watermark's commit, and after everything that was written before the call.
    """
    body = json.dumps(msgspec.to_builtins(mark)).encode("ascii")
    return signed.emit_signed(connection, secret, PREFIX, body)
