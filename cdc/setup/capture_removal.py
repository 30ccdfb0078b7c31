"""Removes a whole capture: the slot, the topics if the operator requests it, and the publication.

The removal drops the slot first, because an unused slot fills the disk. It deletes the progress topic after all other
topics. While the progress record exists, no capture can start over on a half-removed pipeline. An interrupted removal
can be run again and does the remaining steps.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.names import Control, control_topic
from cdc.positions.progress import Progress
from cdc.postgres import catalog
from cdc.postgres.connection import explain
from cdc.setup import source_state
from cdc.setup.pipeline_lock import capture_runs, system_identifier
from cdc.setup.progress_record import last_progress
from cdc.setup.removable_topics import RemovableTopics
from cdc.setup.removal import RemovalAction, RemovalPlan
from cdc.setup.steps import Action, Step


class CaptureRemoval:
    """Plans and carries out the removal. With `topics` None, Kafka does not answer; the slot can still be dropped."""

    def __init__(
        self, config: Config, connection: psycopg.Connection, topics: RemovableTopics | None, *, delete_topics: bool
    ) -> None:
        self._config = config
        self._source = config.source
        self._connection = connection
        self._topics = topics
        self._delete_topics = delete_topics

    # -- the plan --------------------------------------------------------------------------------------------

    def plan(self) -> RemovalPlan:
        """Return the remaining steps, and the refusal if they cannot be carried out now."""
        progress = last_progress(self._config.kafka, self._topics) if self._topics else None
        slot = catalog.slot(self._connection, self._source.slot)
        ownership = source_state.publication_ownership(self._connection, self._source.publication)
        ours, others = self._topics_found(progress)
        steps = []
        if slot is not None:
            steps.append(Step(RemovalAction.DROP_SLOT, self._source.slot))
        if self._delete_topics:
            steps.extend(Step(RemovalAction.DELETE_TOPIC, name) for name in ours)
        if ownership is not None:
            steps.append(Step(RemovalAction.DROP_PUBLICATION, self._source.publication))
        return RemovalPlan(
            steps=tuple(steps),
            left=(*others, *(() if self._delete_topics else ours)),
            notes=tuple(self._notes(ownership, ours, others)),
            refusal=self._refusal(slot, progress),
        )

    def _topics_found(self, progress: Progress | None) -> tuple[list[str], list[str]]:
        """Return the topics of this capture, with the progress topic last, and all other topics under its prefix."""
        prefix = self._config.kafka.prefix
        known = {control_topic(prefix, control) for control in Control} | set(progress.topic_ids if progress else ())
        record = control_topic(prefix, Control.PROGRESS)
        found = self._topics.under(prefix) if self._topics else []
        ours = sorted((name for name in found if name in known), key=lambda name: (name == record, name))
        return ours, [name for name in found if name not in known]

    def _notes(self, ownership: source_state.Ownership | None, ours: list[str], others: list[str]) -> list[str]:
        prefix, notes = self._config.kafka.prefix, []
        if self._topics is None:
            notes.append(f"Kafka does not answer: the topics under {prefix} were not listed and will remain.")
        if ours and not self._delete_topics:
            notes.append(
                f"while the topics remain, no new capture can start under prefix {prefix}; --topics deletes them, "
                "`tailrace recover` continues with them."
            )
        if others and self._delete_topics:
            notes.append("topics that the progress record does not name will remain; delete them by hand if necessary.")
        if ownership is not None and not ownership.ours:
            notes.append(f"role {ownership.owner} owns publication {self._source.publication} and has to drop it.")
        if self._config.stores:
            notes.append("the stores keep their data.")
        return notes

    def _refusal(self, slot: catalog.ReplicationSlot | None, progress: Progress | None) -> RefusedError | None:
        if slot is None:
            return None
        name = self._source.slot
        if slot.plugin != "pgoutput" or slot.database != catalog.database_name(self._connection):
            return RefusedError(
                f"Slot {name} does not belong to this capture: plugin {slot.plugin}, database {slot.database}.",
                remedy="Correct [source] slot or dsn.",
            )
        if slot.active_pid is not None:
            return capture_runs(name, f"server process {slot.active_pid} is using it")
        if progress is not None and progress.system_identifier != system_identifier(self._config):
            return RefusedError(
                f"This is not the database cluster that capture read: slot {name} may belong to another pipeline.",
                remedy="Point [source] dsn at the right server. To drop the slot nevertheless, run: "
                f"select pg_drop_replication_slot('{name}');",
            )
        return None

    # -- carrying it out -------------------------------------------------------------------------------------

    def carry_out(self, plan: RemovalPlan, done: Callable[[Step], None]) -> None:
        """Carry out the steps of `plan`, and call `done` after each."""
        self._keep_starts_away()
        act: dict[Action, Callable[[str], None]] = {
            RemovalAction.DROP_SLOT: self._drop_slot,
            RemovalAction.DELETE_TOPIC: self._delete_topic,
            RemovalAction.DROP_PUBLICATION: self._drop_publication,
        }
        for step in plan.steps:
            act[step.action](step.name)
            done(step)

    def _keep_starts_away(self) -> None:
        """Take the advisory lock that capture's first start needs, and hold it until the connection ends."""
        lock = f"tailrace:{self._source.slot}"
        row = self._connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", [lock]).fetchone()
        if row is None or not row[0]:
            raise capture_runs(self._source.slot, "capture is starting")

    def _drop_slot(self, name: str) -> None:
        try:
            catalog.drop_slot(self._connection, name)
        except psycopg.errors.UndefinedObject:
            return
        except psycopg.errors.ObjectInUse as error:
            raise capture_runs(name, explain(error)) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise RefusedError(
                f"The role is not allowed to drop slot {name}: {explain(error)}.",
                remedy=f"As a role with REPLICATION, run: select pg_drop_replication_slot('{name}');",
            ) from error

    def _delete_topic(self, name: str) -> None:
        if self._topics is None:
            raise TransientError("Kafka does not answer.")
        self._topics.delete(name)

    def _drop_publication(self, name: str) -> None:
        ownership = source_state.publication_ownership(self._connection, name)
        if ownership is not None:
            source_state.run_sql(self._connection, source_state.drop_publication_sql(name))
