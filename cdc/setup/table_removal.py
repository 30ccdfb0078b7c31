"""Takes tables out of a capture that stays: publication, progress record and, where asked for, topics.

The order lets an interrupted removal be begun again at any point, and leaves capture able to start after each step but
one: between the publication and the progress record it refuses, until the removal is run again.

1. Under the hold: the publication loses the tables, then capture's records do. Capture may go on from here; their
   topics are still guarded, because the slot may hold changes from before.
2. For the topics: publish what the slot holds from before, as capture does. Otherwise a late change would make the
   topic again.
3. Under the hold again: the progress record loses the topics; then they are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from cdc.config import Config, TableSelector
from cdc.errors import RefusedError
from cdc.kafka.topics import Topic
from cdc.lsn import LSN
from cdc.names import topic
from cdc.positions import continuity
from cdc.positions.progress import Progress, replace
from cdc.postgres import catalog
from cdc.setup import source_state
from cdc.setup.catch_up import catch_up
from cdc.setup.pipeline_lock import PipelineLock, capture_runs, lock_pipeline
from cdc.setup.progress_record import last_progress
from cdc.setup.removable_topics import RemovableTopics
from cdc.setup.removal import RemovalAction, RemovalPlan
from cdc.setup.steps import Step
from cdc.tables.recorded_state import TableStates


@dataclass(frozen=True, slots=True)
class _Target:
    selector: TableSelector
    relations: dict[str, str]  # oid -> name in SQL; of the table and its partitions
    topic: str


class TableRemoval:
    def __init__(
        self,
        config: Config,
        connection: psycopg.Connection,
        topics: RemovableTopics,
        tables: Sequence[TableSelector],
        *,
        delete_topics: bool,
    ) -> None:
        self._config = config
        self._connection = connection
        self._topics = topics
        self._delete_topics = delete_topics
        self._targets = [
            _Target(table, source_state.relations_of(connection, table), _topic_of(config, table)) for table in tables
        ]
        self._oids = {oid for target in self._targets for oid in target.relations}

    # -- the plan --------------------------------------------------------------------------------------------

    def plan(self) -> RemovalPlan:
        progress = last_progress(self._config.kafka, self._topics)
        publication = catalog.publication(self._connection, self._config.source.publication)
        slot = catalog.slot(self._connection, self._config.source.slot)
        if progress is not None and slot is None:
            raise continuity.missing_slot(self._config.source.slot, progress.confirmable)
        existing = self._topics.describe(self._names())
        lost = _lost(progress, self._names(), existing)
        steps = [
            *self._publication_steps(publication),
            *self._progress_steps(publication, progress, lost),
            *(self._topic_steps(set(existing), progress, lost) if self._delete_topics else ()),
        ]
        return RemovalPlan(
            steps=tuple(steps),
            left=() if self._delete_topics else tuple(sorted(existing)),
            notes=("stores keep what they have.",) if steps and self._config.stores else (),
            refusal=self._refusal(publication, slot) if steps else None,
        )

    def _publication_steps(self, publication: catalog.Publication | None) -> list[Step]:
        return [Step(RemovalAction.ALTER_PUBLICATION, name) for name in self._published(publication)]

    def _progress_steps(
        self, publication: catalog.Publication | None, progress: Progress | None, lost: set[str]
    ) -> list[Step]:
        if progress is None:
            return []
        listed = set(progress.publication_tables) | set(publication.tables if publication else ())
        return [
            Step(RemovalAction.UPDATE_RECORDS, str(target.selector))
            for target in self._targets
            if listed & set(target.relations)
            or target.topic in lost
            or (self._delete_topics and target.topic in progress.topic_ids)
        ]

    def _topic_steps(self, existing: set[str], progress: Progress | None, lost: set[str]) -> list[Step]:
        deletes = [Step(RemovalAction.DELETE_TOPIC, name) for name in sorted(existing)]
        if progress is not None and (self._names() & set(progress.topic_ids)) - lost:
            return [Step(RemovalAction.CATCH_UP, self._config.source.slot), *deletes]
        return deletes

    def _still_selected(self) -> RefusedError | None:
        """Capture looks for new tables all the time: it would take the table in again."""
        file = self._config.file.name if self._config.file else "the config"
        for table in (target.selector for target in self._targets):
            selecting = [each for each in self._config.source.tables if each.matches(table.schema, table.table or "")]
            if selecting:
                more = "" if table in selecting else " and name the tables to keep instead"
                return RefusedError(
                    f"{file} still selects {table}: capture would take it in again.",
                    remedy=f"Take {selecting[0]} out of [source] tables{more}, then run this again.",
                )
        return None

    def _refusal(
        self, publication: catalog.Publication | None, slot: catalog.ReplicationSlot | None
    ) -> RefusedError | None:
        source = self._config.source
        if slot is not None and slot.active_pid is not None:
            return capture_runs(source.slot, f"process {slot.active_pid} of the server serves it")
        if (selected := self._still_selected()) is not None:
            return selected
        published = self._published(publication)
        if publication is None or not published:
            return None
        if not set(publication.tables) - self._oids:
            return RefusedError("No table would be left to capture.", remedy="Use: tailrace remove --all")
        ownership = source_state.publication_ownership(self._connection, source.publication)
        if ownership is not None and not ownership.ours:
            return RefusedError(
                f"Publication {source.publication} belongs to {ownership.owner}, and only its owner may change it.",
                remedy="Let the owner run this, then run `tailrace remove` again for the rest:\n"
                + source_state.drop_from_publication_sql(source.publication, published),
            )
        return None

    def _names(self) -> set[str]:
        return {target.topic for target in self._targets}

    def _published(self, publication: catalog.Publication | None) -> list[str]:
        """The names in SQL of the entries that have to go."""
        entries = publication.tables if publication else {}
        return [name for target in self._targets for oid, name in sorted(target.relations.items()) if oid in entries]

    # -- carrying it out -------------------------------------------------------------------------------------

    def carry_out(self, plan: RemovalPlan, done: Callable[[Step], None]) -> None:
        steps = {action: [step for step in plan.steps if step.action is action] for action in RemovalAction}
        if steps[RemovalAction.UPDATE_RECORDS]:
            with lock_pipeline(self._config) as hold:
                self._take_out(hold, steps[RemovalAction.ALTER_PUBLICATION], done)
            if steps[RemovalAction.CATCH_UP]:
                self._forget_topics(catch_up(self._config, self._connection))
                done(steps[RemovalAction.CATCH_UP][0])
            for step in steps[RemovalAction.UPDATE_RECORDS]:
                done(step)
        else:  # no capture has begun
            self._alter_publication(steps[RemovalAction.ALTER_PUBLICATION], done)
        for step in steps[RemovalAction.DELETE_TOPIC]:
            self._topics.delete(step.name)
            done(step)

    def _take_out(self, hold: PipelineLock, alterations: list[Step], done: Callable[[Step], None]) -> None:
        progress = self._checked(hold)
        self._alter_publication(alterations, done)
        kept = {oid: entry for oid, entry in progress.publication_tables.items() if oid not in self._oids}
        lost = _lost(progress, self._names(), self._topics.describe(self._names()))
        struck = _without_parked(_without_topics(replace(progress, publication_tables=kept), lost), self._names())
        states = hold.states and _without_tables(hold.states, self._oids, self._names())
        if (struck, states) != (progress, hold.states):
            hold.write(struck, states, gone=self._names())

    def _checked(self, hold: PipelineLock) -> Progress:
        """As capture checks at its start, save for the tables that are to go: they may be gone already."""
        source, progress = self._config.source, hold.progress
        slot = catalog.slot(self._connection, source.slot)
        if slot is None or progress is None or progress.state != "streaming":
            raise RefusedError(
                "The first start of capture has not finished.",
                remedy="Let it finish, or take all of it away: tailrace remove --all",
            )
        continuity.check_slot(progress, slot, name=source.slot, database=catalog.database_name(self._connection))
        if hold.timeline != progress.timeline and hold.system_identifier == progress.system_identifier:
            raise RefusedError(
                f"The server is on timeline {hold.timeline}, capture ran on {progress.timeline}.",
                remedy="Start capture once, which checks whether that has lost anything; then run this again.",
            )
        log_end = catalog.current_lsn(self._connection)
        continuity.check_server(progress, hold.system_identifier, hold.timeline, log_end=log_end)
        found = catalog.publication(self._connection, source.publication)
        others = {oid: entry for oid, entry in progress.publication_tables.items() if oid not in self._oids}
        continuity.check_publication(
            replace(progress, publication_tables=others),
            found
            and catalog.Publication(
                identity=found.identity,
                tables={oid: entry for oid, entry in found.tables.items() if oid not in self._oids},
            ),
            name=source.publication,
            existing_tables=catalog.existing_tables(self._connection, others),
        )
        return progress

    def _alter_publication(self, steps: list[Step], done: Callable[[Step], None]) -> None:
        if not steps:
            return
        names = [step.name for step in steps]
        source_state.run_sql(
            self._connection, source_state.drop_from_publication_sql(self._config.source.publication, names)
        )
        for step in steps:
            done(step)

    def _forget_topics(self, published_to: LSN) -> None:
        with lock_pipeline(self._config) as hold:
            progress = self._checked(hold)
            if progress.confirmable < published_to:
                raise RefusedError(
                    f"Progress stands at {progress.confirmable}, before {published_to} that was reached.",
                    remedy="Someone else works on this pipeline; stop that and run this again.",
                )
            struck = _without_parked(_without_topics(progress, self._names()), self._names())
            hold.write(struck, hold.states, gone=self._names())


def _lost(progress: Progress | None, names: set[str], existing: Mapping[str, Topic]) -> set[str]:
    """Those that capture guards and somebody has deleted or made anew: capture refuses until they are struck."""
    recorded = progress.topic_ids if progress else {}
    return {name for name in names & set(recorded) if name not in existing or existing[name].id != recorded[name]}


def _without_topics(progress: Progress, gone: set[str]) -> Progress:
    return replace(
        progress,
        topic_ids={name: value for name, value in progress.topic_ids.items() if name not in gone},
        end_offsets={name: value for name, value in progress.end_offsets.items() if name not in gone},
        schemas={name: value for name, value in progress.schemas.items() if name not in gone},
    )


def _without_parked(progress: Progress, gone: set[str]) -> Progress:
    counts = progress.parked
    return progress if counts is None else progress.with_parked({t: n for t, n in counts.items() if t not in gone})


def _without_tables(states: TableStates, oids: set[str], topics: set[str]) -> TableStates:
    """Left in, they would be taken for tables that were dropped, and capture would empty their topics."""
    return replace(
        states,
        tables={oid: t for oid, t in states.tables.items() if oid not in oids and t.topic not in topics},
        pending={name: mark for name, mark in states.pending.items() if name not in topics},
        emptying={name: table for name, table in states.emptying.items() if name not in topics},
    )


def _topic_of(config: Config, table: TableSelector) -> str:
    return topic(config.kafka.prefix, table.schema, table.table or "")
