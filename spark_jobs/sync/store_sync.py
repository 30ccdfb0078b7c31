"""Syncs one store: a thread that runs sync sessions one after another, and retries after errors.

Each store has its own thread, which runs its batches. An error of one store does not affect the others.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc.backoff import Backoff
from cdc.config import Config
from cdc.config.stores import SyncedStoreConfig
from cdc.errors import RefusedError, TailraceError, TransientError, UsageError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.positions.progress import Progress
from cdc.positions.store_notes import end_refusal, note_refusal
from cdc.stores.contract import (
    Generation,
    Position,
    PositionLostError,
    Store,
    StoreCheck,
    TableSchema,
    TakenOverError,
    caught_up_at,
)
from cdc.stores.registry import open_store
from spark_jobs.shape.store_tables import StoreTables, build_store_tables, chosen_tables
from spark_jobs.sync.batch_driver import BatchDriver
from spark_jobs.sync.past_points import appended_ms
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.start_position import starting_position
from spark_jobs.sync.sync_session import SyncSession, TablesChangedError
from spark_jobs.sync.topic_facts import CommittedEnds, read_topic_facts
from spark_jobs.writing.choice import writing_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOTSTRAP_OWNER = "bootstrap:"
# A running bootstrap saves its position about every ten seconds.
_BOOTSTRAP_SILENCE_SECONDS = 60.0
_TICK_SECONDS = 0.5
# A batch that is running when the sync stops gets this long to end. Then its Spark jobs are cancelled.
_BATCH_END_SECONDS, _CANCEL_SECONDS = 20.0, 40.0


class MovedError(TransientError):
    """Another generation serves readers now. The next session syncs that one."""


class PausedError(TransientError):
    """The operator has paused this store."""


class StoreSync:
    """Keeps one store in sync, in its own thread.

    `number` is the generation to sync. None means the serving generation, and after a switch the new serving one.
    """

    def __init__(
        self,
        name: str,
        settings: SyncedStoreConfig,
        config: Config,
        *,
        spark: SparkSession,
        follower: ProgressFollower,
        stop: threading.Event,
        number: int | None,
        is_paused: Callable[[], bool] = lambda: False,
        is_refused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_refused` returns whether `__stores` has a note that this store's sync has refused."""
        self.name = name
        self._is_paused = is_paused
        self._is_refused = is_refused
        self.refused: RefusedError | None = None
        self._config = config
        self._settings = settings
        self._writing = writing_of(settings.kind)
        self._spark = self._writing.session(spark, settings)
        self._follower = follower
        self._stop = stop
        self._number = number
        self._log = get_logger("sync").bind(store=name)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        self._backoff = Backoff()
        self._warned: set[StoreCheck] = set()
        self._logged_due: set[str] = set()
        self._bootstrap_noticed: tuple[Position, float] | None = None
        self.thread = threading.Thread(target=self._run, name=f"tailrace-sync-{name}", daemon=True)

    def join(self) -> None:
        """Wait until the thread has ended. Call it when `stop` is set. Cancels a batch that takes too long."""
        self.thread.join(_BATCH_END_SECONDS)
        give_up_at = time.monotonic() + _CANCEL_SECONDS
        while self.thread.is_alive() and time.monotonic() < give_up_at:
            with suppress(Exception):  # Spark may have died; then the batch fails by itself
                self._spark.sparkContext.cancelJobGroup(self._owner)
            self.thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._rest_while_paused()
            try:
                # Every Spark job that this thread starts belongs to the group.
                self._spark.sparkContext.setJobGroup(self._owner, f"sync of {self.name}", interruptOnCancel=True)
                self._live()
            except PausedError:
                continue
            except (TablesChangedError, MovedError) as change:
                self._log.info("starting_over", reason=change.message)
            except (RefusedError, UsageError) as error:
                self.refused = error if isinstance(error, RefusedError) else RefusedError(error.message)
                taken_over = isinstance(error, TakenOverError)
                self._log.error("refused", reason=error.message, remedy=error.remedy, taken_over=taken_over)
                if not taken_over and self._number is None:
                    note_refusal(self._config, f"store {self.name}", error)
                return
            except TailraceError as error:
                self._retry(str(error))
            except Exception as error:  # from a library: this store retries, the other stores are not affected
                self._retry(f"{type(error).__name__}: {error}".splitlines()[0][:300])

    def _rest_while_paused(self) -> None:
        if not self._is_paused():
            return
        self._log.info("paused", remedy=f"tailrace resume {self.name}")
        while self._is_paused() and not self._stop.is_set():
            self._stop.wait(_TICK_SECONDS)
        self._log.info("resumed")

    def _retry(self, reason: str) -> None:
        if self._stop.is_set():
            return
        pause_seconds = self._backoff.next_delay()
        self._log.warning("retrying", reason=reason, seconds=pause_seconds)
        self._stop.wait(pause_seconds)

    def _live(self) -> None:
        tables = self._wait_for_tables()
        if tables is None:
            return
        store = open_store(self.name, self._settings, self._config.kafka.prefix)
        try:
            for warning in checked_store(self.name, store):
                if warning not in self._warned:
                    self._warned.add(warning)
                    self._log.warning("store_check", what=warning.what, remedy=warning.remedy)
            generation = self._choose(store, tables)
            if generation is not None:
                self._feed(store, generation)
        finally:
            store.close()

    def _wait_for_tables(self) -> dict[str, TableSchema] | None:
        told = False
        while not self._stop.is_set():
            if chosen_tables(self._settings, self._follower.tables()):
                self._follower.catch_up()
                return self._follower.tables()
            if not told:
                self._log.info("waiting_for_capture")
                told = True
            self._stop.wait(0.2)
        return None

    def _choose(self, store: Store, tables: dict[str, TableSchema]) -> Generation | None:
        """Return the generation to sync; None while a bootstrap builds the first one."""
        existing = store.list_generations()
        if self._number is not None:
            found = next((each for each in existing if each.number == self._number), None)
            if found is None:
                raise UsageError(f"Store {self.name} has no generation {self._number}.")
            return found
        serving = store.serving()
        if serving is not None:
            return serving
        if existing:
            newest = existing[-1]
            position = store.position(newest)
            if position is not None and self._is_bootstrap_alive(position):
                self._log.info("waiting_for_bootstrap", generation=newest.number)
                self._stop.wait(1.0)
                return None
            if position is not None:
                return newest
        store_tables = build_store_tables(self._config, self.name, self._spark, tables)
        return store.create_generation(store_tables.schemas.values(), self._progress().pipeline_id)

    def _is_bootstrap_alive(self, position: Position) -> bool:
        """Return whether a bootstrap owns the generation and its position has changed lately.

        The bootstrap's clock may be wrong, so the time in the position does not count, only a change of the position.
        """
        if not position.owner.startswith(BOOTSTRAP_OWNER):
            return False
        if self._bootstrap_noticed is None or self._bootstrap_noticed[0] != position:
            self._bootstrap_noticed = position, time.monotonic()
        return time.monotonic() - self._bootstrap_noticed[1] < _BOOTSTRAP_SILENCE_SECONDS

    def _feed(self, store: Store, generation: Generation) -> None:
        progress = self._progress()
        if progress.state == "recovering":
            raise TransientError("The pipeline is being recovered.", remedy="Wait until `tailrace recover` has ended.")
        taken = store.take(generation, self._owner)
        store_tables = build_store_tables(self._config, self.name, self._spark, self._follower.tables(), taken)
        self._log_due(store_tables)
        now_ms = self._follower.broker_ms()
        facts = read_topic_facts(self._config, store_tables.source)
        position = starting_position(self.name, self._with_evidence(taken), facts, progress, now_ms=now_ms)
        applying = self._writing.applier(self._config, self.name, store, generation, store_tables)
        starting = {topic: place.next_offsets for topic, place in position.topics.items()}
        with CommittedEnds(self._config, {topic: len(offsets) for topic, offsets in starting.items()}) as ends:
            session = SyncSession(
                name=self.name,
                config=self._config,
                store=store,
                generation=generation,
                position=store_tables.placed(position),
                follower=self._follower,
                store_tables=store_tables,
                applying=applying,
                reading=self._writing.reading(self._config, store_tables, applying, self._settings.parallelism),
                retention_ms=min(each.delete_retention_ms for each in facts.values()),
                end_offsets=ends.read,
                check_partitions=ends.check_partitions,
            )
            session.begin()
            driver = BatchDriver(
                starting=starting,
                end_offsets=ends.read,
                apply_batch=session.batch,
                wait_for_progress=self._follower.wait_for_progress,
                events_per_batch=self._settings.max_events_per_batch,
                interval_seconds=self._settings.trigger_milliseconds / 1000,
                stop=self._stop,
            )
            self._log.info(
                "syncing", generation=generation.number, lsn=str(LSN(position.lsn)), tables=len(store_tables.source)
            )
            self._run_batches(store, session, driver)

    def _with_evidence(self, position: Position) -> Position:
        """Add the broker's time of the matching progress record to a position that an older Tailrace wrote."""
        if position.caught_up_broker_ms or not position.topics:
            return position
        return caught_up_at(position, appended_ms(self._config, (position.version, position.lsn)))

    def _progress(self) -> Progress:
        found = self._follower.progress()
        if found is None:  # the tables came from it, so it existed
            raise TransientError("The progress record is gone.")
        return found

    def _log_due(self, store_tables: StoreTables) -> None:
        for what in store_tables.due:
            if what not in self._logged_due:
                self._logged_due.add(what)
                self._log.warning("bootstrap_due", reason=what, remedy=f"tailrace bootstrap {self.name}")

    def _run_batches(self, store: Store, session: SyncSession, driver: BatchDriver) -> None:
        """Run batches, and between them check about twice a second whether this session may continue.

        Returns when asked to stop, and raises the first error.
        """
        serves = self._number is not None
        is_noted = False
        check_at = time.monotonic() + _TICK_SECONDS
        while not self._stop.is_set():
            driver.step()
            if time.monotonic() < check_at:
                continue
            if self._is_paused():
                raise PausedError("The store is paused.")
            if self._is_refused() and not is_noted:
                is_noted = True
                end_refusal(self._config, f"store {self.name}")
            session.between_batches()
            if not serves:
                serves = store.serving() is not None or self._serve_first(store, session)
            elif self._number is None and _serving_moved(store, session.generation):
                raise MovedError("Another generation serves readers now.")
            if session.is_caught_up:
                self._backoff.reset()
            check_at = time.monotonic() + _TICK_SECONDS

    def _serve_first(self, store: Store, session: SyncSession) -> bool:
        """Make the first generation serve readers once it has caught up. Returns whether it serves."""
        if not session.is_caught_up:
            return False
        store.switch(session.generation)
        self._log.info("serving", generation=session.generation.number)
        for lost in drop_lost(store, session.generation):
            self._log.info("lost_generation_dropped", generation=lost.number)
        return True


def checked_store(name: str, store: Store) -> list[StoreCheck]:
    """Check the store and return the warnings. Raises if the operator must repair the store before a sync writes it."""
    found = store.check()
    failed = next((each for each in found if each.level == "fail"), None)
    if failed is not None:
        raise TransientError(f"Store {name} cannot be written: {failed.what}.", remedy=failed.remedy)
    return [each for each in found if each.level == "warn"]


def drop_lost(store: Store, serving: Generation) -> list[Generation]:
    """Drop generations that have no position, since no sync can continue them. Returns what it dropped."""
    others = [each for each in store.list_generations() if each.number != serving.number]
    lost = [each for each in others if store.position(each) is None]
    for each in lost:
        store.drop(each)
    return lost


def _serving_moved(store: Store, generation: Generation) -> bool:
    serving = store.serving()
    if serving is None:
        raise PositionLostError("The store serves no generation any more.")
    return serving.number != generation.number
