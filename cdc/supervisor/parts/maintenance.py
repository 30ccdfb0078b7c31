"""The maintenance of the warehouse as a part that runs every few hours (`maintain_hours`) and ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cdc.backoff import Backoff
from cdc.config import Config, IcebergConfig
from cdc.supervisor.parts.part import PipelinePart, StartChild

# The pause after a failed run. Starting Spark again at once would be expensive.
_AGAIN_SECONDS: Final = 900.0


def maintain_hours(config: Config, name: str) -> float:
    """Return the hours between two runs of a store's maintenance; 0 means never."""
    settings = config.stores[name]
    return settings.maintain_hours if isinstance(settings, IcebergConfig) else 0.0


class MaintenancePart(PipelinePart):
    """Runs `tailrace maintain` for one store. A failed run is repeated before the next interval.

    The first run is due one interval after the supervisor's start, so that a restart does not cause a compaction.
    """

    def __init__(
        self,
        store: str,
        hours: float,
        arguments: Sequence[str],
        *,
        start: StartChild,
        write_line: Callable[[str, str], None],
        clock: Callable[[], float],
        may_run: Callable[[], bool] = lambda: True,
    ) -> None:
        self._every_seconds = hours * 3600
        self._due_at = clock() + self._every_seconds
        super().__init__(
            f"maintain-{store}",
            arguments,
            start=start,
            write_line=write_line,
            clock=clock,
            may_run=may_run,
            is_due=lambda: clock() >= self._due_at,
            ends_by_itself=True,
            when_ended=self._plan_next,
        )
        pause = min(_AGAIN_SECONDS, self._every_seconds)
        self._backoff = Backoff(first_seconds=pause, longest_seconds=pause)

    def _plan_next(self) -> None:
        if self.exit_code == 0:
            self._due_at = self._clock() + self._every_seconds
