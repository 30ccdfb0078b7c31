"""Read rows of the source by key, all in one new snapshot, in the snapshot encoding."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import psycopg

from cdc.config import Config
from cdc.errors import TransientError
from cdc.logical_messages.heartbeat import beat
from cdc.logical_messages.signed import read_secret
from cdc.lsn import LSN
from cdc.postgres import catalog
from cdc.postgres.connection import connect, explain
from cdc.postgres.visibility import Snapshot
from cdc.snapshot.rows_by_key import rows_by_key
from cdc.snapshot.source_reader import at_snapshot
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.recorded_state import TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRead:
    """Rows of one table in one snapshot.

    `rows`: by record key. `began` and `ended`: LSNs before and after the snapshot was taken. `table`: None if the table
    no longer exists or has no primary key. `state`: the table's catalog state in the snapshot, to detect changes that
    have no row events.
    """

    rows: dict[bytes, bytes]
    snapshot: Snapshot
    began: LSN
    ended: LSN
    table: DescribedTable | None
    state: TableState | None


def read_source_rows(config: Config, oid: str, keys: Collection[bytes]) -> SourceRead:
    """Read the rows with these keys from the table, in a new snapshot."""
    with connect(config.source.conninfo(), application_name="tailrace audit") as other:
        began = catalog.current_lsn(other)
        try:
            with at_snapshot(config.source.conninfo(), None) as connection:
                row = connection.execute("select pg_current_snapshot()::text").fetchone()
                assert row is not None  # noqa: S101  # a SELECT without FROM returns one row
                ended = catalog.current_lsn(other)
                table = describe_tables(connection, config, [oid]).get(oid)
                rows = {} if table is None else rows_by_key(connection, table, keys)
                state = read_catalog_states(connection, [oid], prefix=config.kafka.prefix).get(oid)
        except psycopg.Error as error:
            raise TransientError(f"Postgres: {explain(error)}") from error
    return SourceRead(rows=rows, snapshot=Snapshot.parse(row[0]), began=began, ended=ended, table=table, state=state)


def fence(config: Config) -> LSN:
    """Return an LSN at or after every commit so far.

    The function also writes a heartbeat, so that capture and the stores reach the LSN on an idle server.
    """
    with connect(config.source.conninfo(), application_name="tailrace audit") as connection:
        lsn = catalog.current_lsn(connection)
        connection.execute("set synchronous_commit = off")
        beat(connection, read_secret(config.kafka), config.source.slot)
        return lsn
