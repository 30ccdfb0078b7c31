"""`tailrace bootstrap`: a new generation of a store, from the compacted topics alone. The source may be switched off.

The serving generation is not touched until the switch; a bootstrap that dies leaves it as it was, and the next one
takes away what was left half built. A running sync feeds the serving generation meanwhile, and follows the switch.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from cdc.config import Config
from cdc.errors import RefusedError, TransientError, UsageError
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.names import Control, control_topic
from cdc.status import read_states
from cdc.topics import Topics
from sinks.contract import Generation, Position, Store, TableSchema, TopicPosition
from sinks.registry import open_store
from spark_jobs.session import spark_session
from spark_jobs.stores.completeness import Verdict, reasons_after, reasons_before, why_too_slow
from spark_jobs.stores.feeding import applying_for
from spark_jobs.stores.ledger import Ledger
from spark_jobs.stores.load import Loading, LoadProgress
from spark_jobs.stores.parked_rows import read_parked
from spark_jobs.stores.points import Point
from spark_jobs.stores.start import TopicFacts
from spark_jobs.stores.store_sync import BOOTSTRAP_OWNER
from spark_jobs.stores.topic_facts import read_topic_facts
from spark_jobs.sync import chosen_stores, sync_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("bootstrap")

_FIRST_PROGRESS_SECONDS = 30.0
_SAVE_SECONDS = 10.0
_MOST_ROUNDS = 50
# So few records behind, a sync is there in a moment.
_NEARLY_THERE = 2_000
_NEARLY_THERE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What there is to do, as `--dry-run` shows it."""

    store: str
    serving: int | None
    lsn: int
    tables: list[str]
    records: int
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    plan: Plan
    generation: int
    verdict: Verdict
    switched: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    keep_old: bool = False
    #: Leave the switch to somebody else: feed the generation with `sync --generation N` meanwhile.
    switch: bool = True
    #: Build it although the topics are no whole copy.
    anyway: bool = False


Show = Callable[[LoadProgress], None]


def plan_bootstrap(config: Config, name: str) -> Plan:
    chosen_stores(config, [name])
    with Ledger(config) as ledger:
        return _Sources.read(config, ledger).plan(config, name)


def run_bootstrap(
    config: Config, name: str, options: Options, show: Show = lambda _: None, spark: SparkSession | None = None
) -> Report:
    """`spark`: a session to use and leave running; without it, one is started and stopped."""
    chosen_stores(config, [name])
    began = time.monotonic()
    with Ledger(config) as ledger:
        sources = _Sources.read(config, ledger)
        plan = sources.plan(config, name)
        if plan.reasons and not options.anyway:
            raise RefusedError(
                f"What is built from the topics now could not be complete: {'; '.join(plan.reasons)}.",
                remedy="Mend that first, or say --anyway.",
            )
        session = spark or spark_session(sync_config(config, [name]), f"tailrace-bootstrap {name}")
        store = open_store(name, config.stores[name], config.kafka.prefix)
        try:
            build = _Build(config, name, store, ledger, sources, session, show)
            verdict, switched = build.run(options)
        finally:
            store.close()
            if spark is None:
                session.stop()
    generation = build.generation.number
    return Report(
        plan=plan, generation=generation, verdict=verdict, switched=switched, seconds=time.monotonic() - began
    )


def switch_generation(config: Config, name: str, number: int, *, keep_old: bool = False) -> None:
    """Readers see a generation that was built before and has been fed since."""
    chosen_stores(config, [name])
    store = open_store(name, config.stores[name], config.kafka.prefix)
    try:
        old = store.serving()
        new = next((each for each in store.list_generations() if each.number == number), None)
        if new is None:
            raise UsageError(f"Store {name} has no generation {number}.")
        if old is not None:
            _refuse_behind(name, store.position(new), store.position(old), number)
        store.switch(new)
        log.info("switched", store=name, generation=number)
        if old is not None and old.number != number and not keep_old:
            store.drop(old)
    finally:
        store.close()


