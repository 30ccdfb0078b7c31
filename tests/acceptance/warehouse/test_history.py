"""The warehouse's history, replayed into another store, across a gap, and in a shape."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from cdc.stores.contract import Position, caught_up_at
from sinks.iceberg.state import WarehouseState
from sinks.iceberg.store import IcebergStore
from spark_jobs.bootstrap.history_replay import run_replay
from spark_jobs.session.spark_session import warehouse_session
from spark_jobs.warehouse.query import parse_as_of, query_warehouse
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONG_AGO_MS = 20 * 60_000


@pytest.mark.slow
def test_a_gap_is_marked_and_the_past_fills_another_store(
    make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path, elasticsearch_url: str
) -> None:
    """A warehouse that was away too long is bootstrapped: its history goes on from the rebuilt state, with the gap
    written down. A past state goes into a search index, which no sync then feeds. Rows that the store's `where` leaves
    out, masked values and columns that are kept as text are as the config says."""
    stores = StorePipeline(
        make_pipeline(mask={'"public.t.secret"': "fixed:masked"}),
        spark,
        {
            "warehouse": {
                "kind": "iceberg",
                "path": str(tmp_path / "warehouse"),
                "trigger_milliseconds": 200,
                "string_columns": ["public.t.until"],
                "shape": {"public.t": {"where": "n >= 0"}},
            },
            "search": {"kind": "elasticsearch", "url": elasticsearch_url},
        },
    )
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, until date, secret text)")
    stores.pipeline.start()
    with stores.syncing("warehouse"):
        database.execute("INSERT INTO t SELECT i, i, 'infinity', 'hidden' FROM generate_series(1, 20) i")
        first = stores.wait("warehouse")
        database.execute(
            "UPDATE t SET n = -1 WHERE id = 1; DELETE FROM t WHERE id = 2; UPDATE t SET n = 100 WHERE id = 3"
        )
        stores.wait("warehouse")
    with stores.opened("warehouse") as (store, _):
        assert isinstance(store, IcebergStore)
        store.change(_away)
        session = warehouse_session(spark, store.settings)
        database.execute("UPDATE t SET n = 200 WHERE id = 3; DELETE FROM t WHERE id = 4; INSERT INTO t VALUES (30, 1)")
        stores.pipeline.fence()
        assert stores.bootstrap("warehouse").verdict.complete
        [gap] = store.state().gaps
        assert gap.to_position > gap.from_position > int(first)
        now = query_warehouse(session, store, "SELECT id, n, until FROM public.t ORDER BY id").frame.collect()
        wanted = [(3, 200), *((i, i) for i in range(5, 21)), (30, 1)]
        assert [(row.id, row.n) for row in now] == wanted
        assert {row.until for row in now} == {"infinity", None}
        ended = "SELECT count(*) FROM public__history.t WHERE _tailrace_open AND _tailrace_op <> 'd'"
        assert query_warehouse(session, store, ended).frame.collect()[0][0] == len(wanted)
        then = query_warehouse(session, store, "SELECT id, n, secret FROM public.t", parse_as_of(str(first)))
        rows = then.frame.collect()
        assert sorted((row.id, row.n) for row in rows) == [(i, i) for i in range(1, 21)]
        assert {row.secret for row in rows} == {"masked"}
        assert len(then.warnings) == 1
        done = run_replay(stores.config, "search", "warehouse", parse_as_of(str(first)), session, lambda _: None)
        assert (done.rows, done.rejected) == (20, 0)
    with stores.opened("search") as (search, generation):
        table = stores.tables()[stores.pipeline.topic("public.t")]
        assert search.count(generation, table) == 20
    with stores.syncing("search") as syncs:
        syncs["search"].thread.join(60)
        assert syncs["search"].refused is not None


def _away(state: WarehouseState) -> WarehouseState:
    """Make the store look as if it had not been synced for longer than delete retention."""
    number = state.serving or 0
    known = state.generations[number]
    position: Position = caught_up_at(known.position, known.position.caught_up_broker_ms - _LONG_AGO_MS)
    changed = msgspec.structs.replace(known, position=position)
    return msgspec.structs.replace(state, generations={**state.generations, number: changed})
