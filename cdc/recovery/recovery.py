"""Mends a pipeline in place: a new slot, versions above everything published, and every table due for a full copy.

What makes it right:

- A full copy brings every row that the source has, at versions above all that was published before (`base_above`), and
  ends with a marker below which everything is dead: rows that only the topics or the stores still had.
- Until the last step has been committed, the progress record says "recovering", and capture does not start. So each
  step may be cut off anywhere: run again, it finds what is done, or does it once more.
- The records change in one Kafka transaction, by a producer that has fenced capture's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace as with_changes

import msgspec
import psycopg

from cdc import catalog, schema
from cdc.config import Config
from cdc.copies import first
from cdc.copies.described import describe_tables
from cdc.copies.log import CopyLog
from cdc.copies.records import CopyState, driver_transactional_id
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.masks import refuse_lost_mask
from cdc.names import Control, control_topic
from cdc.progress import KEY as PROGRESS_KEY
from cdc.progress import Progress, replace
from cdc.published_tables import ensure_publication
from cdc.published_versions import base_above
from cdc.publisher import Publisher
from cdc.recovery.findings import Finder, Findings
from cdc.recovery.highest import Highest
from cdc.recovery.mendable_topics import MendableTopics
from cdc.recovery.plan import Action, RecoveryPlan, Step
from cdc.recovery.planning import make_plan
from cdc.recovery.topic_care import Care
from cdc.replication import ReplicationStream, SlotInUse
from cdc.setup.pipeline_hold import capture_runs
from cdc.startup import drop_when_free, first_start_lock, make_publisher
from cdc.table_settings import learn_settings
from cdc.table_states import KEY as STATES_KEY
from cdc.table_states import Gone, TableStates

log = get_logger("recover")

_KAFKA_SECONDS = 30.0
# A capture that is about to refuse, or a standby that looks around, has the lock for a moment.
_LOCK_SECONDS = 5.0
PENDING_REASON = "the pipeline was recovered"


class Recovery:
    def __init__(
        self, config: Config, connection: psycopg.Connection, topics: MendableTopics, *, anyway: bool = False
    ) -> None:
        """`anyway`: also where nothing is found to be wrong."""
        self._config = config
        self._source = config.source
        self._connection = connection
        self._topics = topics
        self._anyway = anyway
        self._finder = Finder(config, connection, topics)
        self._prefix = config.kafka.prefix

    def plan(self) -> RecoveryPlan:
        return self._plan(self._finder.find())

    def _plan(self, found: Findings) -> RecoveryPlan:
        return make_plan(self._config, found, Highest(self._config, found), anyway=self._anyway)

    def carry_out(self, done: Callable[[Step], None]) -> None:
        """Calls `done` after each step."""
        with self._alone():
            found = self._finder.find()  # again: now nobody changes it any more
            plan = self._plan(found)
            if plan.refusal is not None:
                raise plan.refusal
            if plan.steps:
                self._mend(found, _Telling(plan, done))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No capture can start, and no copy."""
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

    def _mend(self, found: Findings, tell: _Telling) -> None:
        for name in found.control_policies:
            self._topics.compact(name)
            tell(Action.SET_POLICY, name)
        self._topics.ensure_control()
        publisher = make_publisher(self._config)
        try:
            abandoned = self._fence(publisher, found)
            tell(Action.FENCE)
            noted = self._note(publisher, found)
            tell(Action.NOTE)
            self._mend_publication(found)
            tell(Action.CREATE_PUBLICATION)
            tell(Action.ADD_TO_PUBLICATION)
            self._mend_topics(found, tell)
            point = self._new_slot(found, tell)
            self._write_records(publisher, noted, found, point, abandoned)
            tell(Action.UPDATE_RECORDS)
        finally:
            publisher.abandon()

    def _fence(self, publisher: Publisher, found: Findings) -> list[CopyState]:
        """Everybody who may still write is cut off. The copies that are under way, as they will be: given up."""
        publisher.fence(_KAFKA_SECONDS)
        options = self._config.kafka.client_options()
        old_name = found.progress.slot if found.progress is not None and found.progress.slot else self._source.slot
        as_it_was = with_changes(self._config, source=with_changes(self._source, slot=old_name))
        if old_name != self._source.slot:
            first.cut_off(options, f"{self._prefix}.{old_name}")
        first.cut_off(options, driver_transactional_id(self._prefix, old_name))
        if found.progress is not None and found.progress.state == "copying":
            first.interrupted(as_it_was, found.progress.copy, lambda copy: self._write(publisher, copies=[copy]))
        with CopyLog(self._config.kafka) as copies:
            known = copies.refresh_to_end().copies.values()
            return [
                msgspec.structs.replace(copy, state="abandoned", reason=PENDING_REASON, ended_ms=_now_ms())
                for copy in known
                if copy.state not in ("complete", "abandoned")
            ]

    def _note(self, publisher: Publisher, found: Findings) -> Progress:
        """From here on capture refuses. The highest version is noted too: topics that are made anew forget it."""
        highest = Highest(self._config, found).version
        progress = found.progress or _lost_progress()
        noted = replace(
            progress,
            state="recovering",
            position=highest.position,
            seq=highest.seq,
            copy="",
            slot=progress.slot or self._source.slot,
            system_identifier=found.identity.system_identifier,
            timeline=found.identity.timeline,
        )
        self._write(publisher, progress=noted)
        return noted

    def _mend_publication(self, found: Findings) -> None:
        by_topic = {state.topic: state for state in found.states.tables.values()}
        for state in found.tables.values():
            refuse_lost_mask(self._config.mask, by_topic.get(state.topic), state)
        ensure_publication(self._config, self._connection, found.chosen, add=True)

    def _mend_topics(self, found: Findings, tell: _Telling) -> None:
        for name in found.topics.policies:
            self._topics.compact(name)
            tell(Action.SET_POLICY, name)
        for name in found.topics.named(Care.REMAKE):
            self._topics.remake(name)
            tell(Action.REMAKE_TOPIC, name)
        self._topics.ensure_tables(found.topics.cares)
        tell(Action.MAKE_TOPIC)

    def _new_slot(self, found: Findings, tell: _Telling) -> LSN:
        for name, slot in (
            (found.progress.slot if found.progress else "", found.old_slot),
            (self._source.slot, found.slot),
        ):
            if slot is not None:
                drop_when_free(self._connection, name)
                tell(Action.DROP_SLOT, name)
        stream = ReplicationStream(
            self._source.conninfo(), slot=self._source.slot, publication=self._source.publication, stop=lambda: False
        )
        try:
            point = stream.create_slot(self._tell_what_it_waits_for).point
        finally:
            stream.close()
        log.info("slot_created", slot=self._source.slot, consistent_point=str(point))
        tell(Action.CREATE_SLOT)
        return point

    def _tell_what_it_waits_for(self) -> None:
        log.info(
            "waiting_for_open_transactions",
            slot=self._source.slot,
            reason="the slot is made once every transaction that is open now has ended",
            transactions=catalog.open_transactions(self._connection),
        )

    # -- the records -------------------------------------------------------------------------------------------

    def _write_records(
        self, publisher: Publisher, noted: Progress, found: Findings, point: LSN, abandoned: list[CopyState]
    ) -> None:
        """All at once: from here on capture goes on, and every table is due for a copy."""
        publication = catalog.publication(self._connection, self._source.publication)
        if publication is None:
            raise TransientError(f"Publication {self._source.publication} has vanished.", remedy="Run this again.")
        base = base_above(Version(noted.position, noted.seq), point, noted.base)
        wanted = [*found.topics.cares, *found.topics.left]
        topics = self._topics.describe(wanted)
        ids = {name: topic.id for name, topic in topics.items()}
        progress = replace(
            noted.with_base(base, point).streaming_from(point),
            seq=0,
            messages=0,
            inside_transaction=False,
            slot=self._source.slot,
            publication=publication.identity,
            publication_tables=publication.tables,
            topic_ids=ids,
            end_offsets=self._topics.end_offsets({name: topic.partitions for name, topic in topics.items()}),
            remade={**noted.remade, **{name: ids[name] for name in ids if ids[name] != noted.topic_ids.get(name)}},
            schemas={},
            written_ms=_now_ms(),
        )
        publisher.begin()
        schema_topic = control_topic(self._prefix, Control.SCHEMA)
        for each in describe_tables(self._connection, self._config, found.tables).values():
            table = each.table(each.relation)
            publisher.send(*schema.record(table, progress.version, schema_topic))
            progress = progress.with_schema(table.topic, schema.digest(table))
        states = learn_settings(self._config, _states(found, point))
        self._write(publisher, progress=progress, states=states, copies=abandoned)
        log.info("recovered", version=str(progress.version), base=base, tables=len(found.tables))

    def _write(
        self,
        publisher: Publisher,
        *,
        progress: Progress | None = None,
        states: TableStates | None = None,
        copies: list[CopyState] | None = None,
    ) -> None:
        publisher.begin()
        for copy in copies or []:
            publisher.send(control_topic(self._prefix, Control.COPIES), copy.key, copy.encode(), [])
        if states is not None:
            publisher.send(control_topic(self._prefix, Control.SCHEMA), STATES_KEY, states.encode(), [])
        if progress is not None:
            headers = [("v", str(progress.version).encode())]
            publisher.send(control_topic(self._prefix, Control.PROGRESS), PROGRESS_KEY, progress.encode(), headers)
        publisher.commit(_KAFKA_SECONDS)


class _Telling:
    """Says of the plan's steps that they are done, where the plan has them."""

    def __init__(self, plan: RecoveryPlan, done: Callable[[Step], None]) -> None:
        self._plan = plan
        self._done = done

    def __call__(self, action: Action, name: str | None = None) -> None:
        for step in self._plan.steps:
            if step.action is action and name in (None, step.name):
                self._done(step)


def _states(found: Findings, point: LSN) -> TableStates:
    """Every table is incomplete, whatever was known before; those that are gone leave an empty topic."""
    states = TableStates(
        tables=found.tables,
        emptying={topic: Gone(gone.schema, gone.table, int(point)) for topic, gone in found.gone.items()},
    )
    for state in found.tables.values():
        states = states.with_pending(state.topic, int(point), PENDING_REASON)
    return states


def _lost_progress() -> Progress:
    """Of a pipeline whose record is gone."""
    return Progress(
        state="recovering",
        position=0,
        seq=0,
        base=0,
        confirm_lsn=0,
        system_identifier="",
        timeline=0,
        publication="",
        publication_tables={},
        topic_ids={},
        end_offsets={},
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