def _refuse_behind(name: str, new: Position | None, old: Position | None, number: int) -> None:
    behind = (old.lsn if old is not None else 0) - (new.lsn if new is not None else 0)
    if behind > _NEARLY_THERE_BYTES:
        raise RefusedError(
            f"Generation {number} of {name} is {behind:,} bytes of the log behind the one that serves.",
            remedy=f"Feed it first: tailrace sync {name} --generation {number}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """Everything the topics said at one moment."""

    point: Point
    tables: dict[str, TableSchema]
    facts: dict[str, TopicFacts]
    reasons: list[str]
    began_ms: int

    @classmethod
    def read(cls, config: Config, ledger: Ledger) -> _Sources:
        began_ms = time.time_ns() // 1_000_000
        give_up_at = time.monotonic() + _FIRST_PROGRESS_SECONDS
        while ledger.progress() is None and time.monotonic() < give_up_at:
            time.sleep(0.05)
        progress = ledger.progress()
        if progress is None:
            raise RefusedError("Capture has published nothing yet.", remedy="Start it first: tailrace capture")
        ledger.catch_up()
        tables = ledger.tables()
        if not tables:
            raise RefusedError("Capture has published no table yet.", remedy="Start it first: tailrace capture")
        facts = read_topic_facts(config, tables)
        topics = Topics(config.kafka)
        try:
            policies = topics.cleanup_policies(tables)
        finally:
            topics.close()
        return cls(
            point=Point.of(progress) or _whatever_is_there(facts),
            tables=tables,
            facts=facts,
            reasons=reasons_before(progress, facts, policies),
            began_ms=began_ms,
        )

    def plan(self, config: Config, name: str) -> Plan:
        store = open_store(name, config.stores[name], config.kafka.prefix)
        try:
            serving = store.serving()
        finally:
            store.close()
        records = sum(sum(facts.ends) - sum(facts.starts) for facts in self.facts.values())
        return Plan(
            store=name,
            serving=serving.number if serving is not None else None,
            lsn=self.point.lsn,
            tables=[str(table) for table in self.tables.values()],
            records=records,
            reasons=self.reasons,
        )


class _Build:
    def __init__(
        self,
        config: Config,
        name: str,
        store: Store,
        ledger: Ledger,
        sources: _Sources,
        spark: SparkSession,
        show: Show,
    ) -> None:
        self._config = config
        self._name = name
        self._store = store
        self._ledger = ledger
        self._sources = sources
        self._show = show
        self._markers: dict[str, bytes] = {}
        self._loading = Loading(spark, config, self._between)
        self._saved_at = time.monotonic()
        self._parked: dict[str, int] = {}
        self.generation: Generation
        self._position: Position

    def run(self, options: Options) -> tuple[Verdict, bool]:
        old = self._store.serving()
        self._drop_half_built()
        self.generation = self._store.create_generation(self._sources.tables.values())
        log.info("generation_created", store=self._name, generation=self.generation.number)
        owner = f"{BOOTSTRAP_OWNER}{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        self._position = self._store.take(self.generation, owner)
        expected = self._load_everything()
        found = self._count()
        self._catch_up()
        too_slow = self._why_too_slow()
        verdict = self._judge(expected, found, too_slow)
        if self._store.rebuilds_in_place:
            self._sweep_ghosts()
        switch = options.switch and too_slow is None
        if switch:
            self._switch(old, keep_old=options.keep_old)
        else:
            self._store.settle(self.generation)
        return verdict, switch

    def _drop_half_built(self) -> None:
        """What an earlier bootstrap left when it died; a settled generation is somebody's on purpose."""
        serving = self._store.serving()
        for generation in self._store.list_generations():
            position = self._store.position(generation)
            half_built = generation.state == "loading" and (
                position is None or position.owner.startswith(BOOTSTRAP_OWNER)
            )
            if half_built and generation.number != (serving.number if serving else None):
                log.info("half_built_dropped", store=self._name, generation=generation.number)
                self._store.drop(generation)

    def _load_everything(self) -> dict[str, int]:
        point = self._sources.point
        start = {topic: facts.starts for topic, facts in self._sources.facts.items()}
        rows = self._load(start, _ends_for(point, start), count=True)
        self._save(point)
        log.info("loaded", store=self._name, lsn=str(LSN(point.lsn)), rows=sum(rows.values()))
        return rows

    def _load(self, start: dict[str, list[int]], end: dict[str, list[int]], *, count: bool) -> dict[str, int]:
        applying = applying_for(
            self._name,
            self._config,
            self._store,
            self.generation,
            self._sources.tables,
            control_topic(self._config.kafka.prefix, Control.PARKED),
        )
        loaded = self._loading.load(applying, start, end, self._markers, count=count)
        for topic, each in loaded.answers.counts.items():
            self._parked[topic] = self._parked.get(topic, 0) + each.parked
        self._sweep(loaded.answers.markers)
        return {topic: loaded.rows.get(topic, 0) for topic in start}

    def _sweep(self, markers: dict[str, bytes]) -> None:
        """Rows below a TRUNCATE that were written before the marker was met."""
        if not markers:
            return
        writer = self._store.writer_factory(self.generation)()
        try:
            for topic, stamp in markers.items():
                writer.truncate(self._sources.tables[topic], Version.parse(stamp.decode()))
                self._markers[topic] = stamp
        finally:
            writer.close()

    def _catch_up(self) -> None:
        """Until what is left is little. Tables that come meanwhile are the sync's."""
        for _ in range(_MOST_ROUNDS):
            newest = self._ledger.newest()
            if newest is None:
                return
            start = {topic: list(place.next_offsets) for topic, place in self._position.topics.items()}
            end = _ends_for(newest, start)
            behind = sum(sum(end[topic]) - sum(start[topic]) for topic in start)
            if behind:
                self._load(start, end, count=False)
                self._save(newest)
            if behind <= _NEARLY_THERE:
                return
        raise TransientError("The new generation does not catch up: more is written than it can take.")

    def _judge(self, expected: dict[str, int], found: dict[str, int], too_slow: str | None) -> Verdict:
        """A parked row may be in the store in an earlier state, or not at all."""
        wanted = {topic: range(rows - self._parked.get(topic, 0), rows + 1) for topic, rows in expected.items()}
        reasons = reasons_after(read_states(self._config), too_slow=too_slow, expected=wanted, found=found)
        parked = sum(self._parked.values()) + sum(not row.store for row in read_parked(self._config))
        return Verdict(
            lsn=self._sources.point.lsn,
            rows=sum(found.values()) if found else sum(expected.values()),
            parked=parked,
            reasons=[*self._sources.reasons, *reasons],
        )

    def _why_too_slow(self) -> str | None:
        after = read_topic_facts(self._config, self._sources.tables)
        seen = [*self._sources.facts.values(), *after.values()]
        elapsed_ms = time.time_ns() // 1_000_000 - self._sources.began_ms
        return why_too_slow(elapsed_ms, min(facts.delete_retention_ms for facts in seen))

    def _count(self) -> dict[str, int]:
        """Nobody else writes to a generation that is built aside; rows that readers see move while they are counted."""
        if self._store.rebuilds_in_place:
            return {}
        return {topic: self._store.count(self.generation, table) for topic, table in self._sources.tables.items()}

    def _sweep_ghosts(self) -> None:
        for table in self._sources.tables.values():
            swept = self._store.sweep_ghosts(self.generation, table, self._sources.point.version)
            if swept:
                log.info("ghosts_swept", store=self._name, table=str(table), rows=swept)

    def _switch(self, old: Generation | None, *, keep_old: bool) -> None:
        self._store.switch(self.generation)
        log.info("switched", store=self._name, generation=self.generation.number)
        if old is not None and not keep_old:
            self._store.drop(old)

    def _save(self, point: Point) -> None:
        start = {topic: facts.starts for topic, facts in self._sources.facts.items()}
        ends = _ends_for(point, start)
        topics = {
            topic: TopicPosition(facts.topic.id, tuple(ends[topic])) for topic, facts in self._sources.facts.items()
        }
        position = msgspec.structs.replace(
            self._position, topics=topics, version=point.version, lsn=point.lsn, caught_up_ms=point.written_ms
        )
        self._position = self._store.save_position(self.generation, position)

    def _between(self, progress: LoadProgress) -> None:
        self._show(progress)
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            # A sign of life, so that a sync that is started meanwhile leaves this generation alone.
            self._position = self._store.save_position(self.generation, self._position)
            self._saved_at = time.monotonic()


def _ends_for(point: Point, start: dict[str, list[int]]) -> dict[str, list[int]]:
    return {
        topic: [max(each) for each in zip(offsets, point.end_offsets.get(topic, offsets), strict=True)]
        for topic, offsets in start.items()
    }


def _whatever_is_there(facts: dict[str, TopicFacts]) -> Point:
    """While a first copy is under way, nothing says which LSN the topics stand for."""
    return Point(0, Version(0, 0), {name: each.ends for name, each in facts.items()}, 0, 0)
