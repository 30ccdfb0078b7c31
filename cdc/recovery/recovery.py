"""Repairs a pipeline in place: a new slot, versions above all published ones, and a snapshot of every table is due.

Why the result is correct:

- A snapshot publishes every row of the source with a version above all published ones (`base_above`). It ends with a
  marker that deletes all older rows, including rows that only the topics or the stores still have.
- Until the last step is committed, the progress record has the state "recovering", and capture does not start. So a
  recovery may be interrupted at any step. The next run skips completed steps or repeats them.
- The records change in one Kafka transaction, by a producer that has fenced capture's producer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace as with_changes

import msgspec
import psycopg

from cdc.clock import now_ms
from cdc.config import Config
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.postgres.open_transactions import log_open_transactions
from cdc.postgres.replication import ReplicationStream, SlotInUse
from cdc.publishing.publisher import Publisher
from cdc.recovery.findings import Finder, Findings
from cdc.recovery.highest_version import Highest
from cdc.recovery.plan import RecoveryAction, RecoveryPlan
from cdc.recovery.planning import make_plan
from cdc.recovery.records import PENDING_REASON, RecoveryRecords
from cdc.recovery.topic_actions import TopicAction
from cdc.recovery.topic_repair import RepairableTopics
from cdc.setup.pipeline_lock import capture_runs
from cdc.setup.steps import Step
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import SnapshotState, driver_transactional_id
from cdc.startup import initial_snapshot
from cdc.startup.publication import ensure_publication
from cdc.startup.startup import drop_when_free, first_start_lock, make_publisher
from cdc.tables.event_settings import refuse_removed
from cdc.tables.mask_rules import refuse_lost_mask

log = get_logger("recover")

_KAFKA_SECONDS = 30.0
# A capture that is about to refuse, or a standby that checks the slot, holds the lock for a moment.
_LOCK_SECONDS = 5.0


class Recovery:
    def __init__(
        self, config: Config, connection: psycopg.Connection, topics: RepairableTopics, *, anyway: bool = False
    ) -> None:
        """`anyway`: recover the pipeline even if no problem is found."""
        self._config = config
        self._source = config.source
        self._connection = connection
        self._topics = topics
        self._anyway = anyway
        self._finder = Finder(config, connection, topics)
        self._prefix = config.kafka.prefix

    def plan(self) -> RecoveryPlan:
        found = self._finder.find()
        return make_plan(self._config, found, Highest(self._config, found), anyway=self._anyway)

    def carry_out(self, done: Callable[[Step], None]) -> None:
        """Carry out the plan. Calls `done` after each step."""
        with self._alone():
            found = self._finder.find()  # again: now no other process changes it
            highest = Highest(self._config, found)
            plan = make_plan(self._config, found, highest, anyway=self._anyway)
            if plan.refusal is not None:
                raise plan.refusal
            if plan.steps:
                self._repair(found, highest, _StepReporter(plan, done))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the locks without which no capture and no snapshot can start."""
        with ExitStack() as locks:
            give_up_at = time.monotonic() + _LOCK_SECONDS
            for name in (self._source.slot, f"{self._source.slot}:copy"):
                while not self._lock(locks, name):
                    if time.monotonic() > give_up_at:
                        raise capture_runs(self._source.slot, "it is starting, or `tailrace snapshot` is at work")
                    time.sleep(0.1)
            yield

    def _lock(self, locks: ExitStack, name: str) -> bool:
        try:
            locks.enter_context(first_start_lock(self._connection, name))
        except SlotInUse:
            return False
        return True

    # -- the steps ---------------------------------------------------------------------------------------------

    def _repair(self, found: Findings, highest: Highest, tell: _StepReporter) -> None:
        refuse_removed(self._config, found.states, found.tables)
        for name in found.control_policies:
            self._topics.compact(name)
            tell(RecoveryAction.SET_POLICY, name)
        self._topics.ensure_control()
        publisher = make_publisher(self._config)
        try:
            records = RecoveryRecords(self._config, self._connection, self._topics, publisher)
            abandoned = self._fence(publisher, found)
            tell(RecoveryAction.FENCE)
            noted = records.note(found, highest.version)
            tell(RecoveryAction.NOTE)
            self._repair_publication(found)
            tell(RecoveryAction.CREATE_PUBLICATION)
            tell(RecoveryAction.ADD_TO_PUBLICATION)
            self._repair_topics(found, tell)
            point = self._new_slot(found, tell)
            records.write_all(noted, found, point, abandoned)
            tell(RecoveryAction.UPDATE_RECORDS)
        finally:
            publisher.abandon()

    def _fence(self, publisher: Publisher, found: Findings) -> list[SnapshotState]:
        """Fence all producers that may still write. Returns the unfinished snapshots' records, marked as abandoned."""
        publisher.fence(_KAFKA_SECONDS)
        kafka = self._config.kafka
        old_name = found.progress.slot if found.progress is not None and found.progress.slot else self._source.slot
        as_it_was = with_changes(self._config, source=with_changes(self._source, slot=old_name))
        if old_name != self._source.slot:
            initial_snapshot.cut_off(kafka, f"{self._prefix}.{old_name}")
        initial_snapshot.cut_off(kafka, driver_transactional_id(self._prefix, old_name))
        with SnapshotLog(kafka) as copies:
            known = copies.refresh_to_end().copies
        if found.progress is not None and found.progress.state == "copying" and found.progress.copy in known:
            initial_snapshot.interrupted(as_it_was, found.progress.copy)
        return [
            msgspec.structs.replace(copy, state="abandoned", reason=PENDING_REASON, ended_ms=now_ms())
            for copy in known.values()
            if copy.state not in ("complete", "abandoned")
        ]

    def _repair_publication(self, found: Findings) -> None:
        by_topic = {state.topic: state for state in found.states.tables.values()}
        for state in found.tables.values():
            refuse_lost_mask(self._config.mask, by_topic.get(state.topic), state)
        ensure_publication(self._config, self._connection, found.chosen, add=True)

    def _repair_topics(self, found: Findings, tell: _StepReporter) -> None:
        for name in found.topics.policies:
            self._topics.compact(name)
            tell(RecoveryAction.SET_POLICY, name)
        for name in found.topics.named(TopicAction.REMAKE):
            self._topics.remake(name)
            tell(RecoveryAction.REMAKE_TOPIC, name)
        self._topics.ensure_tables(found.topics.cares)
        tell(RecoveryAction.MAKE_TOPIC)

    def _new_slot(self, found: Findings, tell: _StepReporter) -> LSN:
        for name, slot in (
            (found.progress.slot if found.progress else "", found.old_slot),
            (self._source.slot, found.slot),
        ):
            if slot is not None:
                drop_when_free(self._connection, name)
                tell(RecoveryAction.DROP_SLOT, name)
        stream = ReplicationStream(
            self._source.conninfo(), slot=self._source.slot, publication=self._source.publication, stop=lambda: False
        )
        try:
            point = stream.create_slot(log_open_transactions(log, self._connection, self._source.slot)).point
        finally:
            stream.close()
        log.info("slot_created", slot=self._source.slot, consistent_point=str(point))
        tell(RecoveryAction.CREATE_SLOT)
        return point


class _StepReporter:
    """Reports completed steps that are in the plan."""

    def __init__(self, plan: RecoveryPlan, done: Callable[[Step], None]) -> None:
        self._plan = plan
        self._done = done

    def __call__(self, action: RecoveryAction, name: str | None = None) -> None:
        for step in self._plan.steps:
            if step.action is action and name in (None, step.name):
                self._done(step)
