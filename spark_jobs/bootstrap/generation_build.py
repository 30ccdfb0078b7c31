"""Builds one generation of a store from the topics: load, count, catch up, check completeness, switch.

The build does not change the serving generation before the switch. A build that fails earlier leaves a generation in
state "loading", which the next build drops.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from cdc.config import Config
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.positions.offset_index import Point
from cdc.positions.store_notes import BuildNotes, end_refusal
from cdc.stores.contract import Generation, Position, Store, TableSchema, TopicPosition, caught_up_at
from cdc.tables.state_reader import read_recorded_states
from spark_jobs.bootstrap.completeness import Completeness, reasons_after, why_too_slow
from spark_jobs.bootstrap.topic_state import TopicState, ends_for
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.start_position import of_this_pipeline
from spark_jobs.sync.store_sync import BOOTSTRAP_OWNER, drop_lost
from spark_jobs.sync.topic_facts import read_topic_facts
from spark_jobs.tasks.parked_rows import read_parked
from spark_jobs.writing.contract import LoadProgress, StoreWriting

log = get_logger("bootstrap")

_SAVE_SECONDS = 10.0
_MOST_ROUNDS = 50
# A sync catches up with this number of records within moments.
_NEARLY_THERE = 2_000
_LARGEST = Version((1 << 64) - 1, (1 << 32) - 1)

Show = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build."""

    #: Do not drop the generation that served before.
    keep_old: bool = False
    #: Switch readers to the new generation. If false, `sync --generation N` keeps it up to date until a later switch.
    switch: bool = True
    #: Build even if the topics are not complete copies of the tables.
    anyway: bool = False


