"""The main loop of `tailrace run`: it supervises the parts until it is stopped or every part has refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from cdc.logs import get_logger
from cdc.supervisor.parts.part import EXIT_REFUSED, PipelinePart
from cdc.supervisor.terminal_view import RunView

log = get_logger("run")

_TICK_SECONDS = 0.1
# The time that each stage gets to stop. Short enough that stopping, including kills, stays below systemd's default
# stop timeout (90 s).
GRACE_SECONDS = 25.0


class Supervisor:
    """Supervises the parts. `steady`: parts that always run. `occasional`: all others, such as those that need work.

    `stages`: the order of stopping; the parts of one stage stop together. `clear_refusal`: set by the operator to
    restart the parts that refused. `is_repaired`: returns True when the cause of a refusal is gone,
    with the same effect.
    """

    def __init__(
        self,
        *,
        steady: Sequence[PipelinePart],
        occasional: Sequence[PipelinePart],
        stages: Sequence[Sequence[PipelinePart]],
        show: Callable[[RunView], None],
        stop: threading.Event,
        clear_refusal: threading.Event,
        is_repaired: Callable[[], bool] = lambda: False,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._steady = tuple(steady)
        self._parts = (*steady, *occasional)
        self._stages = tuple(tuple(stage) for stage in stages)
        self._show = show
        self._stop = stop
        self._clear_refusal = clear_refusal
        self._is_repaired = is_repaired
        self._grace_seconds = grace_seconds

    def run(self, view: RunView) -> int:
        """Supervise the parts, stop them at the end, and return the exit code."""
        try:
            return self._attend(view)
        finally:
            self._stop_all()
            self._show(view)

    def _attend(self, view: RunView) -> int:
        show_at = 0.0
        while True:
            if self._is_repaired():
                log.info("repaired", reason="the cause of a refusal was repaired: restarting the parts that refused")
                self._clear_refusal.set()
            if self._clear_refusal.is_set():
                self._clear_refusal.clear()
                for part in self._parts:
                    part.clear_refusal()
            for part in self._parts:
                part.poll()
            if all(part.is_refused for part in self._steady):
                self._show(view)
                log.error("nothing_left_to_run", reason="every part has refused")
                return max((part.exit_code or 0 for part in self._steady), default=EXIT_REFUSED)
            if time.monotonic() >= show_at:
                self._show(view)
                show_at = time.monotonic() + view.interval_seconds
            if self._stop.wait(_TICK_SECONDS):
                log.info("stopping")
                return 0

    def _stop_all(self) -> None:
        for stage in self._stages:
            for part in stage:
                part.terminate()
            if not self._ended(stage, self._grace_seconds):
                for part in stage:
                    part.kill()
                self._ended(stage, self._grace_seconds)
        log.info("stopped")

    def _ended(self, stage: Sequence[PipelinePart], deadline_seconds: float) -> bool:
        give_up_at = time.monotonic() + deadline_seconds
        while any(part.is_running for part in stage):
            for part in stage:
                part.poll()
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_TICK_SECONDS)
        return True
