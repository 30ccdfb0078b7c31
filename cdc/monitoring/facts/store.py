"""Reads one store's state: the serving generation, its position, and a generation that is being built."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from cdc.config import Config
from cdc.errors import TailraceError, UsageError
from cdc.stores.contract import Generation, Position, Store
from cdc.stores.registry import open_store

_SILENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The state of a store. `serving` is None if it serves no data yet. `loading`: a generation that is being built."""

    serving: Generation | None
    position: Position | None
    loading: Generation | None


class StoreReader:
    """Reads the state of one store. For use by one thread. It reconnects to a store that did not answer."""

    def __init__(self, config: Config, name: str) -> None:
        if name not in config.stores:
            known = ", ".join(config.stores) or "none"
            raise UsageError(f"There is no [stores.{name}] in the config.", remedy=f"Stores there: {known}.")
        self.name = name
        self._config = config
        self._store: Store | None = None

    def read(self) -> StoreFacts:
        """Read the store's state. Raises a TailraceError if the store does not answer."""
        try:
            if self._store is None:
                self._store = open_store(self.name, self._config.stores[self.name], self._config.kafka.prefix)
            serving = self._store.serving()
            position = self._store.position(serving) if serving is not None else None
            return StoreFacts(serving=serving, position=position, loading=self._loading(self._store, serving))
        except TailraceError:
            self.close()
            raise

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(Exception):  # the client is discarded in any case
                store.close()

    def _loading(self, store: Store, serving: Generation | None) -> Generation | None:
        """Return the generation that is being built, if there is one.

        A build updates its position about every ten seconds. A generation without an update for 60 seconds was left by
        a process that died, and does not count.
        """
        newest = max(store.list_generations(), key=lambda each: each.number, default=None)
        if newest is None or newest.state != "loading" or (serving is not None and newest.number <= serving.number):
            return None
        position = store.position(newest)
        written_ms = max(newest.created_ms, position.written_ms if position is not None else 0)
        return newest if time.time() - written_ms / 1000 < _SILENCE_SECONDS else None
