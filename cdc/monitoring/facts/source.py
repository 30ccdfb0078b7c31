"""Reads the source's WAL position, its clock and the state of the slot, with one query on one connection."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import psycopg

from cdc.config import Config
from cdc.errors import TransientError
from cdc.lsn import LSN
from cdc.postgres.connection import connect, explain

_LOOK = """
select pg_current_wal_insert_lsn()::text, extract(epoch from clock_timestamp())::float8,
       slot.slot_name is not null, coalesce(slot.active, false), slot.wal_status,
       slot.confirmed_flush_lsn::text, slot.restart_lsn::text, slot.safe_wal_size,
       to_jsonb(slot) ->> 'invalidation_reason'
from (select 1) as one left join pg_replication_slots as slot on slot.slot_name = %s
"""
# Time limits, so that a server that hangs does not block the reader.
_PATIENCE = {"connect_timeout": 5, "tcp_user_timeout": 5_000}
_STATEMENT_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """The slot's row in pg_replication_slots. `left_bytes` is safe_wal_size."""

    active: bool
    wal_status: str | None
    confirmed: LSN | None
    restart: LSN | None
    left_bytes: int | None
    invalidation_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """The source's state. `slot` is None if the slot does not exist."""

    lsn: LSN
    time: float
    slot: SlotRow | None


class SourceReader:
    """Reads `SourceFacts`. For use by one thread. It connects at the first read, and again after an error."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connection: psycopg.Connection | None = None

    def read(self) -> SourceFacts:
        """Read the source's state. Raises TransientError or RefusedError if the source does not answer."""
        try:
            if self._connection is None:
                self._connection = connect(self._config.source.conninfo(), application_name="tailrace lag", **_PATIENCE)
                self._connection.execute(f"set statement_timeout = {_STATEMENT_MS}")
            row = self._connection.execute(_LOOK, [self._config.source.slot]).fetchone()
        except psycopg.Error as error:
            self.close()
            raise TransientError(f"Postgres does not answer: {explain(error)}") from None
        if row is None:
            raise TransientError("Postgres returned no row.")
        lsn, time, exists, active, status, confirmed, restart, left, why = row
        slot = SlotRow(
            active=active,
            wal_status=status,
            confirmed=LSN.parse(confirmed) if confirmed else None,
            restart=LSN.parse(restart) if restart else None,
            left_bytes=int(left) if left is not None else None,
            invalidation_reason=why,
        )
        return SourceFacts(lsn=LSN.parse(lsn), time=float(time), slot=slot if exists else None)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
