"""How far each hop is, read in a thread of its own: source, slot, topics, stores. Reads, changes nothing.

A server that is away makes its figures old, never the supervisor slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import psycopg

from cdc.config import Config
from cdc.errors import TailraceError
from cdc.lsn import LSN
from cdc.postgres import connect, explain
from cdc.secrets import redact
from cdc.store_lag import Lag, read_lag

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLag:
    """`bytes`: written at the source and not confirmed. `left_bytes`: None where the server has no limit."""

    confirmed: LSN
    bytes: int
    left_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """None where nobody can tell, and the problem says why."""

    slot: SlotLag | None = None
    slot_problem: str | None = None
    lag: Lag | None = None
    lag_problem: str | None = None
    read_at: float = 0.0  # seconds since 1970

    @property
    def problems(self) -> list[str]:
        return [problem for problem in (self.slot_problem, self.lag_problem) if problem is not None]


_SLOT = """
select confirmed_flush_lsn::text,
       greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::int8,
       safe_wal_size
from pg_replication_slots where slot_name = %s and confirmed_flush_lsn is not null
"""


def _slot(config: Config) -> SlotLag | None:
    with connect(config.source.conninfo(), application_name="tailrace run") as connection:
        row = connection.execute(_SLOT, [config.source.slot]).fetchone()
    if row is None:
        return None
    return SlotLag(confirmed=LSN.parse(row[0]), bytes=int(row[1]), left_bytes=None if row[2] is None else int(row[2]))


class HopWatch:
    """`hops` is what was read last; `interval_seconds` the pause between two readings."""

    def __init__(self, config: Config, stores: Sequence[str], interval_seconds: float) -> None:
        self.hops = Hops()
        self._config = config
        self._stores = tuple(stores)
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hops", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._read_slot()
            self._read_lag()
            self._stop.wait(self._interval_seconds)

    def _read_slot(self) -> None:
        slot, problem = _answer(lambda: _slot(self._config))
        self.hops = replace(self.hops, slot=slot, slot_problem=f"source: {problem}" if problem else None)

    def _read_lag(self) -> None:
        """Of Kafka and the stores, so it may take a while where one of them is away; the slot does not wait for it."""
        lag, problem = _answer(lambda: read_lag(self._config, self._stores))
        self.hops = replace(self.hops, lag=lag, lag_problem=problem, read_at=time.time())


def _answer(read: Callable[[], T]) -> tuple[T | None, str | None]:
    """The answer, or why there is none. A driver's own error is no reason to show nothing ever again."""
    try:
        return read(), None
    except TailraceError as error:
        return None, error.message
    except psycopg.Error as error:
        return None, explain(error)
    except Exception as error:
        return None, redact(f"{type(error).__name__}: {error}".splitlines()[0])
