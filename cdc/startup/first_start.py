"""The first start of a pipeline: creates publication, topics and slot, and makes the initial snapshot.

Capture publishes no change before the initial snapshot is complete. If capture dies during the first start, the next
start reads the state from the progress record. `creating`: nothing was published, and the first start begins again.
`copying`: the exported snapshot is lost, so the rows that were copied stay, and the other tables become incomplete.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import psycopg

from cdc.config import Config
from cdc.encoding.table_encoder import Shape
from cdc.kafka.topics import Topics
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.names import Control, control_topic
from cdc.positions import continuity
from cdc.positions.progress import KEY as PROGRESS_KEY
from cdc.positions.progress import Progress
from cdc.postgres import catalog
from cdc.postgres.catalog import Publication
from cdc.postgres.open_transactions import log_open_transactions
from cdc.postgres.replication import CreatedSlot, ReplicationStream
from cdc.publishing.parked import read_parked_rows
from cdc.publishing.published_versions import base_above, highest_version
from cdc.publishing.publisher import Publisher
from cdc.snapshot.events import full_snapshot_markers
from cdc.snapshot.records import SnapshotState
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.startup import initial_snapshot
from cdc.startup.publication import choose_tables, ensure_publication
from cdc.tables import schema_record
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.event_settings import event_settings_digests, name_of, pipeline_digest, record_settings
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import TableState, TableStates

log = get_logger("startup")

_COMMIT_SECONDS = 30.0


class FirstStart:
    """Creates a pipeline's publication, topics and slot, and brings it to the point at which streaming begins."""

    def __init__(
        self,
        config: Config,
        topics: Topics,
        connection: psycopg.Connection,
        publisher: Publisher,
        stop: threading.Event,
    ) -> None:
        self._config = config
        self._source = config.source
        self._prefix = config.kafka.prefix
        self._topics = topics
        self._connection = connection
        self._publisher = publisher
        self._stop = stop

    def run(
        self, stream: ReplicationStream, system_identifier: str, timeline: int, *, pipeline_id: str
    ) -> Progress | None:
        """Return the progress record from which to stream. None: `stop` was set before the end."""
        chosen = choose_tables(self._source, self._connection)
        publication = ensure_publication(self._config, self._connection, chosen)
        progress = Progress(
            state="creating",
            position=0,
            seq=0,
            base=0,
            confirm_lsn=0,
            pipeline_id=pipeline_id,
            slot=self._source.slot,
            system_identifier=system_identifier,
            timeline=timeline,
            publication=publication.identity,
            publication_tables=publication.tables,
            topic_ids={},
            end_offsets={},
            settings=pipeline_digest(self._config),
        )
        states = self._read_states(publication)
        progress = self._with_topics(progress, states)
        self._write(progress)
        telling = log_open_transactions(log, self._connection, self._source.slot)
        created = stream.create_slot(telling, export=self._config.snapshot.initial)
        log.info("slot_created", slot=self._source.slot, consistent_point=str(created.point))
        if not self._config.snapshot.initial:
            states = self._read_states(publication)
            progress = self._with_base(self._with_topics(progress, states), created.point)
            known = self._uncopied(states, created.point)
            copy = initial_snapshot.opened(
                "", created.point, progress.base, {}
            )  # a snapshot of no table: it only invalidates the rows that the topics already hold
            progress = self._with_older_rows_invalidated(progress.streaming_from(created.point), known, copy)
            self._write(progress, known)
            return progress
        return self._take_initial_snapshot(stream, progress, created)

    def _uncopied(self, tables: dict[str, TableState], point: LSN) -> TableStates:
        """Return the states without an initial snapshot: tables with rows are incomplete, as their topics lack them."""
        states = record_settings(self._config, TableStates(tables=tables))
        for oid in initial_snapshot.filled(self._connection, describe_tables(self._connection, self._config, tables)):
            states = states.never_copied(tables[oid].topic, point)
        return states

    def _read_states(self, publication: Publication) -> dict[str, TableState]:
        return read_catalog_states(self._connection, publication.tables, prefix=self._prefix)

    def _with_topics(self, progress: Progress, states: Mapping[str, TableState]) -> Progress:
        """Create a topic for each table, also for tables that only the publication names or that have a new name."""
        names = sorted({state.topic for state in states.values() if state.key} - progress.topic_ids.keys())
        made = self._topics.ensure_tables(names)
        for name in names:
            progress = progress.with_topic(name, made[name].id, made[name].partitions)
        return progress.with_end_offsets(self._topics.end_offsets({name: made[name].partitions for name in names}))

    def _with_base(self, progress: Progress, point: LSN) -> Progress:
        """Choose the base. Topics of an earlier pipeline may hold versions from a server with higher LSNs."""
        held = {name: len(offsets) for name, offsets in progress.end_offsets.items() if any(offsets)}
        base = base_above(highest_version(self._config.kafka, held), point, 0) if held else 0
        return progress.with_base(base, point)

    def finish_interrupted(self, progress: Progress, states: TableStates) -> Progress:
        """End an initial snapshot whose capture died, and with it the exported snapshot."""
        outcome = initial_snapshot.interrupted(self._config, progress.copy)
        if not outcome.rows and not outcome.is_complete:
            # Nothing was published. A new slot with a new initial snapshot is cheaper than incremental snapshots of all
            # tables.
            progress = progress.creating_again()
            self._write(progress, copy=initial_snapshot.ended(outcome))
            return progress
        return self._begin_streaming(progress, states, outcome)

    # -- the initial snapshot --------------------------------------------------------------------------------

    def _take_initial_snapshot(
        self, stream: ReplicationStream, progress: Progress, created: CreatedSlot
    ) -> Progress | None:
        point = created.point
        seen = initial_snapshot.read_tables_in_snapshot(
            self._config, created.snapshot, list(progress.publication_tables)
        )
        states = record_settings(self._config, TableStates(tables=seen.states))
        progress = self._with_base(self._with_topics(progress, seen.states), point)
        progress = self._write_schemas(progress, point, seen.described)
        settings = event_settings_digests(self._config, {oid: name_of(seen.states[oid]) for oid in seen.filled})
        copy = initial_snapshot.opened(created.snapshot, point, progress.base, settings)
        if not seen.filled:
            return self._begin_streaming(
                progress.snapshotting_from(point, copy.id),
                states,
                initial_snapshot.InitialSnapshotOutcome(copy, {}, rows=0, is_complete=True),
            )
        progress = progress.snapshotting_from(point, copy.id)
        self._write(progress, states, copy)
        outcome = initial_snapshot.wait_for_snapshot_job(
            self._config, copy, stream=stream, connection=self._connection, stop=self._stop
        )
        return None if outcome is None else self._begin_streaming(progress, states, outcome)

    def _begin_streaming(
        self, progress: Progress, states: TableStates, outcome: initial_snapshot.InitialSnapshotOutcome
    ) -> Progress:
        """In one Kafka transaction: end the snapshot, mark the tables that it lacks as incomplete, start streaming."""
        point = LSN(outcome.copy.point)
        copied = {name: ends for name, ends in outcome.end_offsets.items() if name in progress.end_offsets}
        continuity.check_topics(progress.with_end_offsets(copied), self._topics)
        for oid, reason in outcome.missing.items():
            if oid in states.tables:
                states = states.with_pending(states.tables[oid].topic, int(point), reason)
        progress = self._with_older_rows_invalidated(progress.streaming_from(point), states, outcome.copy)
        self._write(progress, states, initial_snapshot.ended(outcome))
        log.info("initial_snapshot_done", rows=outcome.rows, incomplete=sorted(outcome.missing.values()))
        return progress

    def _with_older_rows_invalidated(self, progress: Progress, states: TableStates, copy: SnapshotState) -> Progress:
        """Invalidate the older rows of the topics, in a Kafka transaction that the caller commits."""
        parked_topic = control_topic(self._prefix, Control.PARKED)
        parked = read_parked_rows(self._config.kafka.client_options(), parked_topic)
        self._publisher.load_parked(row for row in parked if not row.store and row.topic in progress.topic_ids)
        self._publisher.begin()
        self._invalidate_older_rows(progress, states, copy)
        self._publisher.flush(_COMMIT_SECONDS, lambda: None)
        ends = self._topics.end_offsets({name: len(offsets) for name, offsets in progress.end_offsets.items()})
        return progress.with_end_offsets(ends).with_parked(self._publisher.parked_counts)

    def _invalidate_older_rows(self, progress: Progress, states: TableStates, copy: SnapshotState) -> None:
        """Write markers to topics that hold records of an earlier pipeline: all versions before this snapshot are dead.

        Such a topic may have rows that the snapshot does not have.
        """
        database = catalog.database_name(self._connection)
        for state in states.tables.values():
            ends = progress.end_offsets.get(state.topic, [])
            if any(ends):
                shape = Shape(schema=state.schema, table=state.table, topic=state.topic, key=())
                for record in full_snapshot_markers(
                    shape, copy, pipeline=self._prefix, database=database, partitions=len(ends)
                ):
                    self._publisher.send(*record)

    def _write_schemas(self, progress: Progress, point: LSN, described: dict[str, DescribedTable]) -> Progress:
        schema_topic = control_topic(self._prefix, Control.SCHEMA)
        self._publisher.begin()
        for each in described.values():
            table = each.table(each.relation)
            self._publisher.send(*schema_record.record(table, Version(progress.base + point, 0), schema_topic))
            progress = progress.with_schema(table.topic, schema_record.schema_digest(table))
        return progress

    def _write(self, progress: Progress, states: TableStates | None = None, copy: SnapshotState | None = None) -> None:
        self._publisher.begin()
        self._publisher.send(control_topic(self._prefix, Control.PROGRESS), PROGRESS_KEY, progress.encode(), [])
        if states is not None:
            self._publisher.send(control_topic(self._prefix, Control.SCHEMA), STATES_KEY, states.encode(), [])
        if copy is not None:
            self._publisher.send(control_topic(self._prefix, Control.COPIES), copy.key, copy.encode(), [])
        self._publisher.commit(_COMMIT_SECONDS)
