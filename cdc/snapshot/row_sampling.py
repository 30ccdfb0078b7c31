"""How a table's rows are best read and published, from a few of them. Whatever it says, the records are the same.

lz4 looks for what repeats. Text without repeats (digests, tokens, what is compressed or encrypted already) takes it as
long as any other and comes out as large as it went in; the broker would then take its time to unpack it again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from cdc.errors import ProtocolError
from cdc.snapshot.copy_rows import LineEncoder
from cdc.snapshot.records import ChunkState
from cdc.snapshot.source_reader import copy_out
from cdc.snapshot.table_description import DescribedTable

_SAMPLE_ROWS = 32
_SAMPLE_BYTES = 1 << 16
_WIDE_ROW_BYTES = 1024
# Of the gauge's own size. Where it says 0.85 lz4 says 0.95 and more; prose, code and documents are at 0.3 to 0.6.
_WORTH_IT = 0.8
# Below that, a chunk is over before any of this matters.
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """`compress`: lz4 makes the rows smaller. `as_tuples`: they are long, so the server had better not escape them."""

    compress: bool = True
    as_tuples: bool = False


USUAL = Manner()


def manners(
    connection: psycopg.Connection[Any], tables: Mapping[str, DescribedTable], chunks: Iterable[ChunkState]
) -> dict[str, Manner]:
    """Of the tables that fill a chunk of their own, those that are not treated as usual."""
    sampled: dict[str, Manner] = {}
    for chunk in chunks:
        if chunk.size_bytes < _LEAST_BYTES or len({piece.table for piece in chunk.pieces}) != 1:
            continue
        piece = chunk.pieces[0]
        if piece.table in tables and piece.table not in sampled:
            sampled[piece.table] = manner_of(
                _sample(connection, tables[piece.table], piece.relation, piece.first_block)
            )
    return {table: manner for table, manner in sampled.items() if manner != USUAL}


def manner_of(rows: list[bytes]) -> Manner:
    """zlib without its Huffman codes, which lz4 has not, finds the same repeats."""
    if not rows:
        return USUAL
    sample = b"".join(rows)
    gauge = zlib.compressobj(level=1, strategy=zlib.Z_FIXED)
    packed = len(gauge.compress(sample[:_SAMPLE_BYTES]) + gauge.flush())
    return Manner(
        compress=packed < _WORTH_IT * min(len(sample), _SAMPLE_BYTES),
        as_tuples=len(sample) > _WIDE_ROW_BYTES * len(rows),
    )


def _sample(connection: psycopg.Connection[Any], table: DescribedTable, relation: int, block: int) -> list[bytes]:
    """Nothing where they cannot be read now: whoever reads them in earnest finds out why."""
    leaf = next(leaf for leaf in table.leaves if leaf.relation.oid == relation)
    encoder = LineEncoder(table.table(leaf.relation), b"", b"")
    query = sql.SQL("copy (select {} from only {} where ctid >= {} limit {}) to stdout").format(
        sql.SQL(", ").join(map(sql.Identifier, encoder.columns)),
        sql.Identifier(leaf.relation.schema, leaf.relation.table),
        sql.Literal(f"({block},0)"),
        sql.Literal(_SAMPLE_ROWS),
    )
    try:
        with connection.transaction():  # a savepoint
            return [row for _, row in encoder.encode(_first(copy_out(connection, query)))]
    except (psycopg.Error, ProtocolError):
        return []


def _first(blocks: Iterable[list[bytes]]) -> list[bytes]:
    """As many as the gauge looks at, and one more: rows may be very long. All of them are read to the end."""
    kept: list[bytes] = []
    kept_bytes = 0
    for block in blocks:
        for line in block:
            if kept_bytes < _SAMPLE_BYTES:
                kept.append(line)
                kept_bytes += len(line)
    return kept
