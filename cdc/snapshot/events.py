"""Events of snapshot rows. Everything except the row is the same for a whole table, so it is rendered once.

`cdc.encoding.envelope` renders the same fields for the changes in the stream: change both together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import orjson

from cdc import __version__
from cdc.encoding.table_encoder import Shape
from cdc.kafka.record import Record
from cdc.lsn import Version
from cdc.snapshot.records import SnapshotState


def snapshot_event(
    shape: Shape,
    *,
    pipeline: str,
    database: str,
    lsn: int,
    version: Version,
    taken_ms: int,
    op: str = "r",
    parked: bool = False,
) -> tuple[bytes, bytes]:
    """Return the parts of an event before and after the row's JSON.

    The event is Debezium's `r`: it has no transaction, and `snapshot` is "true". `parked` marks the delete that
    replaces a row that is too large to be published.
    """
    now_ns = time.time_ns()
    source = orjson.dumps(
        {
            "version": __version__,
            "connector": "postgresql",
            "name": pipeline,
            "ts_ms": taken_ms,
            "snapshot": "true",
            "db": database,
            "sequence": f'[null,"{lsn}"]',
            "ts_us": taken_ms * 1000,
            "ts_ns": taken_ms * 1_000_000,
            "schema": shape.schema,
            "table": shape.table,
            "txId": None,
            "lsn": lsn,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
            "commit_lsn": lsn,
            "position": version.position,
            "seq": version.seq,
            **({"parked": True} if parked else {}),
        }
    )
    head = b'{"before":null,"after":'
    tail = b',"source":%b,"transaction":null,"op":"%b","ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % (
        source,
        op.encode(),
        now_ns // 1_000_000,
        now_ns // 1000,
        now_ns,
    )
    return head, tail


def full_snapshot_markers(
    shape: Shape, copy: SnapshotState, *, pipeline: str, database: str, partitions: int
) -> Iterator[Record]:
    """Yields the markers that start a snapshot of a whole table, one per partition.

    A row with a smaller version than the marker does not exist in the snapshot, and stores drop it.
    """
    version = Version(copy.base + copy.point, 0)
    head, tail = snapshot_event(
        shape, pipeline=pipeline, database=database, lsn=copy.point, version=version, taken_ms=copy.started_ms, op="t"
    )
    for partition in range(partitions):
        # The key differs from that of a TRUNCATE's marker. With the same key, compaction would let this marker replace
        # a TRUNCATE's marker that has a newer version.
        key = b'{"__truncate":%d,"by":"copy"}' % partition
        yield Record(shape.topic, key, head + b"null" + tail, [("v", str(version).encode())], partition)
