"""Removes tables from a capture that remains: from the publication, the progress record and, on request, the topics.

The order of the steps allows the operator to run an interrupted removal again at any point. Capture can start after
each step with one exception: between the publication and the progress record it refuses to start, until the removal is
run again.

1. With the pipeline locked: remove the tables from the publication, then from capture's records. Capture can continue
   from here. It still checks the tables' topics, because the slot may hold earlier changes for them.
2. If topics are to be deleted: publish the earlier changes that the slot holds, as capture does. Otherwise a late
   change would create the topic again.
3. With the pipeline locked again: remove the topics from the progress record, then delete them.
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
    """A table to remove."""

    selector: TableSelector
    relations: dict[str, str]  # oid -> quoted name, of the table and its partitions
    topic: str


class TableRemoval:
    """Plans and carries out the removal of tables."""

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
        """Return the remaining steps, and the refusal if they cannot be carried out now."""
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
            notes=("the stores keep their data.",) if steps and self._config.stores else (),
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
        """Return a refusal if the config still selects a table: capture polls for new tables and would add it again."""
        file = self._config.file.name if self._config.file else "the config"
        for table in (target.selector for target in self._targets):
            selecting = [each for each in self._config.source.tables if each.matches(table.schema, table.table or "")]
            if selecting:
                more = "" if table in selecting else ", name the tables to keep instead"
                return RefusedError(
                    f"{file} still selects {table}: capture would add it again.",
                    remedy=f"Remove {selecting[0]} from [source] tables{more}, then run this again.",
                )
        return None

    def _refusal(
        self, publication: catalog.Publication | None, slot: catalog.ReplicationSlot | None
    ) -> RefusedError | None:
        source = self._config.source
        if slot is not None and slot.active_pid is not None:
            return capture_runs(source.slot, f"server process {slot.active_pid} is using it")
        if (selected := self._still_selected()) is not None:
            return selected
        published = self._published(publication)
        if publication is None or not published:
            return None
        if not set(publication.tables) - self._oids:
            return RefusedError("The removal would leave no table to capture.", remedy="Use: tailrace remove --all")
        ownership = source_state.publication_ownership(self._connection, source.publication)
        if ownership is not None and not ownership.ours:
            return RefusedError(
                f"Role {ownership.owner} owns publication {source.publication}, and only the owner can change it.",
                remedy="As the owner, run this statement. Then run `tailrace remove` again for the remaining steps:\n"
                + source_state.drop_from_publication_sql(source.publication, published),
            )
        return None

    def _names(self) -> set[str]:
        return {target.topic for target in self._targets}

    def _published(self, publication: catalog.Publication | None) -> list[str]:
        """Return the quoted names of the publication's entries to remove."""
        entries = publication.tables if publication else {}
        return [name for target in self._targets for oid, name in sorted(target.relations.items()) if oid in entries]

    # -- carrying it out -------------------------------------------------------------------------------------

    def carry_out(self, plan: RemovalPlan, done: Callable[[Step], None]) -> None:
        """Carry out the steps of `plan`, and call `done` after each."""
        steps = {action: [step for step in plan.steps if step.action is action] for action in RemovalAction}
        if steps[RemovalAction.UPDATE_RECORDS]:
            with lock_pipeline(self._config) as hold:
                self._take_out(hold, steps[RemovalAction.ALTER_PUBLICATION], done)
            if steps[RemovalAction.CATCH_UP]:
                self._forget_topics(catch_up(self._config, self._connection))
                done(steps[RemovalAction.CATCH_UP][0])
            for step in steps[RemovalAction.UPDATE_RECORDS]:
                done(step)
        else:  # capture has never started
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
        """Make the checks of capture's start, without the tables to remove, which may be gone already.

        Return the progress record.
        """
        source, progress = self._config.source, hold.progress
        slot = catalog.slot(self._connection, source.slot)
        if slot is None or progress is None or progress.state != "streaming":
            raise RefusedError(
                "The first start of capture is not complete.",
                remedy="Wait until it is complete, or remove the whole capture: tailrace remove --all",
            )
        continuity.check_slot(progress, slot, name=source.slot, database=catalog.database_name(self._connection))
        if hold.timeline != progress.timeline and hold.system_identifier == progress.system_identifier:
            raise RefusedError(
                f"The server is on timeline {hold.timeline}, but capture last ran on timeline {progress.timeline}.",
                remedy="Start capture once, which checks whether changes were lost. Then run this again.",
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
                    f"The progress record is at {progress.confirmable}, but {published_to} was published.",
                    remedy="Another process is changing this pipeline. Stop it, then run this again.",
                )
            struck = _without_parked(_without_topics(progress, self._names()), self._names())
            hold.write(struck, hold.states, gone=self._names())


def _lost(progress: Progress | None, names: set[str], existing: Mapping[str, Topic]) -> set[str]:
    """Return the recorded topics that were deleted or created again.

    Capture refuses to start until they are removed from the progress record.
    """
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
    """Return the states without the removed tables, so that capture does not treat them as dropped and empty topics."""
    return replace(
        states,
        tables={oid: t for oid, t in states.tables.items() if oid not in oids and t.topic not in topics},
        pending={name: mark for name, mark in states.pending.items() if name not in topics},
        emptying={name: table for name, table in states.emptying.items() if name not in topics},
    )


def _topic_of(config: Config, table: TableSelector) -> str:
    return topic(config.kafka.prefix, table.schema, table.table or "")
