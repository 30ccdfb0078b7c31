"""The highest version that was ever published, as far as anybody still knows: progress, the topics, the stores."""

from __future__ import annotations

from functools import cached_property

from cdc.config import Config
from cdc.errors import TailraceError
from cdc.lsn import Version
from cdc.positions.wait import StorePosition, read_positions
from cdc.publishing.published_versions import highest_version
from cdc.recovery.findings import Findings


class Highest:
    def __init__(self, config: Config, found: Findings) -> None:
        self._config = config
        self._found = found

    @cached_property
    def version(self) -> Version:
        return max(self.of_progress, self.of_topics, self.of_stores)

    @property
    def of_progress(self) -> Version:
        progress = self._found.progress
        if progress is None:
            return Version(0, 0)
        return max(progress.version, Version(progress.base + progress.confirm_lsn, 0))

    @cached_property
    def of_topics(self) -> Version:
        found = {name: facts.topic.partitions for name, facts in self._found.topics.found.items() if any(facts.ends)}
        return highest_version(self._config.kafka, found)

    @property
    def of_stores(self) -> Version:
        """A store has applied what a broker may have lost since."""
        known = [each.position.version for each in self._positions if each.position is not None]
        return max((Version(*version) for version in known), default=Version(0, 0))

    @property
    def silent_stores(self) -> list[str]:
        """Those that do not say."""
        return [each.name for each in self._positions if each.problem is not None]

    @cached_property
    def _positions(self) -> list[StorePosition]:
        return [self._position(name) for name in self._config.stores]

    def _position(self, name: str) -> StorePosition:
        try:
            return read_positions(self._config, [name])[0]
        except TailraceError as error:
            return StorePosition(name=name, position=None, problem=error.message)
        except Exception as error:  # a library's own: the store does not say, and that is told
            return StorePosition(name=name, position=None, problem=f"{type(error).__name__}: {error}")
