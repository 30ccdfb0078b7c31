"""The plan of a snapshot covers every block once, in chunks of about one size, and no empty table."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.config import SnapshotConfig
from cdc.snapshot.chunk_plan import Limits, RelationSize, plan_chunks, readers
from cdc.snapshot.records import ChunkState
from cdc.snapshot.table_description import DescribedTable, Leaf
from tests.harness.pipeline.event_rules import make_table

BLOCK = 8192
MEGABYTE = 1 << 20


def described(oid: int, *leaves: int) -> DescribedTable:
    table = make_table(oid, f"t{oid}")
    relations = [make_table(leaf, f"t{leaf}").relation for leaf in leaves or (oid,)]
    return DescribedTable(
        oid=str(oid),
        shape=table.shape,
        relation=relations[0],
        leaves=tuple(Leaf(relation=relation, storage=relation.oid, row_filter=None) for relation in relations),
        types={},
    )


def size(oid: int, blocks: int, toast_bytes: int = 0, *, storage: int | None = None) -> RelationSize:
    return RelationSize(heap_bytes=blocks * BLOCK, toast_bytes=toast_bytes, storage=oid if storage is None else storage)


def limits(chunk_bytes: int = MEGABYTE, chunk_blocks: int = 1 << 32) -> Limits:
    return Limits(chunk_bytes=chunk_bytes, chunk_blocks=chunk_blocks, block_bytes=8192)


def blocks_read(chunks: Sequence[ChunkState], relation: int) -> list[int]:
    return [
        block
        for chunk in chunks
        for piece in chunk.pieces
        if piece.relation == relation
        for block in range(piece.first_block, piece.end_block or 0)
    ]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 5 * MEGABYTE)), max_size=12),
    st.integers(BLOCK, 4 * MEGABYTE),
    st.integers(1, 500),
)
def test_every_block_is_read_once(tables: list[tuple[int, int]], chunk_bytes: int, chunk_blocks: int) -> None:
    """Every block is in exactly one chunk for any sizes and limits, and no chunk is much larger than the limit."""
    sizes = {oid: size(oid, blocks, toast) for oid, (blocks, toast) in enumerate(tables, start=1)}
    chunks = plan_chunks("c", [described(oid) for oid in sizes], sizes, limits(chunk_bytes, chunk_blocks))
    for oid, (blocks, _) in enumerate(tables, start=1):
        assert sorted(blocks_read(chunks, oid)) == list(range(blocks))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        blocks = sum((piece.end_block or 0) - piece.first_block for piece in chunk.pieces)
        assert blocks <= max(chunk_blocks, 1)
        assert chunk.pieces
        assert blocks == 1 or chunk.size_bytes <= chunk_bytes


def test_one_huge_table_with_many_small_ones() -> None:
    """The huge table is cut and comes first, and the small ones share chunks."""
    tables = [described(oid) for oid in range(1, 52)]
    sizes = {oid: size(oid, 2) for oid in range(1, 51)} | {51: size(51, 1280)}
    chunks = plan_chunks("c", tables, sizes, limits())
    assert [len(chunk.pieces) for chunk in chunks] == [1] * 10 + [50]
    assert {chunk.pieces[0].relation for chunk in chunks[:10]} == {51}


def test_toast_counts() -> None:
    """A table with few blocks and large TOASTed values is cut by the sum of its bytes."""
    chunks = plan_chunks("c", [described(1)], {1: size(1, 100, 10 * MEGABYTE)}, limits())
    assert len(chunks) == 11
    assert sum(chunk.size_bytes for chunk in chunks) <= 100 * BLOCK + 10 * MEGABYTE


def test_a_partitioned_table_is_read_by_its_partitions() -> None:
    """Partitions are read as pieces of their table, and empty ones are left out."""
    sizes = {2: size(2, 1), 3: size(3, 0), 4: size(4, 2)}
    (chunk,) = plan_chunks("c", [described(1, 2, 3, 4)], sizes, limits())
    assert [(piece.table, piece.relation) for piece in chunk.pieces] == [("1", 4), ("1", 2)]


def test_a_table_truncated_since_the_snapshot_is_in_the_plan() -> None:
    """A table with a new, empty file is in the plan, since the snapshot has rows of it that cannot be read."""
    sizes = {1: size(1, 0), 2: size(2, 0, storage=99)}  # and 3 is gone altogether
    (chunk,) = plan_chunks("c", [described(1), described(2), described(3)], sizes, limits())
    assert [piece.relation for piece in chunk.pieces] == [2, 3]


def test_nothing_to_copy_is_an_empty_plan() -> None:
    """A table without blocks gives an empty plan."""
    assert plan_chunks("c", [described(1)], {1: size(1, 0)}, limits()) == []


def test_chunks_suit_the_size_of_the_whole() -> None:
    """Chunks give work to all connections, are at most `chunk_mb` large, and never number millions."""
    wanted = SnapshotConfig(connections=4, chunk_mb=64)
    assert Limits.of(wanted, 400 * MEGABYTE, 8192).chunk_bytes == 400 * MEGABYTE // 16
    assert Limits.of(wanted, 2000 * MEGABYTE, 8192).chunk_bytes == 64 * MEGABYTE
    assert Limits.of(wanted, 0, 8192).chunk_bytes == 16 * MEGABYTE
    assert Limits.of(wanted, 100 * 2**40, 8192).chunk_bytes == 100 * 2**40 // 20_000


def test_a_slow_rate_makes_small_chunks() -> None:
    """At a slow rate chunks are small, so that their Kafka transactions end before the timeout."""
    wanted = SnapshotConfig(connections=4, rows_per_second=1000)
    slow = Limits.of(wanted, 10_000 * MEGABYTE, 8192)
    assert slow.chunk_blocks * 291 / (1000 / readers(wanted)) <= 240
    slowest = SnapshotConfig(connections=4, rows_per_second=1)
    assert readers(slowest) == 1
    assert Limits.of(slowest, MEGABYTE, 8192).chunk_blocks == 1
    assert readers(SnapshotConfig(connections=7)) == 7
