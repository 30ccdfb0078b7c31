"""One part of the pipeline: when its process is started and restarted, and which errors it reports.

The caller passes the functions that start a process and read the clock, so that tests need neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cdc.backoff import Backoff
from cdc.logs import get_logger
from cdc.supervisor.child import ExitReason, Running, TakeLine
from cdc.supervisor.child_output import as_event

log = get_logger("run")

EXIT_WRONG_USE = 2
EXIT_REFUSED = 3
# Events in the parts' logs: an error that the part retries, and the events that show that the error is over.
_FAILURE = "retrying"
_WELL = frozenset(
    {"streaming", "standby", "waiting_for_initial_snapshot", "syncing", "serving", "batch_applied", "snapshot_started"}
)
# A part that still retries logs the error again within this time. Without a repetition, the error is over.
_TROUBLE_SECONDS = 120.0

StartChild = Callable[[Sequence[str], TakeLine], Running]


class ProcessCondition(Enum):
    """The condition of a part's process."""

    IDLE = "idle"  # there is no work
    RUNNING = "running"
    WAITING = "waiting"  # the process died, and the supervisor restarts it after a pause
    REFUSED = "refused"  # an operator must decide
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """The state of a part, for display. `note`: why it does not run, or the error that it retries."""

    name: str
    condition: ProcessCondition
    pid: int | None
    restarts: int
    note: str
    remedy: str = ""


class PipelinePart:
    """One part. One thread calls `poll` several times per second; another thread delivers the output lines."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        start: StartChild,
        write_line: Callable[[str, str], None],
        clock: Callable[[], float],
        may_run: Callable[[], bool] = lambda: True,
        is_due: Callable[[], bool] = lambda: True,
        ends_by_itself: bool = False,
        when_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_run`: false while another supervisor leads; a running process is then terminated. `is_due`: whether
        there is work; it does not affect a running process. `ends_by_itself`: the process ends with exit code 0 when
        its work is done."""
        self.name = name
        self.restarts = 0
        self.exit_code: int | None = None
        self.refusal: ExitReason | None = None
        self._arguments = tuple(arguments)
        self._start = start
        self._write_line = write_line
        self._clock = clock
        self._may_run = may_run
        self._is_due = is_due
        self._ends_by_itself = ends_by_itself
        self._when_ended = when_ended
        self._backoff = Backoff()
        self._child: Running | None = None
        self._started_at = 0.0
        self._not_before = 0.0
        self._why_waiting = ""
        self._failure: dict[str, tuple[float, str]] = {}
        self._stopping = False
        self._asked_to_end = False

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._child is not None

    @property
    def is_refused(self) -> bool:
        """Whether the part has refused, and an operator must decide."""
        return self.refusal is not None

    def poll(self) -> None:
        """Check the process: handle its end, terminate it if it may not run, or start it if it should run."""
        if self._child is not None:
            code = self._child.poll()
            if code is not None:
                self._ended(self._child, code)
            elif not (self._stopping or self._may_run()):
                self._ask_to_end()
        elif self._may_begin() and self._may_run() and self.is_due():
            self._begin()

    def state(self) -> PartState:
        """Return the state for display."""
        pid = self._child.pid if self._child is not None else None
        if self.refusal is not None:
            condition, note = ProcessCondition.REFUSED, self.refusal.reason
        elif pid is not None:
            condition, note = ProcessCondition.RUNNING, self._current_error()
        elif self._stopping:
            condition, note = ProcessCondition.STOPPED, ""
        elif self._why_waiting:
            seconds = max(0.0, self._not_before - self._clock())
            condition, note = ProcessCondition.WAITING, f"{self._why_waiting}; restart in {seconds:.0f} s"
        else:
            condition, note = ProcessCondition.IDLE, ""
        remedy = self.refusal.remedy if self.refusal is not None else ""
        return PartState(name=self.name, condition=condition, pid=pid, restarts=self.restarts, note=note, remedy=remedy)

    # -- commands ----------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Stop the process with SIGTERM. The part does not start it again."""
        self._stopping = True
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """Kill the process."""
        if self._child is not None:
            log.warning("part_killed", part=self.name, reason="it did not stop after SIGTERM")
            self._child.kill()

    def clear_refusal(self) -> None:
        """Clear the refusal, because its cause may have been repaired. The part then starts again."""
        if self.refusal is not None:
            self.refusal = None
            self._not_before = 0.0
            self._why_waiting = ""
            self._backoff.reset()

    # -- the process -------------------------------------------------------------------------------------------

    def arguments(self) -> Sequence[str]:
        """Return the arguments of the next start."""
        return self._arguments

    def is_due(self) -> bool:
        """Return whether there is work for the process."""
        return self._is_due()

    def take(self, event: dict[str, Any]) -> None:
        """Handle a structured line of the process's log."""
        of = f"{event['store']}: " if "store" in event else ""
        if event.get("event") == _FAILURE:
            self._failure[of] = (self._clock(), str(event.get("reason", "")))
        elif event.get("event") in _WELL:
            self._failure.pop(of, None)
            self._failure.pop("", None)

    def refusal_of_exit(self, code: int, reason: ExitReason) -> ExitReason | None:
        """Return the refusal if the exit code means one; otherwise None."""
        return reason if code in (EXIT_WRONG_USE, EXIT_REFUSED) else None

    def _current_error(self) -> str:
        since = self._clock() - _TROUBLE_SECONDS
        return "; ".join(f"{of}{why}" for of, (at, why) in sorted(self._failure.copy().items()) if at > since)

    def _take_line(self, line: str) -> None:
        event = as_event(line)
        if event is not None:
            self.take(event)
        self._write_line(self.name, line)

    def _may_begin(self) -> bool:
        return not (self._stopping or self.is_refused) and self._clock() >= self._not_before

    def _ask_to_end(self) -> None:
        """Terminate the running process without an error. The part starts it again when it may run."""
        if self._child is not None and not self._asked_to_end:
            self._asked_to_end = True
            self._child.terminate()

    def _begin(self) -> None:
        self._failure = {}
        self._started_at = self._clock()
        self._why_waiting = ""
        try:
            self._child = self._start(self.arguments(), self._take_line)
        except OSError as error:  # out of memory or processes: treat it as a process that died at once
            self._plan_restart(1, ExitReason(f"the process could not be started: {error.strerror}"))
            return
        log.info("part_started", part=self.name, pid=self._child.pid, restarts=self.restarts)

    def _ended(self, child: Running, code: int) -> None:
        self._child = None
        self.exit_code = code
        self._when_ended()
        asked_to_end, self._asked_to_end = self._asked_to_end, False
        if self._stopping or asked_to_end:
            self._not_before = self._clock() + self._backoff.after(self._clock() - self._started_at)
            log.info("part_stopped", part=self.name, exit_code=code)
            return
        reason = child.exit_reason()
        self.refusal = self.refusal_of_exit(code, reason)
        if self.refusal is not None:
            log.error("part_refused", part=self.name, exit_code=code, reason=reason.reason, remedy=reason.remedy)
        elif code == 0 and self._ends_by_itself:
            self._backoff.reset()
            log.info("part_done", part=self.name)
        else:
            self._plan_restart(code, reason)

    def _plan_restart(self, code: int, reason: ExitReason) -> None:
        pause = self._backoff.after(self._clock() - self._started_at)
        self._not_before = self._clock() + pause
        self.restarts += 1
        self._why_waiting = f"killed by signal {-code}" if code < 0 else f"exit code {code}: {reason.reason}"
        log.warning("part_died", part=self.name, exit_code=code, reason=self._why_waiting, restart_in_seconds=pause)