class GenerationBuild:
    """One build of one generation."""

    def __init__(
        self,
        config: Config,
        name: str,
        store: Store,
        follower: ProgressFollower,
        topic_state: TopicState,
        store_tables: StoreTables,
        writing: StoreWriting[Any, Any],
        show: Show,
    ) -> None:
        self._config = config
        self._name = name
        self._store = store
        self._follower = follower
        self._topic_state = topic_state
        self._show = show
        self._markers: dict[str, bytes] = {}
        self._store_tables = store_tables
        self._writing = writing
        self._loading = writing.loading(store_tables, config, self._between)
        self._saved_at = time.monotonic()
        self._parked: dict[str, int] = {}
        self._notes: BuildNotes | None = None
        self.generation: Generation
        self._position: Position

    def run(self, options: BuildOptions) -> tuple[Completeness, bool]:
        """Build the generation; return the verdict and whether readers were switched to it."""
        old_generation = self._store.serving()
        old_position = self._of_this_pipeline(old_generation)
        self._drop_half_built()
        pipeline_id = self._topic_state.progress.pipeline_id
        self.generation = self._store.create_generation(self._store_tables.schemas.values(), pipeline_id)
        log.info("generation_created", store=self._name, generation=self.generation.number)
        self._notes = BuildNotes(self._config, self._name, self.generation.number)
        owner = f"{BOOTSTRAP_OWNER}{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        self._position = self._store.take(self.generation, owner)
        expected = self._load_everything()
        found = self._count()
        self._catch_up()
        too_slow = self._why_too_slow()
        verdict = self._judge(expected, found, too_slow)
        if self._store.rebuilds_in_place:
            self._delete_stale_rows()
        switch = options.switch and too_slow is None
        if switch:
            self._writing.before_switch(
                self._store,
                self.generation,
                self._applier(),
                self._store_tables,
                old_position=old_position,
                point=self._topic_state.point,
                began_ms=self._topic_state.began_ms,
            )
            self._switch(old_generation, keep_old=options.keep_old)
            if self._store.rebuilds_in_place:
                self._delete_rows_of_removed_tables(old_position)
        else:
            self._store.settle(self.generation)
        return verdict, switch

    def _of_this_pipeline(self, serving: Generation | None) -> Position | None:
        """Return the serving generation's position; None if there is none, or if another pipeline built it.

        A build continues nothing that another pipeline wrote.
        """
        position = self._store.position(serving) if serving is not None else None
        if position is None:
            return None
        known = of_this_pipeline(position, self._topic_state.facts, self._topic_state.progress)
        if known is None:
            log.info("another_pipeline_found", store=self._name)
        return known

    def _drop_half_built(self) -> None:
        """Drop the generations that failed bootstraps left.

        A settled generation stays, because an operator keeps it on purpose (`--no-switch`, `--keep-old`).
        """
        serving = self._store.serving()
        for generation in self._store.list_generations():
            position = self._store.position(generation)
            half_built = generation.state == "loading" and (
                position is None or position.owner.startswith(BOOTSTRAP_OWNER)
            )
            if half_built and generation.number != (serving.number if serving else None):
                log.info("unfinished_generation_dropped", store=self._name, generation=generation.number)
                self._store.drop(generation)

    def _load_everything(self) -> dict[str, int]:
        point = self._topic_state.point
        start = {topic: facts.starts for topic, facts in self._topic_state.facts.items()}
        rows = self._load(start, ends_for(point, start), count=True)
        self._save(point, self._topic_state.caught_up_ms)
        log.info("loaded", store=self._name, lsn=str(LSN(point.lsn)), rows=sum(rows.values()))
        return rows

    def _applier(self) -> Any:
        return self._writing.applier(self._config, self._name, self._store, self.generation, self._store_tables)

    def _load(self, start: dict[str, list[int]], end: dict[str, list[int]], *, count: bool) -> dict[str, int]:
        applier = self._applier()
        loaded = self._loading.load(applier, start, end, self._markers, count=count)
        for topic, each in loaded.answers.counts.items():
            self._parked[topic] = self._parked.get(topic, 0) + each.parked
        if loaded.answers.markers:  # a task may have written rows below a TRUNCATE before another read its marker
            applier.truncate(loaded.answers.markers)
            self._markers |= loaded.answers.markers
        return {topic: loaded.rows.get(topic, 0) for topic in start}

    def _catch_up(self) -> None:
        """Load what capture published meanwhile, until few records are left.

        Tables that are published for the first time meanwhile are left to the sync.
        """
        for _ in range(_MOST_ROUNDS):
            looked_ms = self._follower.broker_ms()
            self._follower.catch_up()
            has_read_all = self._follower.has_read_all()
            newest = self._follower.newest()
            if newest is None:
                return
            start = {topic: list(place.next_offsets) for topic, place in self._position.topics.items()}
            end = ends_for(newest, start)
            behind = sum(sum(end[topic]) - sum(start[topic]) for topic in start)
            if behind:
                self._load(start, end, count=False)
                self._save(newest, looked_ms if has_read_all else newest.broker_ms)
            if behind <= _NEARLY_THERE:
                return
        raise TransientError("The new generation does not catch up: capture publishes faster than the build can load.")

    def _judge(self, expected: dict[str, int], found: dict[str, int], too_slow: str | None) -> Completeness:
        """Return the verdict. A parked row may be missing from the store or be there in an earlier state."""
        wanted = {topic: range(rows - self._parked.get(topic, 0), rows + 1) for topic, rows in expected.items()}
        reasons = reasons_after(read_recorded_states(self._config), too_slow=too_slow, expected=wanted, found=found)
        parked = sum(self._parked.values()) + sum(
            not row.store and row.topic in wanted for row in read_parked(self._config)
        )
        return Completeness(
            lsn=self._topic_state.point.lsn,
            rows=sum(found.values()) if found else sum(expected.values()),
            parked=parked,
            reasons=[*self._topic_state.reasons, *reasons],
        )

    def _why_too_slow(self) -> str | None:
        after = read_topic_facts(self._config, self._topic_state.tables)
        seen = [*self._topic_state.facts.values(), *after.values()]
        elapsed_ms = self._follower.broker_ms() - self._topic_state.began_ms
        return why_too_slow(elapsed_ms, min(facts.delete_retention_ms for facts in seen))

    def _count(self) -> dict[str, int]:
        """Count the live rows by topic. A store that is rebuilt in place is not counted, because its rows change.

        No other process writes to a generation that is built beside the serving one.
        """
        if self._store.rebuilds_in_place:
            return {}
        return {topic: self._store.count(self.generation, table) for topic, table in self._store_tables.schemas.items()}

    def _delete_stale_rows(self) -> None:
        for table in self._topic_state.tables.values():
            self._delete_stale_rows_of(table, self._topic_state.point.version)

    def _delete_rows_of_removed_tables(self, old_position: Position | None) -> None:
        """Remove all rows of the tables that the store does not get any more.

        This runs after the switch, when the sync no longer writes these rows.
        """
        for topic, table in self._topic_state.others.items():
            if old_position is not None and topic in old_position.topics:
                self._delete_stale_rows_of(table, _LARGEST)

    def _delete_stale_rows_of(self, table: TableSchema, below: Version) -> None:
        swept = self._store.delete_stale_rows(self.generation, table, below)
        if swept:
            log.info("stale_rows_deleted", store=self._name, table=str(table), rows=swept)

    def _switch(self, old_generation: Generation | None, *, keep_old: bool) -> None:
        self._store.switch(self.generation)
        if self._notes is not None:
            self._notes.end()
        log.info("switched", store=self._name, generation=self.generation.number)
        end_refusal(self._config, f"store {self._name}")
        if keep_old:
            return
        if old_generation is not None:
            self._store.drop(old_generation)
        for lost in drop_lost(self._store, self.generation):
            log.info("lost_generation_dropped", store=self._name, generation=lost.number)

    def _save(self, point: Point, caught_up_ms: int) -> None:
        """Save the position. `caught_up_ms`: the point covers everything that the broker appended before this time."""
        start = {topic: facts.starts for topic, facts in self._topic_state.facts.items()}
        ends = ends_for(point, start)
        topics = {
            topic: TopicPosition(facts.topic.id, tuple(ends[topic]), self._store_tables.texts[topic])
            for topic, facts in self._topic_state.facts.items()
        }
        position = msgspec.structs.replace(self._position, topics=topics, version=point.version, lsn=point.lsn)
        self._position = self._store.save_position(self.generation, caught_up_at(position, caught_up_ms))

    def _between(self, progress: LoadProgress) -> None:
        self._show(progress)
        if self._notes is not None:
            self._notes.step(progress.events * progress.tasks_done // max(1, progress.tasks), progress.events)
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            # Shows that the build is running, so that a sync that starts meanwhile does not take this generation.
            self._position = self._store.save_position(self.generation, self._position)
            self._saved_at = time.monotonic()
