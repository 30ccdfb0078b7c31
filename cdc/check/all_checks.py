"""Runs all checks. If Postgres or Kafka does not answer, that is one finding, and the checks of the other still run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psycopg

from cdc.check import broker, publication, role, server, shapes, slot, spark, stores, tables, topics, transport
from cdc.check.findings import Finding, fail, gather, refusal
from cdc.check.managed_services import Service, find_service
from cdc.check.publication import PublicationFacts
from cdc.check.role import RoleFacts, RoleIdentity
from cdc.check.slot import SlotFacts
from cdc.check.tables import TableFacts, capturable
from cdc.check.topics import Recorded
from cdc.config import Config
from cdc.errors import TailraceError
from cdc.kafka.topics import Topics
from cdc.names import Control, control_topic, topic
from cdc.postgres import catalog
from cdc.postgres.catalog import SourceTable
from cdc.postgres.connection import connect, explain
from cdc.publishing.parked import read_parked_rows
from cdc.tables.state_reader import read_recorded_states


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    connection: psycopg.Connection
    service: Service
    role: RoleFacts
    identity: RoleIdentity | TailraceError
    slot: SlotFacts
    publication: PublicationFacts | None
    catalog_publication: catalog.Publication | None
    tables: list[SourceTable]
    facts: dict[int, TableFacts]

    def chosen(self) -> dict[SourceTable, TableFacts]:
        """Return the selected tables that capture can publish."""
        known = {table: self.facts[table.oid] for table in self.tables if table.oid in self.facts}
        return {table: facts for table, facts in known.items() if capturable(table, facts)}


def inspect(config: Config, analyze_shapes: shapes.AnalyzeShapes | None = None) -> list[Finding]:
    """Check everything that capture needs, in the order in which capture needs it. Read-only."""
    with ExitStack() as opened:
        # Read the slot before the progress record. In the other order, a running capture could advance both between
        # the two reads, and the slot would seem to be ahead of the progress record.
        source = _read_source(config, opened)
        kafka = _open_topics(config, opened)
        recorded, unread = _read_progress(config, kafka)
        findings = [source] if isinstance(source, Finding) else list(_judge_source(config, source, recorded))
        findings += [kafka] if isinstance(kafka, Finding) else gather("broker", lambda: _judge_broker(config))
        findings += unread
        if isinstance(kafka, Topics):
            chosen = [] if isinstance(source, Finding) else list(source.chosen())
            names = [topic(config.kafka.prefix, table.schema, table.name) for table in chosen]
            findings += gather("topics", lambda: _judge_topics(config, kafka, names, recorded))
        findings += spark.judge_spark(config)
        findings += stores.judge_stores(config)
        findings += gather("stores", lambda: _judge_shapes(config, source, analyze_shapes))
        return findings + gather("config", lambda: _judge_transport(config, source))


def _judge_transport(config: Config, source: _Source | Finding) -> Iterator[Finding]:
    used_password = isinstance(source, _Source) and bool(source.connection.pgconn.used_password)
    yield from transport.judge_transport(config, used_password=used_password)


def _judge_shapes(config: Config, source: _Source | Finding, analyze: shapes.AnalyzeShapes | None) -> Iterator[Finding]:
    if isinstance(source, Finding):
        yield from shapes.judge_shapes(config, None, [], analyze)
    else:
        yield from shapes.judge_shapes(config, source.connection, list(source.chosen()), analyze)


def _read_source(config: Config, opened: ExitStack) -> _Source | Finding:
    source = config.source
    try:
        connection = opened.enter_context(closing(connect(source.conninfo(), application_name="tailrace check")))
        service = find_service(connection)
        selected = catalog.tables(connection, source.tables)
        return _Source(
            connection=connection,
            service=service,
            role=role.read_role(connection, service),
            identity=role.try_replication(source),
            slot=slot.read_slot(connection, source.slot),
            publication=publication.read_publication(connection, source.publication),
            catalog_publication=catalog.publication(connection, source.publication),
            tables=selected,
            facts=tables.read_tables(connection, selected),
        )
    except TailraceError as error:
        return refusal(server.PLACE, error, "Start Postgres, or correct [source] dsn.")
    except psycopg.Error as error:
        return fail(server.PLACE, f"Postgres did not answer: {explain(error)}", "Run this check again.")


def _open_topics(config: Config, opened: ExitStack) -> Topics | Finding:
    try:
        return opened.enter_context(closing(Topics(config.kafka)))
    except TailraceError as error:
        where = config.kafka.bootstrap
        return refusal(broker.PLACE, error, f"Start Kafka, or correct [kafka] bootstrap ({where}), tls and sasl.")


def _read_progress(config: Config, kafka: Topics | Finding) -> tuple[Recorded, list[Finding]]:
    """Return the progress record, and a finding if it cannot be read."""
    if isinstance(kafka, Finding):
        return Recorded(known=False), []
    try:
        return topics.recorded_progress(config.kafka, kafka), []
    except TailraceError as error:
        place = f"topic {control_topic(config.kafka.prefix, Control.PROGRESS)}"
        return Recorded(known=False), [refusal(place, error, "Run this check again.")]


def _judge_source(config: Config, source: _Source, recorded: Recorded) -> Iterator[Finding]:
    yield from gather(server.PLACE, lambda: _judge_server(source))
    yield from gather(role.PLACE, lambda: role.judge_role(source.role, source.service, source.identity))
    yield from gather("tables", lambda: _judge_tables(config, source))
    yield from gather("publication", lambda: _judge_publication(config, source, recorded))
    identity = source.identity if isinstance(source.identity, RoleIdentity) else None
    yield from gather(
        "slot",
        lambda: slot.judge_slot(
            config.source.slot,
            source.slot,
            progress=recorded.progress,
            progress_known=recorded.known,
            identity=identity,
        ),
    )


def _judge_server(source: _Source) -> Iterator[Finding]:
    found = source.slot.slot
    yield from server.judge_server(
        server.read_server(source.connection),
        source.service,
        slot_exists=found is not None,
        slot_active=found is not None and found.active_pid is not None,
    )


def _judge_tables(config: Config, source: _Source) -> Iterator[Finding]:
    yield from tables.missing_tables(source.connection, config.source.tables, source.tables)
    published = source.publication is not None and source.publication.generated_columns
    yield from tables.judge_tables(source.tables, source.facts, role=source.role.quoted, generated_published=published)


def _judge_publication(config: Config, source: _Source, recorded: Recorded) -> Iterator[Finding]:
    name, progress, chosen = config.source.publication, recorded.progress, source.chosen()
    row = source.connection.execute("select quote_ident(%s)", [name]).fetchone()
    assert row is not None  # noqa: S101  # a select without FROM has one row
    quoted: str = row[0]
    if source.publication is None:
        yield from publication.judge_missing(name, quoted, list(chosen.values()), source.role, progress)
        return
    yield from publication.judge_publication(
        name, quoted, source.publication, chosen, allow_filters=config.source.allow_publication_filters
    )
    if progress is not None and progress.state != "creating":
        existing = catalog.existing_tables(source.connection, progress.publication_tables)
        yield from publication.judge_identity(name, source.catalog_publication, progress, existing)


def _judge_broker(config: Config) -> Iterator[Finding]:
    yield from broker.judge_broker(broker.read_broker(config), config)


def _judge_topics(config: Config, kafka: Topics, names: list[str], recorded: Recorded) -> Iterator[Finding]:
    found = topics.read_topics(config.kafka, kafka, [*names, *topics.control_names(config.kafka)])
    yield from topics.judge_control_topics(config.kafka, found)
    yield from topics.judge_tables_topics(config.kafka, names, found, recorded)
    if recorded.progress is not None:
        yield topics.judge_topic_content(recorded.progress, kafka)
        states = read_recorded_states(config)
        yield from topics.judge_completeness(config.kafka, recorded.progress, states)
        yield from topics.judge_settings(config, recorded.progress, states)
        parked_topic = control_topic(config.kafka.prefix, Control.PARKED)
        yield from topics.judge_parked(read_parked_rows(config.kafka.client_options(), parked_topic), states)
