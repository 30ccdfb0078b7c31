"""A store that may have missed deletes requires a bootstrap, whatever our own clocks say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from cdc.kafka.broker_clock import BrokerClock
from cdc.lsn import Version
from tests.harness.kafka.topics import alter_topic
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.waiting import eventually
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MONTH_SECONDS = 30 * 86_400
_SHORT_MS = 3000

MakeCache = Callable[..., StorePipeline]


@pytest.fixture
def make_cache(make_pipeline: MakePipeline, spark: SparkSession, redis_url: str) -> MakeCache:
    """A pipeline whose capture streams, with one row in its table; `retention_hours`: how long deletes are kept."""

    def make(retention_hours: float = 168, **settings: int) -> StorePipeline:
        pipeline = make_pipeline(kafka={"delete_retention_hours": retention_hours})
        pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        stores = StorePipeline(pipeline, spark, {"cache": {"kind": "redis", "url": redis_url, **settings}})
        pipeline.start()
        pipeline.database.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
        pipeline.fence()
        return stores

    return make


@contextmanager
def _clock_ahead(monkeypatch: pytest.MonkeyPatch, seconds: int) -> Iterator[None]:
    """Move the clock of this process, and of the sync in it, forward."""
    right, right_ns = time.time, time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: right() + seconds)
        patch.setattr(time, "time_ns", lambda: right_ns() + seconds * 1_000_000_000)
        yield


def _wait_past_retention(stores: StorePipeline) -> None:
    """Wait until deletes written now may be removed, by the broker's clock."""
    clock = BrokerClock(stores.config)
    try:
        until_ms = clock.now_ms() + _SHORT_MS
        eventually(lambda: clock.now_ms() > until_ms, 60, "the retention of deletes to be over")
    finally:
        clock.close()


def test_a_wrong_clock_does_not_hide_that_a_store_was_away(
    make_cache: MakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store synced by a host a month ahead, and then not for longer than delete retention, is refused."""
    stores = make_cache()
    with _clock_ahead(monkeypatch, _MONTH_SECONDS), stores.syncing():
        stores.assert_same("t")
        stores.wait()
    stores.pipeline.database.execute("DELETE FROM t WHERE id = 1")
    stores.pipeline.fence()
    _keep_deletes_for(stores, _SHORT_MS)
    _wait_past_retention(stores)
    with stores.syncing() as syncs:
        eventually(lambda: syncs["cache"].refused, 60, "the sync to refuse")
        assert "needs a bootstrap" in str(syncs["cache"].refused)
    _keep_deletes_for(stores, 3_600_000)
    assert stores.bootstrap("cache").verdict.complete
    with stores.syncing():
        stores.assert_same("t")


def test_a_store_that_was_not_away_goes_on_under_a_wrong_clock(
    make_cache: MakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is a month ahead requires no bootstrap of a current store or of a build that it times."""
    stores = make_cache()
    with stores.syncing():
        stores.assert_same("t")
    stores.pipeline.database.execute("DELETE FROM t WHERE id = 1")
    stores.pipeline.fence()
    with _clock_ahead(monkeypatch, _MONTH_SECONDS), stores.syncing() as syncs:
        stores.assert_same("t")
        assert syncs["cache"].refused is None


def test_silence_of_the_stream_is_not_the_end_of_the_topic(make_cache: MakeCache) -> None:
    """A store does not count as caught up when no batch comes but the topic has an unread record."""
    stores = make_cache(0.02, trigger_milliseconds=3_600_000)
    clock = BrokerClock(stores.config)
    with stores.syncing():
        stores.assert_same("t")
        before_ms = clock.now_ms()
        eventually(lambda: _caught_up_ms(stores) > before_ms, 60, "an idle store to be proven caught up")
        stores.pipeline.database.execute("DELETE FROM t WHERE id = 1")
        stores.pipeline.fence()
        unread_ms = clock.now_ms()
        eventually(lambda: clock.now_ms() > unread_ms + 9_000, 60, "two more questions to the broker")
        assert _caught_up_ms(stores) < unread_ms
    clock.close()


def test_a_position_of_release_0_1_0_is_judged_by_the_broker(make_cache: MakeCache) -> None:
    """The time in a position of release 0.1.0 is not trusted; the heartbeat that the position covers decides."""
    stores = make_cache()
    with stores.syncing():
        stores.assert_same("t")
    _as_of_0_1_0(stores, lsn=None)
    stores.pipeline.database.execute("DELETE FROM t WHERE id = 1")
    stores.pipeline.fence()
    with stores.syncing():
        stores.assert_same("t")
    _as_of_0_1_0(stores, lsn=1)
    stores.pipeline.database.execute("DELETE FROM t WHERE id = 2")
    stores.pipeline.fence()
    with stores.syncing() as syncs:
        eventually(lambda: syncs["cache"].refused, 60, "the sync to refuse")
        assert "Nothing proves when it was last caught up" in str(syncs["cache"].refused)


def _keep_deletes_for(stores: StorePipeline, milliseconds: int) -> None:
    settings = {"delete.retention.ms": str(milliseconds)}
    alter_topic(stores.pipeline.bootstrap, stores.pipeline.topic("t"), settings)


def _caught_up_ms(stores: StorePipeline) -> int:
    with stores.opened("cache") as (store, serving):
        position = store.position(serving)
    return position.caught_up_broker_ms if position is not None else 0


def _as_of_0_1_0(stores: StorePipeline, lsn: int | None) -> None:
    """The position as 0.1.0 wrote it, with a time in the future; `lsn`: older than every heartbeat that is kept."""
    with stores.opened("cache") as (store, serving):
        position = store.take(serving, "test")
        ahead_ms = time.time_ns() // 1_000_000 + _MONTH_SECONDS * 1000
        changes = {} if lsn is None else {"lsn": lsn, "version": Version(lsn, 0)}
        old = msgspec.structs.replace(position, caught_up_ms=ahead_ms, caught_up_broker_ms=0, **changes)
        store.save_position(serving, old)
