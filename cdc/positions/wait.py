"""How far the stores are: `wait` for one's own write, and what `lag` says of them. Asks the stores themselves.

from cdc.config import load_config
from cdc.lsn import LSN
from cdc.positions.wait import wait_for

reached = wait_for(load_config("tailrace.toml"), ["search", "cache"], LSN.parse("16/B374D848"), timeout_seconds=5)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

from cdc.config import Config
from cdc.errors import TransientError, UsageError
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions.progress import Progress, read_progress
from cdc.stores.contract import Position, Store
from cdc.stores.registry import open_store

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePosition:
    """`position` None: nothing is served yet, or `problem` says why nobody can tell.

    `progress`: the pipeline's record; None: it was not asked for, or there is none.
    """

    name: str
    position: Position | None
    problem: str | None = None
    progress: Progress | None = None

    @property
    def lsn(self) -> LSN:
        """In the log of the present server: 0 for a store that has not come to that yet."""
        return LSN(applied_lsn(self.position, self.progress) if self.position is not None else 0)


def applied_lsn(position: Position, progress: Progress | None) -> int:
    """The position's LSN; 0 where it is another pipeline's, or from before the present base: another server's log."""
    if progress is None:
        return position.lsn
    is_known = is_of(position, progress) and position.version.position >= progress.base_from
    return position.lsn if is_known else 0


def is_of(position: Position, progress: Progress) -> bool:
    """Whether this pipeline built it. A position without an id is an older Tailrace's; its sync finds out whose."""
    return position.pipeline_id in ("", progress.pipeline_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """True if every store has the LSN."""

    reached: bool
    stores: list[StorePosition]

    def __bool__(self) -> bool:
        return self.reached


def read_position(store: Store, name: str, progress: Progress | None = None) -> StorePosition:
    """Of what readers see."""
    try:
        serving = store.serving()
        position = store.position(serving) if serving is not None else None
        return StorePosition(name=name, position=position, progress=progress)
    except TransientError as error:
        return StorePosition(name=name, position=None, problem=error.message)


def read_positions(config: Config, names: Sequence[str]) -> list[StorePosition]:
    with ExitStack() as opened:
        return [read_position(_open(config, name, opened), name) for name in names]


def wait_for(config: Config, names: Sequence[str], lsn: LSN, *, timeout_seconds: float) -> Waited:
    """Until all these stores have applied everything that committed before `lsn`, or the time is up.

    The LSN of one's own write: `SELECT pg_current_wal_insert_lsn()` after the commit.
    """
    give_up_at = time.monotonic() + timeout_seconds
    pause_seconds = _FIRST_PAUSE_SECONDS
    with ExitStack() as opened:
        asked = opened.enter_context(ThreadPoolExecutor(1)).submit(_progress, config)  # while the stores are asked
        stores = {name: _open(config, name, opened) for name in names}
        progress: Progress | None = None
        while True:
            found = [read_position(store, name, progress) for name, store in stores.items()]
            if all(each.lsn >= lsn for each in found):
                if progress is asked.result():
                    return Waited(reached=True, stores=found)
                progress = asked.result()
                continue
            if time.monotonic() >= give_up_at:
                return Waited(reached=False, stores=found)
            time.sleep(min(pause_seconds, max(0.0, give_up_at - time.monotonic())))
            pause_seconds = min(pause_seconds * 1.5, _LONGEST_PAUSE_SECONDS)


def _progress(config: Config) -> Progress | None:
    return read_progress(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PROGRESS))


def _open(config: Config, name: str, opened: ExitStack) -> Store:
    if name not in config.stores:
        known = ", ".join(config.stores) or "none"
        raise UsageError(f"There is no [stores.{name}] in the config.", remedy=f"Stores there: {known}.")
    return opened.enter_context(closing(open_store(name, config.stores[name], config.kafka.prefix)))
