"""Handles changes of tables in the stream: Relation and TRUNCATE messages, new topics, renamed and dropped tables."""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from cdc.capture.commit_handover import CommitHandover
from cdc.capture.events.event_rules import EventRules
from cdc.capture.events.numbering import Numbering
from cdc.config import Config
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.kafka.topics import Topics
from cdc.names import Control, control_topic
from cdc.pgoutput.messages import Relation, Truncate
from cdc.publishing.publisher import Publisher
from cdc.snapshot.incremental.window import ChunkWindows
from cdc.snapshot.table_description import describe_tables
from cdc.tables import schema_record
from cdc.tables.resolver import TableResolver


class TableMessages:
    """Keeps the table states, table topics and schema records in step with the stream and the catalog."""

    def __init__(
        self,
        config: Config,
        *,
        catalog: psycopg.Connection,
        numbering: Numbering,
        rules: EventRules,
        windows: ChunkWindows,
        commits: CommitHandover,
        publisher: Publisher,
        topics: Topics,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._tables = TableResolver(config, catalog)
        self._numbering = numbering
        self._rules = rules
        self._windows = windows
        self._commits = commits
        self._publisher = publisher
        self._topics = topics
        self._schema_topic = control_topic(config.kafka.prefix, Control.SCHEMA)

    def on_relation(self, relation: Relation, lsn: int) -> None:
        """Register a table, or its changed columns, before its next row."""
        table = self._tables.table_for(relation, self._commits.states, self._commits.progress.topic_ids)
        if table is None:
            self._rules.on_table_unpublished(relation.oid)
            return
        self._windows.disturb([table.topic], "its columns may have changed while it was read")
        # A Relation message has no LSN of its own in the stream: it precedes a row of the current transaction.
        begin = self._numbering.begin
        lsn = max(lsn, begin.final_lsn if begin is not None else 0)
        shape = table.shape
        states = self._tables.learn(relation.oid, self._commits.states, lsn)
        states = states.with_temporary_name(relation.oid, shape.schema, shape.table, shape.topic, lsn)
        self._commits.replace_states(
            states.with_renamed_columns(relation.oid, [each.name for each in relation.columns])
        )
        self._ensure_topic_and_schema(table)
        self._rules.on_table(table)

    def on_truncate(self, message: Truncate, lsn: int) -> None:
        """Publish a TRUNCATE. That of a partitioned table names all its partitions, that of a partition only itself."""
        oids = tuple(oid for oid in message.relation_oids if oid not in self._rules.unpublished)
        truncated = {str(oid) for oid in oids}
        partial = set()
        states = self._commits.states
        for oid in oids:
            root = states.root_of(oid)
            if root is not None and root.leaves and not root.leaves.keys() <= truncated:
                partial.add(root.topic)
                states = states.with_pending(root.topic, lsn, "a partition was truncated")
        self._commits.replace_states(states)
        roots = [root.topic for oid in oids if (root := states.root_of(oid)) is not None]
        self._windows.disturb(roots, "it was truncated while it was read")
        self._rules.on_truncate(Truncate(oids, message.cascade, message.restart_identity), lsn, partial)

    def introduce(self, oids: Collection[str]) -> None:
        """Create topics and schema records of snapshot tables for which no Relation message has arrived yet."""
        states = self._commits.states
        topics = {oid: states.tables[oid].topic for oid in oids if oid in states.tables}
        unknown = [oid for oid, topic in topics.items() if topic not in self._commits.progress.schemas]
        if unknown:
            described = self._commits.call(lambda: describe_tables(self._catalog, self._config, unknown))
            for each in described.values():
                self._ensure_topic_and_schema(each.table(each.relation))

    def follow_renamed_roots(self) -> None:
        """Find partitioned tables with a new name. The stream has no message for this, so compare the states."""
        for oid, table in list(self._rules.tables.items()):
            root = self._commits.states.root_of(oid)
            if root is not None and str(oid) in root.leaves and root.topic != table.topic:
                self.on_relation(table.relation, self._commits.progress.confirm_lsn)

    def empty_topics_of_dropped_tables(self, lsn: int) -> None:
        """Write truncate markers to the topics of tables that no longer exist."""
        if not self._commits.states.emptying:
            return
        self._commits.settle()  # the batch in progress must not record topics as emptied that the next batch empties
        states = self._commits.states
        live = {state.topic for state in states.tables.values()}
        due = {name: dropped for name, dropped in states.emptying.items() if dropped.seen < lsn}
        for name, dropped in due.items():
            if name not in live:
                self._rules.on_table_dropped(Shape(schema=dropped.schema, table=dropped.table, topic=name, key=()), lsn)
        self._commits.replace_states(states.emptied(due))

    def _ensure_topic_and_schema(self, table: TableEncoder) -> None:
        """Create the table's topic and publish its columns to `__schema`, before its first row."""
        commits = self._commits
        if table.topic not in commits.progress.topic_ids:
            commits.settle()
            made = commits.call(lambda: self._topics.ensure_tables([table.topic]))[table.topic]
            commits.replace_progress(commits.progress.with_topic(table.topic, made.id, made.partitions))
        digest = schema_record.schema_digest(table)
        if commits.progress.schemas.get(table.topic) != digest and not self._numbering.is_replaying:
            commits.settle()
            commits.replace_progress(commits.progress.with_schema(table.topic, digest))
            self._publisher.send(*schema_record.record(table, self._numbering.version, self._schema_topic))
