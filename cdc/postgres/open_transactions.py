"""What a new slot waits for, told while it is made."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from structlog.typing import FilteringBoundLogger

from cdc.postgres import catalog


def log_open_transactions(log: FilteringBoundLogger, connection: psycopg.Connection, slot: str) -> Callable[[], None]:
    """For `ReplicationStream.create_slot`, which calls it now and then."""

    def tell() -> None:
        log.info(
            "waiting_for_open_transactions",
            slot=slot,
            reason="the slot is made once every transaction that is open now has ended",
            transactions=catalog.open_transactions(connection),
        )

    return tell
