"""Samples a few rows of a table to choose the fastest way to read and publish them. All ways give the same records.

lz4 replaces repeated byte sequences. Text without repeats (digests, tokens, compressed or encrypted data) takes lz4 as
long as other text and does not become smaller. The broker would then spend time to decompress it.
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
# Compressed size by uncompressed size of the sample, as zlib measures it. Where zlib reaches 0.85, lz4 reaches 0.95 and
# more. Prose, code and documents are at 0.3 to 0.6.
_WORTH_IT = 0.8
# A smaller chunk ends too soon for the choice to matter.
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read and publish a table's rows.

    `compress`: lz4 makes the rows smaller. `as_tuples`: the rows are long, so COPY's binary format, in which the server
    does not escape values, is faster.
    """

    compress: bool = True
    as_tuples: bool = False


DEFAULT_READ_OPTIONS = ReadOptions()


def choose_read_options(
    connection: psycopg.Connection[Any], tables: Mapping[str, DescribedTable], chunks: Iterable[ChunkState]
) -> dict[str, ReadOptions]:
    """Return the read options that differ from the default, by table oid. Samples only tables that fill a chunk."""
    sampled: dict[str, ReadOptions] = {}
    for chunk in chunks:
        if chunk.size_bytes < _LEAST_BYTES or len({piece.table for piece in chunk.pieces}) != 1:
            continue
        piece = chunk.pieces[0]
        if piece.table in tables and piece.table not in sampled:
            sampled[piece.table] = read_options_for(
                _sample(connection, tables[piece.table], piece.relation, piece.first_block)
            )
    return {table: read_options for table, read_options in sampled.items() if read_options != DEFAULT_READ_OPTIONS}


def read_options_for(rows: list[bytes]) -> ReadOptions:
    """Return the manner for rows like these.

    zlib with fixed Huffman codes finds about the same repeats as lz4, which has no Huffman codes.
    """
    if not rows:
        return DEFAULT_READ_OPTIONS
    sample = b"".join(rows)
    gauge = zlib.compressobj(level=1, strategy=zlib.Z_FIXED)
    packed = len(gauge.compress(sample[:_SAMPLE_BYTES]) + gauge.flush())
    return ReadOptions(
        compress=packed < _WORTH_IT * min(len(sample), _SAMPLE_BYTES),
        as_tuples=len(sample) > _WIDE_ROW_BYTES * len(rows),
    )


def _sample(connection: psycopg.Connection[Any], table: DescribedTable, relation: int, block: int) -> list[bytes]:
    """Return some rows, or none if the relation cannot be read. The chunk's own read then reports the reason."""
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
    """Return the first lines, up to `_SAMPLE_BYTES` and at most one line more, since a row may be very long.

    Reads all blocks to the end, so that the COPY completes.
    """
    kept: list[bytes] = []
    kept_bytes = 0
    for block in blocks:
        for line in block:
            if kept_bytes < _SAMPLE_BYTES:
                kept.append(line)
                kept_bytes += len(line)
    return kept
