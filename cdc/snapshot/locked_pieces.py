"""Locks the relations of a chunk before they are read. Both kinds of snapshot start a chunk with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from cdc.snapshot.copy_rows import LineEncoder
from cdc.snapshot.records import BlockRange, ChunkState
from cdc.snapshot.source_reader import GONE, Readable, lock
from cdc.snapshot.table_description import DescribedTable


@dataclass(frozen=True, slots=True)
class LockedPiece:
    """A block range whose relation is locked and readable, and the encoder for its rows."""

    piece: BlockRange
    readable: Readable
    encoder: LineEncoder


def lock_pieces(
    connection: psycopg.Connection[Any],
    chunk: ChunkState,
    tables: Mapping[str, DescribedTable],
    event: Callable[[DescribedTable], tuple[bytes, bytes]],
) -> tuple[list[LockedPiece], dict[str, str]]:
    """Lock the relations of a chunk and return the pieces that can be read.

    Also returns the tables (by oid) that must not be read, with the reasons. `event` returns the parts of a table's
    event before and after the row.
    """
    locked: list[LockedPiece] = []
    left_out: dict[str, str] = {}
    for piece in chunk.pieces:
        table = tables[piece.table]
        leaf = next((leaf for leaf in table.leaves if leaf.relation.oid == piece.relation), None)
        if leaf is None:  # a partition that was dropped after planning
            left_out[piece.table] = GONE
            continue
        if piece.storage:  # block numbers are valid only for the planned relfilenode
            leaf = replace(leaf, storage=piece.storage)
        encoder = LineEncoder(table.table(leaf.relation), *event(table))
        found = lock(connection, table, leaf, encoder.columns, holds_others=bool(locked))
        if isinstance(found, Readable):
            locked.append(LockedPiece(piece, found, encoder))
        else:
            left_out[piece.table] = found
    return [each for each in locked if each.piece.table not in left_out], left_out
