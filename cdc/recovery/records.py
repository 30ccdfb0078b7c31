"""Writes a recovery's records: at its start that it has begun, at its end where capture continues and what is due."""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from cdc.clock import now_ms
from cdc.config import Config
from cdc.errors import TransientError
from cdc.kafka.topics import Topics
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.names import Control, control_topic
from cdc.positions.progress import KEY as PROGRESS_KEY
from cdc.positions.progress import Progress, replace
from cdc.postgres import catalog
from cdc.publishing.published_versions import base_above
from cdc.publishing.publisher import Publisher
from cdc.recovery.findings import Findings
from cdc.snapshot.records import SnapshotState
from cdc.snapshot.table_description import describe_tables
from cdc.tables import schema_record
from cdc.tables.event_settings import pipeline_digest, record_settings
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import RemovedTable, TableStates

log = get_logger("recover")

_KAFKA_SECONDS = 30.0
PENDING_REASON = "the pipeline was recovered"


class RecoveryRecords:
    """Writes the records. `publisher` has fenced capture's producer. Each call is one Kafka transaction."""

    def __init__(self, config: Config, connection: psycopg.Connection, topics: Topics, publisher: Publisher) -> None:
        self._config = config
        self._source = config.source
        self._prefix = config.kafka.prefix
        self._connection = connection
        self._topics = topics
        self._publisher = publisher

    def note(self, found: Findings, highest: Version) -> Progress:
        """Record that a recovery has begun, so that capture refuses. Also keep the highest version for new topics."""
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
        self.write(progress=noted)
        return noted

    def write_all(self, noted: Progress, found: Findings, point: LSN, abandoned: Collection[SnapshotState]) -> None:
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
            commit_lsn=0,
            slot=self._source.slot,
            publication=publication.identity,
            publication_tables=publication.tables,
            topic_ids=ids,
            end_offsets=self._topics.end_offsets({name: topic.partitions for name, topic in topics.items()}),
            remade={**noted.remade, **{name: ids[name] for name in ids if ids[name] != noted.topic_ids.get(name)}},
            schemas={},
            settings=pipeline_digest(self._config),
            written_ms=now_ms(),
            recoveries=noted.recoveries + 1,
        )
        self._publisher.begin()
        schema_topic = control_topic(self._prefix, Control.SCHEMA)
        for each in describe_tables(self._connection, self._config, found.tables).values():
            table = each.table(each.relation)
            self._publisher.send(*schema_record.record(table, progress.version, schema_topic))
            progress = progress.with_schema(table.topic, schema_record.schema_digest(table))
        states = record_settings(self._config, _states(found, point))
        self.write(progress=progress, states=states, copies=abandoned)
        log.info("recovered", version=str(progress.version), base=base, tables=len(found.tables))

    def write(
        self,
        *,
        progress: Progress | None = None,
        states: TableStates | None = None,
        copies: Collection[SnapshotState] = (),
    ) -> None:
        publisher = self._publisher
        publisher.begin()
        for copy in copies:
            publisher.send(control_topic(self._prefix, Control.COPIES), copy.key, copy.encode(), [])
        if states is not None:
            publisher.send(control_topic(self._prefix, Control.SCHEMA), STATES_KEY, states.encode(), [])
        if progress is not None:
            headers = [("v", str(progress.version).encode())]
            publisher.send(control_topic(self._prefix, Control.PROGRESS), PROGRESS_KEY, progress.encode(), headers)
        publisher.commit(_KAFKA_SECONDS)


def _states(found: Findings, point: LSN) -> TableStates:
    """Every table is incomplete, whatever was known before; those that are gone leave an empty topic."""
    states = TableStates(
        tables=found.tables,
        emptying={topic: RemovedTable(gone.schema, gone.table, int(point)) for topic, gone in found.gone.items()},
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
