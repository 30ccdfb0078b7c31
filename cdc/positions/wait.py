"""The positions of the stores, read from the stores themselves. `wait_for` waits until stores have an LSN.

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

from cdc.backoff import Backoff
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
    """The position of one store.

    `position` None: the store serves no generation yet, or `problem` is the error that prevented the read. `progress`:
    the pipeline's progress record. None: the caller did not read it, or there is none.
    """

    name: str
    position: Position | None
    problem: str | None = None
    progress: Progress | None = None

    @property
    def lsn(self) -> LSN:
        """The applied LSN in the WAL of the present server. 0: the store has not applied any change of that server."""
        return LSN(applied_lsn(self.position, self.progress) if self.position is not None else 0)


def applied_lsn(position: Position, progress: Progress | None) -> int:
    """Return the position's LSN.

    Returns 0 if the position is of another pipeline, or before the present base, where LSNs are another server's.
    """
    if progress is None:
        return position.lsn
    is_known = is_of(position, progress) and position.version.position >= progress.base_from
    return position.lsn if is_known else 0


def is_of(position: Position, progress: Progress) -> bool:
    """Return whether the position may be of this pipeline.

    An older Tailrace wrote positions without a pipeline id. The store's sync determines their pipeline.
    """
    return position.pipeline_id in ("", progress.pipeline_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """The result of `wait_for`. It is true if every store has reached the LSN."""

    reached: bool
    stores: list[StorePosition]

    def __bool__(self) -> bool:
        return self.reached


def read_position(store: Store, name: str, progress: Progress | None = None) -> StorePosition:
    """Return the position of the generation that the store serves to readers."""
    try:
        serving = store.serving()
        position = store.position(serving) if serving is not None else None
        return StorePosition(name=name, position=position, progress=progress)
    except TransientError as error:
        return StorePosition(name=name, position=None, problem=error.message)


def read_positions(config: Config, names: Sequence[str]) -> list[StorePosition]:
    """Return the positions of these stores."""
    with ExitStack() as opened:
        return [read_position(_open(config, name, opened), name) for name in names]


def wait_for(config: Config, names: Sequence[str], lsn: LSN, *, timeout_seconds: float) -> Waited:
    """Wait until all these stores have applied every transaction that committed before `lsn`, or until the timeout.

    To wait for a write of the caller, use `SELECT pg_current_wal_insert_lsn()` after its commit.
    """
    give_up_at = time.monotonic() + timeout_seconds
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, factor=1.5)
    with ExitStack() as opened:
        asked = opened.enter_context(ThreadPoolExecutor(1)).submit(_progress, config)  # in parallel with the stores
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
            time.sleep(min(backoff.next_delay(), max(0.0, give_up_at - time.monotonic())))


def _progress(config: Config) -> Progress | None:
    return read_progress(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PROGRESS))


def _open(config: Config, name: str, opened: ExitStack) -> Store:
    if name not in config.stores:
        known = ", ".join(config.stores) or "none"
        raise UsageError(f"There is no [stores.{name}] in the config.", remedy=f"The config has these stores: {known}.")
    return opened.enter_context(closing(open_store(name, config.stores[name], config.kafka.prefix)))
