"""Reads the catalog with every heartbeat to find tables that were created, dropped, renamed, altered or rewritten.

The result is the next `TableStates`. This module publishes nothing. The topic of a dropped table is emptied one
heartbeat *later* (`emptying`), since only then has the stream certainly passed the last change of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import psycopg

from cdc.config import Config
from cdc.kafka.topics import Topics
from cdc.logs import get_logger
from cdc.positions import continuity
from cdc.positions.progress import Progress
from cdc.postgres import catalog
from cdc.postgres.catalog import Publication, SourceTable
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.event_settings import record_settings
from cdc.tables.mask_rules import refuse_lost_mask
from cdc.tables.recorded_state import (
    RemovedTable,
    TableState,
    TableStates,
    remembering_dropped,
    why_back,
    why_incomplete,
)

log = get_logger("watch")

# Adding a table to the publication waits for its open writers, and later writers wait behind it.
_LOCK_TIMEOUT = "2s"
_HAD_ROWS = "it was added while rows were in it"


class TableWatch:
    """Compares the catalog with the recorded states, and adds new tables to the publication."""

    def __init__(self, config: Config, connection: psycopg.Connection[Any], topics: Topics) -> None:
        self._config = config
        self._topics = topics
        self._source = config.source
        self._masks = config.mask
        self._prefix = config.kafka.prefix
        self._connection = connection
        self._warned: set[int] = set()
        self._emptying: set[str] = set()
        self._emptied: set[str] = set()  # topics that this capture has emptied with markers
        self._times_busy: Counter[int] = Counter()

    def poll(self, progress: Progress, states: TableStates) -> tuple[Publication, TableStates]:
        """Return the present publication and table states. Refuses changes to the publication by other sessions."""
        publication = catalog.publication(self._connection, self._source.publication)
        existing = catalog.existing_tables(self._connection, progress.publication_tables)
        continuity.check_publication(progress, publication, name=self._source.publication, existing_tables=existing)
        lsn = catalog.current_lsn(self._connection)
        self._emptied |= self._emptying - states.emptying.keys()
        added = self._add_new(publication, states)
        publication = catalog.publication(self._connection, self._source.publication)
        assert publication is not None  # noqa: S101  # check_publication refuses otherwise
        now = read_catalog_states(self._connection, publication.tables, prefix=self._prefix)
        for oid, state in now.items():
            refuse_lost_mask(self._masks, states.tables.get(oid), state)
        states = _advance(states, now, lsn, added, behind=catalog.current_lsn(self._connection))
        self._emptying = set(states.emptying)
        return publication, record_settings(self._config, states)

    def _add_new(self, publication: Publication | None, states: TableStates) -> dict[str, str | None]:
        """Add new tables to the publication.

        Returns, by oid, why each added table is incomplete, or None if it needs no snapshot.
        """
        published = set() if publication is None else publication.tables.keys()
        added: dict[str, str | None] = {}
        found = catalog.tables(self._connection, self._source.tables)
        for table in sorted(found, key=lambda table: self._times_busy[table.oid]):
            if str(table.oid) in published or catalog.why_not_captured(table) is not None:
                continue
            if _topic_is_taken(states, table.topic(self._prefix)):
                continue  # by a table of this name that was just dropped; capture empties its topic first
            try:
                empty = self._add(table)
            except psycopg.errors.LockNotAvailable:
                log.info("table_busy", table=str(table), reason="it has open writers; retry at the next heartbeat")
                self._times_busy[table.oid] += 1
                break  # the stream is blocked meanwhile, so wait for one busy table per heartbeat only
            except (psycopg.errors.UndefinedTable, psycopg.errors.DuplicateObject):
                continue  # another session dropped, renamed or added it after the catalog read
            except psycopg.errors.InsufficientPrivilege:
                self._warn_once(table)
                continue
            log.info("table_added", table=str(table), empty=empty)
            added[str(table.oid)] = self._why_incomplete(table) if empty else _HAD_ROWS
        return added

    def _why_incomplete(self, table: SourceTable) -> str | None:
        """Return why an empty table is incomplete, or None.

        Its topic may have old rows, if the table was removed from the pipeline earlier and is selected again.
        """
        topic = table.topic(self._prefix)
        if topic in self._emptied:
            return None
        partitions = {name: found.partitions for name, found in self._topics.describe([topic]).items()}
        ends = self._topics.end_offsets(partitions)
        return "its topic has rows from before it was added" if any(map(any, ends.values())) else None

    def _warn_once(self, table: SourceTable) -> None:
        if table.oid not in self._warned:
            self._warned.add(table.oid)
            log.warning(
                "table_not_captured",
                table=str(table),
                reason="the role may not add it to the publication",
                remedy=f"As its owner run: alter publication {self._source.publication} add table {table};",
            )

    def _add(self, table: SourceTable) -> bool:
        """Add a table to the publication and return whether it is empty.

        Takes a lock that waits for open writers, since rows that they wrote before would not be streamed.
        """
        with self._connection.transaction():
            self._connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
            catalog.lock_against_writers(self._connection, table)
            catalog.add_to_publication(self._connection, self._source.publication, table)
            return catalog.is_empty(self._connection, table)


def _topic_is_taken(states: TableStates, topic: str) -> bool:
    return topic in states.emptying or any(state.topic == topic for state in states.tables.values())


def _advance(
    states: TableStates, now: dict[str, TableState], lsn: int, added: Mapping[str, str | None], *, behind: int
) -> TableStates:
    """Return the next states.

    `added`: the tables that were just added to the publication, with the reason if they are incomplete. `behind`: an
    LSN after everything that `now` shows.
    """
    live_topics = {state.topic for state in now.values()}
    emptying = dict(states.emptying)
    now = {
        oid: remembering_dropped(states.tables[oid], state) if oid in states.tables else state
        for oid, state in now.items()
    }
    result = states.with_tables(now)
    for oid, before in states.tables.items():
        after = now.get(oid)
        if after is None or after.topic != before.topic:
            result = result.without_pending(before.topic)
            if before.topic not in live_topics:
                emptying[before.topic] = RemovedTable(before.schema, before.table, int(behind))
            log.info("table_gone" if after is None else "table_renamed", table=f"{before.schema}.{before.table}")
    for topic, stray in states.strays.items():
        if topic not in live_topics:
            emptying.setdefault(topic, RemovedTable(stray.schema, stray.table, int(behind)))
    for oid, before in states.tables.items():  # after all of the above: two tables may have swapped their names
        after = now.get(oid)
        if after is not None:
            reason = "it was renamed" if after.topic != before.topic else why_incomplete(before, after)
            reason = reason or why_back(before, after, states.away.get(before.topic, ()))
            if reason is not None:
                result = _mark(result, after, lsn, reason)
    for oid, state in now.items():
        if oid not in states.tables and (reason := added.get(oid, _HAD_ROWS)) is not None:
            result = _mark(result, state, lsn, reason)
    return msgspec.structs.replace(result, emptying=emptying, strays={}, away={})


def _mark(states: TableStates, table: TableState, lsn: int, reason: str) -> TableStates:
    log.warning("table_incomplete", table=f"{table.schema}.{table.table}", reason=reason)
    return states.with_pending(table.topic, lsn, reason)
