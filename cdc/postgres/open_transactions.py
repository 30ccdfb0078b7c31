"""Logging of the open transactions that delay the creation of a slot."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from structlog.typing import FilteringBoundLogger

from cdc.postgres import catalog


def log_open_transactions(log: FilteringBoundLogger, connection: psycopg.Connection, slot: str) -> Callable[[], None]:
    """Return a function that logs the open transactions. `ReplicationStream.create_slot` calls it while it waits."""

    def tell() -> None:
        log.info(
            "waiting_for_open_transactions",
            slot=slot,
            reason="Postgres creates the slot once every transaction that is open now has ended",
            transactions=catalog.open_transactions(connection),
        )

    return tell
