"""What is wrong with a pipeline: everything that capture would refuse, not only the first of it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import psycopg

from cdc.config import Config
from cdc.errors import RefusedError
from cdc.kafka.control_topics import read_last
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions import continuity
from cdc.positions.progress import Progress, UnreadableProgressError
from cdc.postgres import catalog
from cdc.postgres.catalog import Publication, ReplicationSlot, SourceTable
from cdc.postgres.replication import ReplicationStream
from cdc.recovery.topic_actions import TopicActions, action_for
from cdc.recovery.topic_repair import RepairableTopics
from cdc.setup.progress_record import last_progress
from cdc.startup.publication import choose_tables
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import RemovedTable, TableState, TableStates, decode_states


class ServerIdentity(NamedTuple):
    """The server's; `forks`: the timelines that its own comes from, and where it left each."""

    system_identifier: str
    timeline: int
    forks: dict[int, LSN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """`progress` None: there is no record that can be read. `tables`: as the source has them now, by oid.

    `gone`: tables that capture knew and the source has no more, by topic.
    """

    problems: tuple[RefusedError, ...]
    progress: Progress | None
    states: TableStates
    slot: ReplicationSlot | None
    old_slot: ReplicationSlot | None  # under the name that progress was made with, where the config has another one
    publication: Publication | None
    old_publication: str | None  # its name, where the config has another one
    chosen: list[SourceTable]
    tables: dict[str, TableState]
    gone: dict[str, RemovedTable]
    topics: TopicActions
    control_policies: list[str]
    identity: ServerIdentity
    database: str


class Finder:
    def __init__(self, config: Config, connection: psycopg.Connection, topics: RepairableTopics) -> None:
        self._config = config
        self._source = config.source
        self._connection = connection
        self._topics = topics
        self._problems: list[RefusedError] = []

    def find(self) -> Findings:
        self._problems = []
        identity = self._identity()
        progress = self._progress()
        slot = catalog.slot(self._connection, self._source.slot)
        publication = catalog.publication(self._connection, self._source.publication)
        if progress is not None:
            self._check_progress(progress, identity, publication)
        self._check_slot(progress, slot)
        control_policies = self._topics.control_policies()
        self._problems += [RefusedError(f"Topic {name} is not compacted any more.") for name in control_policies]
        states = self._states(progress)
        chosen = choose_tables(self._source, self._connection)
        oids = {str(table.oid) for table in chosen} | set(publication.tables if publication is not None else ())
        tables = read_catalog_states(self._connection, oids, prefix=self._config.kafka.prefix)
        gone = self._gone(states, tables)
        wanted = {state.topic for state in tables.values()} | set(gone)
        found = self._topics.facts(wanted | set(progress.end_offsets if progress is not None else ()))
        return Findings(
            problems=tuple(self._problems),
            progress=progress,
            states=states,
            slot=slot,
            old_slot=self._old_slot(progress),
            publication=publication,
            old_publication=self._old_publication(progress, identity),
            chosen=chosen,
            tables=tables,
            gone=gone,
            topics=action_for(progress, wanted, found, self._config.kafka.partitions),
            control_policies=control_policies,
            identity=identity,
            database=catalog.database_name(self._connection),
        )

    def _check_progress(self, progress: Progress, server: ServerIdentity, publication: Publication | None) -> None:
        """As `startup` does, without ending at the first refusal."""
        self._try(lambda: continuity.check_state(progress))
        self._try(lambda: continuity.check_cluster(progress, server.system_identifier))
        self._try(lambda: continuity.check_slot_name(progress, self._source.slot))
        self._try(lambda: continuity.check_partitions_setting(progress, self._config.kafka.partitions))
        self._try(lambda: continuity.check_topics(progress, self._topics))
        if server.system_identifier != progress.system_identifier:
            return  # what follows would only say so again
        existing = catalog.existing_tables(self._connection, progress.publication_tables)
        name = self._source.publication
        self._try(lambda: continuity.check_publication(progress, publication, name=name, existing_tables=existing))
        self._try(
            lambda: continuity.check_server(
                progress,
                progress.system_identifier,
                server.timeline,
                log_end=catalog.current_lsn(self._connection),
                forked_at=server.forks.get(progress.timeline),
            )
        )

    def _check_slot(self, progress: Progress | None, slot: ReplicationSlot | None) -> None:
        name = self._source.slot
        if progress is not None and progress.state == "creating":
            return  # an interrupted first start starts again by itself
        if slot is not None:
            database = catalog.database_name(self._connection)
            self._try(lambda: continuity.check_slot(progress, slot, name=name, database=database))
        elif progress is not None and progress.slot in ("", name):
            self._problems.append(continuity.missing_slot(name, progress.confirmable))

    def _try(self, check: Callable[[], None]) -> None:
        try:
            check()
        except RefusedError as error:
            self._problems.append(error)

    def _identity(self) -> ServerIdentity:
        stream = ReplicationStream(
            self._source.conninfo(), slot=self._source.slot, publication=self._source.publication, stop=lambda: False
        )
        try:
            system_identifier, timeline = stream.identify()
            return ServerIdentity(system_identifier, timeline, stream.forks(timeline))
        finally:
            stream.close()

    def _progress(self) -> Progress | None:
        try:
            return last_progress(self._config.kafka, self._topics)
        except UnreadableProgressError as error:
            self._problems.append(error)
            return None

    def _states(self, progress: Progress | None) -> TableStates:
        name = control_topic(self._config.kafka.prefix, Control.SCHEMA)
        data = None
        if self._topics.describe([name]):
            data = read_last(self._config.kafka.client_options(), name, STATES_KEY)
        if data is not None:
            return decode_states(data)
        if progress is not None and progress.state in ("copying", "streaming"):
            self._problems.append(continuity.lost_states(name))
        return TableStates()

    def _gone(self, states: TableStates, tables: dict[str, TableState]) -> dict[str, RemovedTable]:
        """A table of another oid under the same name (a restored dump) is the same table."""
        live = {state.topic for state in tables.values()}
        unknown = [state for state in states.tables.values() if state.topic not in live]
        gone = {topic: table for topic, table in states.emptying.items() if topic not in live}
        for state in unknown:
            row = self._connection.execute(
                "select from pg_class c join pg_namespace n on n.oid = c.relnamespace "
                "where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')",
                [state.schema, state.table],
            ).fetchone()
            if row is None:  # one that is there, and not selected any more, keeps its topic as it is
                gone[state.topic] = RemovedTable(state.schema, state.table, 0)
        return gone

    def _old_slot(self, progress: Progress | None) -> ReplicationSlot | None:
        if progress is None or progress.slot in ("", self._source.slot):
            return None
        return catalog.slot(self._connection, progress.slot)

    def _old_publication(self, progress: Progress | None, server: ServerIdentity) -> str | None:
        if progress is None or progress.system_identifier != server.system_identifier:
            return None
        row = self._connection.execute(
            "select pubname::text from pg_publication where oid::text = %s and pubname <> %s",
            [progress.publication.partition("/")[0], self._source.publication],
        ).fetchone()
        return None if row is None else str(row[0])
