"""The pieces of a chunk, locked, as far as they can be read: what a chunk of either kind of copy begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from cdc.snapshot.copy_rows import LineEncoder
from cdc.snapshot.records import ChunkState, Piece
from cdc.snapshot.source_reader import GONE, Readable, lock
from cdc.snapshot.table_description import DescribedTable


@dataclass(frozen=True, slots=True)
class LockedPiece:
    piece: Piece
    readable: Readable
    encoder: LineEncoder


def lock_pieces(
    connection: psycopg.Connection[Any],
    chunk: ChunkState,
    tables: Mapping[str, DescribedTable],
    event: Callable[[DescribedTable], tuple[bytes, bytes]],
) -> tuple[list[LockedPiece], dict[str, str]]:
    """And the tables (by oid) of which nothing may be read, and why. `event`: what stands around a row of a table."""
    locked: list[LockedPiece] = []
    left_out: dict[str, str] = {}
    for piece in chunk.pieces:
        table = tables[piece.table]
        leaf = next((leaf for leaf in table.leaves if leaf.relation.oid == piece.relation), None)
        if leaf is None:  # a partition that is gone since it was planned
            left_out[piece.table] = GONE
            continue
        if piece.storage:  # a block is of the storage that was planned: in any other, rows lie in other blocks
            leaf = replace(leaf, storage=piece.storage)
        encoder = LineEncoder(table.table(leaf.relation), *event(table))
        found = lock(connection, table, leaf, encoder.columns, holds_others=bool(locked))
        if isinstance(found, Readable):
            locked.append(LockedPiece(piece, found, encoder))
        else:
            left_out[piece.table] = found
    return [each for each in locked if each.piece.table not in left_out], left_out
