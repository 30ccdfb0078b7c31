"""`tailrace bootstrap`: builds a new generation of a store from the compacted topics. The source need not be running.

The bootstrap does not change the serving generation before the switch. A bootstrap that fails leaves the serving
generation as it was, and the next bootstrap drops the half-built one. A running sync writes to the serving generation
meanwhile, and follows the switch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc.config import Config
from cdc.errors import RefusedError, UsageError
from cdc.logs import get_logger
from cdc.names import Control, control_topic
from cdc.positions.progress import read_progress
from cdc.positions.store_notes import end_refusal
from cdc.stores.contract import Position
from cdc.stores.registry import open_store
from spark_jobs.bootstrap.completeness import Completeness
from spark_jobs.bootstrap.generation_build import BuildOptions, GenerationBuild, Show
from spark_jobs.bootstrap.topic_state import TopicState
from spark_jobs.session.spark_session import spark_session, start_workers
from spark_jobs.shape.store_tables import build_store_tables
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.store_sync import checked_store
from spark_jobs.sync.sync import chosen_stores, driver_config, sync_config, sync_settings
from spark_jobs.writing.choice import writing_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BootstrapPlan", "BootstrapReport", "BuildOptions", "plan_bootstrap", "run_bootstrap", "switch_generation"]

log = get_logger("bootstrap")

_NEARLY_THERE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPlan:
    """The plan of a bootstrap, as `--dry-run` shows it.

    `serving`: number of the serving generation. `lsn`: the LSN that the new generation would be complete as of.
    `records`: number of offsets to read. `reasons`: why the new generation could not be complete.
    """

    store: str
    serving: int | None
    lsn: int
    tables: list[str]
    records: int
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapReport:
    """The result of a bootstrap. `switched`: whether readers see the new generation."""

    plan: BootstrapPlan
    generation: int
    verdict: Completeness
    switched: bool
    seconds: float


def plan_bootstrap(config: Config, name: str) -> BootstrapPlan:
    """Return what a bootstrap of store `name` would do. Changes nothing."""
    chosen_stores(config, [name])
    with ProgressFollower(config) as follower:
        return _plan(config, name, TopicState.read(config, name, follower))


def run_bootstrap(
    config: Config, name: str, options: BuildOptions, show: Show = lambda _: None, spark: SparkSession | None = None
) -> BootstrapReport:
    """Build a new generation of store `name`, and switch to it unless the options or the build's duration forbid it.

    `spark`: a session to use and leave running. Without it, this function starts a session and stops it at the end.
    """
    chosen_stores(config, [name])
    began = time.monotonic()
    with ProgressFollower(config) as follower:
        topic_state = TopicState.read(config, name, follower)
        plan = _plan(config, name, topic_state)
        if plan.reasons and not options.anyway:
            raise RefusedError(
                f"A generation built from the topics now would not be complete: {'; '.join(plan.reasons)}.",
                remedy="Repair this first, or use --anyway.",
            )
        session = spark or spark_session(_spark_config(config, name).spark, f"tailrace-bootstrap {name}")
        settings = sync_settings(config, name)
        writing = writing_of(settings.kind)
        if not writing.in_spark:
            start_workers(session)
        store = open_store(name, settings, config.kafka.prefix)
        try:
            store_tables = build_store_tables(config, name, writing.session(session, settings), topic_state.tables)
            checked_store(name, store)
            build = GenerationBuild(config, name, store, follower, topic_state, store_tables, writing, show)
            verdict, switched = build.run(options)
        finally:
            store.close()
            if spark is None:
                session.stop()
    generation = build.generation.number
    return BootstrapReport(
        plan=plan, generation=generation, verdict=verdict, switched=switched, seconds=time.monotonic() - began
    )


def switch_generation(config: Config, name: str, number: int, *, keep_old: bool = False) -> None:
    """Switch readers to a generation that an earlier bootstrap built and a sync has kept up to date.

    Drops the generation that served before, unless `keep_old`.
    """
    chosen_stores(config, [name])
    store = open_store(name, config.stores[name], config.kafka.prefix)
    try:
        old = store.serving()
        new = next((each for each in store.list_generations() if each.number == number), None)
        if new is None:
            raise UsageError(f"Store {name} has no generation {number}.")
        _refuse_behind(config, name, store.position(new), store.position(old) if old is not None else None, number)
        store.switch(new)
        log.info("switched", store=name, generation=number)
        end_refusal(config, f"store {name}")
        if old is not None and old.number != number and not keep_old:
            store.drop(old)
    finally:
        store.close()


def _spark_config(config: Config, name: str) -> Config:
    """Return the config with Spark options for the load.

    If the store has a shape, Spark evaluates many rows, so Java's optimising compiler stays on.
    """
    return sync_config(config, [name]) if config.stores[name].shape else driver_config(config, [name])


def _refuse_behind(config: Config, name: str, new: Position | None, old: Position | None, number: int) -> None:
    """Refuse to switch to a generation of another pipeline, or to one that is far behind the serving generation.

    If another pipeline built the serving generation, the two positions cannot be compared, and the switch is allowed.
    """
    progress = read_progress(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PROGRESS))
    pipeline_id = progress.pipeline_id if progress is not None else ""
    if new is not None and new.pipeline_id not in ("", pipeline_id):
        raise RefusedError(
            f"Generation {number} of {name} was built from another pipeline.",
            remedy=f"Build a new generation: tailrace bootstrap {name}",
        )
    if old is not None and old.pipeline_id not in ("", pipeline_id):
        return
    behind = (old.lsn if old is not None else 0) - (new.lsn if new is not None else 0)
    if behind > _NEARLY_THERE_BYTES:
        raise RefusedError(
            f"Generation {number} of {name} is {behind:,} bytes of WAL behind the serving generation.",
            remedy=f"Let it catch up first: tailrace sync {name} --generation {number}",
        )


def _plan(config: Config, name: str, topic_state: TopicState) -> BootstrapPlan:
    store = open_store(name, config.stores[name], config.kafka.prefix)
    try:
        serving = store.serving()
    finally:
        store.close()
    records = sum(sum(facts.ends) - sum(facts.starts) for facts in topic_state.facts.values())
    return BootstrapPlan(
        store=name,
        serving=serving.number if serving is not None else None,
        lsn=topic_state.point.lsn,
        tables=[str(table) for table in topic_state.tables.values()],
        records=records,
        reasons=topic_state.reasons,
    )
