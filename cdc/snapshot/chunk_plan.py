"""Plans a snapshot's chunks: splits large tables and groups small ones, so that chunks are of about equal size.

Sizes are file sizes, not statistics, so a table that was never analysed is split equally well. A large relation becomes
many chunks, and many small relations share a chunk. The plan is made after the Postgres snapshot was taken. Every row
that the snapshot shows is therefore in a block that the file has at planning time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg

from cdc.config.snapshot import SnapshotConfig
from cdc.snapshot.records import BlockRange, ChunkState
from cdc.snapshot.table_description import DescribedTable, Leaf

_MEGABYTE = 1 << 20
_LEAST_CHUNK_BYTES = 16 * _MEGABYTE
# Several chunks per connection, so that no connection is idle for long while the last chunks run.
_CHUNKS_PER_CONNECTION = 4
# The driver and capture keep all chunks in memory.
_MOST_CHUNKS = 20_000
# The producer adds every partition that a Kafka transaction writes to with a request to the coordinator.
_MOST_PIECES = 100
# A chunk is one Kafka transaction. It must end well within the transaction timeout, however low rows_per_second is.
_SLOWEST_CHUNK_SECONDS = 240
_MOST_ROWS_PER_BLOCK = 291  # in a block of 8 kB: MaxHeapTuplesPerPage


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSize:
    """Present size of a relation's files. `storage`: its present relfilenode, 0 if the relation was dropped."""

    heap_bytes: int
    toast_bytes: int
    storage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits of one chunk, in bytes and in blocks. `block_bytes`: the server's block size."""

    chunk_bytes: int
    chunk_blocks: int
    block_bytes: int

    @classmethod
    def of(cls, settings: SnapshotConfig, total_bytes: int, block_bytes: int) -> Limits:
        even = total_bytes // (settings.connections * _CHUNKS_PER_CONNECTION)
        wanted = min(settings.chunk_mb * _MEGABYTE, max(even, _LEAST_CHUNK_BYTES))
        blocks = 1 << 32
        if settings.rows_per_second:
            rows = settings.rows_per_second / readers(settings) * _SLOWEST_CHUNK_SECONDS
            blocks = max(1, int(rows / (_MOST_ROWS_PER_BLOCK * block_bytes / 8192)))
        return cls(chunk_bytes=max(wanted, total_bytes // _MOST_CHUNKS), chunk_blocks=blocks, block_bytes=block_bytes)


def readers(settings: SnapshotConfig) -> int:
    """Return how many chunks run at once. Each must get a share of the rate with which it ends in time."""
    if not settings.rows_per_second:
        return settings.connections
    return max(1, min(settings.connections, settings.rows_per_second // 10))


def read_block_bytes(connection: psycopg.Connection[Any]) -> int:
    """Return the server's block size: 8 kB, unless the server was built with another one."""
    return int(connection.execute("select current_setting('block_size')").fetchall()[0][0])


_SIZES = """
select c.oid::int8, coalesce(pg_relation_size(c.oid), 0)::int8,
       coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0)::int8,
       coalesce(pg_relation_filenode(c.oid), 0)::int8
from pg_class c where c.oid = any(%s::oid[])
"""


def read_sizes(connection: psycopg.Connection[Any], tables: Iterable[DescribedTable]) -> dict[int, RelationSize]:
    """Return the sizes of the tables' relations by oid.

    The size functions report the present files and ignore the transaction's snapshot.
    """
    oids = [leaf.relation.oid for table in tables for leaf in table.leaves]
    return {
        oid: RelationSize(heap_bytes=heap, toast_bytes=toast, storage=storage)
        for oid, heap, toast, storage in connection.execute(_SIZES, [oids]).fetchall()
    }


@dataclass(frozen=True, slots=True)
class _Cut:
    bytes: int
    pieces: tuple[BlockRange, ...]


def plan_chunks(
    copy: str, tables: Collection[DescribedTable], sizes: Mapping[int, RelationSize], limits: Limits
) -> list[ChunkState]:
    """Return the chunks of a snapshot. Large relations come first, so that only small chunks run at the end."""
    large: list[tuple[int, list[_Cut]]] = []
    small: list[_Cut] = []
    for table in tables:
        for leaf in table.leaves:
            size = sizes.get(leaf.relation.oid, RelationSize(heap_bytes=0, toast_bytes=0, storage=0))
            if not size.heap_bytes and size.storage == leaf.storage:
                continue  # an empty file that was not rewritten: the snapshot shows no rows in it
            cuts = _cuts(table.oid, leaf, size, limits)
            if len(cuts) > 1:
                large.append((size.heap_bytes + size.toast_bytes, cuts))
            else:
                small += cuts
    ordered = [cut for _, cuts in sorted(large, key=lambda each: -each[0]) for cut in cuts]
    ordered += _packed(small, limits)
    return [
        ChunkState(copy=copy, number=number, pieces=list(cut.pieces), size_bytes=cut.bytes)
        for number, cut in enumerate(ordered)
    ]


def _cuts(table: str, leaf: Leaf, size: RelationSize, limits: Limits) -> list[_Cut]:
    blocks = -(-size.heap_bytes // limits.block_bytes)
    whole = size.heap_bytes + size.toast_bytes
    wanted = max(-(-whole // limits.chunk_bytes), -(-blocks // limits.chunk_blocks), 1)
    count = max(1, min(wanted, blocks))
    bounds = [blocks * number // count for number in range(count + 1)]
    oid, storage = leaf.relation.oid, leaf.storage
    return [
        _Cut(
            whole // count, (BlockRange(table=table, relation=oid, first_block=first, end_block=end, storage=storage),)
        )
        for first, end in pairwise(bounds)
    ]


def _packed(cuts: Collection[_Cut], limits: Limits) -> list[_Cut]:
    """Group small relations into chunks up to the limits, the largest relations first."""
    packed: list[_Cut] = []
    pieces: list[BlockRange] = []
    filled_bytes = filled_blocks = 0
    for cut in sorted(cuts, key=lambda each: -each.bytes):
        blocks = sum((piece.end_block or 0) - piece.first_block for piece in cut.pieces)
        is_full = (
            filled_bytes + cut.bytes > limits.chunk_bytes
            or filled_blocks + blocks > limits.chunk_blocks
            or len(pieces) >= _MOST_PIECES
        )
        if pieces and is_full:
            packed.append(_Cut(filled_bytes, tuple(pieces)))
            pieces, filled_bytes, filled_blocks = [], 0, 0
        pieces += cut.pieces
        filled_bytes += cut.bytes
        filled_blocks += blocks
    return [*packed, _Cut(filled_bytes, tuple(pieces))] if pieces else packed
