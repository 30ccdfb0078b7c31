"""One part of the pipeline: when its process is started, what its end means, and what is known of its trouble.

No process and no clock of its own: both are given, so that every decision can be tested without waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cdc.backoff import Backoff
from cdc.logs import get_logger
from cdc.supervisor.child import LastWords, Running, TakeLine
from cdc.supervisor.child_output import as_event

log = get_logger("run")

EXIT_WRONG_USE = 2
EXIT_REFUSED = 3
# Events of the parts' own logs: trouble that they mend themselves, and the sign that it is over.
_TROUBLE = "retrying"
_WELL = frozenset(
    {"streaming", "standby", "waiting_for_first_copy", "syncing", "serving", "batch_applied", "copy_begun"}
)
# Trouble that lasts is said again before this; what nobody repeats is over.
_TROUBLE_SECONDS = 120.0

StartChild = Callable[[Sequence[str], TakeLine], Running]


class ProcessCondition(Enum):
    IDLE = "idle"  # nothing to do
    RUNNING = "running"
    WAITING = "waiting"  # it died, and is started again in a while
    REFUSED = "refused"  # a person must decide
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """What a view shows. `note`: why it does not run, or what it is trying again."""

    name: str
    condition: ProcessCondition
    pid: int | None
    restarts: int
    note: str
    remedy: str = ""


class PipelinePart:
    """`look` is called several times a second, from one thread; lines come from another."""

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
        """`may_run`: false while another pipeline leads; what runs then is asked to end. `is_due`: whether there is
        something to do; what has begun goes on. `ends_by_itself`: exit code 0 is its usual end."""
        self.name = name
        self.restarts = 0
        self.exit_code: int | None = None
        self.refusal: LastWords | None = None
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
        self._trouble: dict[str, tuple[float, str]] = {}
        self._stopping = False
        self._asked_to_end = False

    @property
    def is_running(self) -> bool:
        return self._child is not None

    @property
    def is_refused(self) -> bool:
        return self.refusal is not None

    def look(self) -> None:
        """Notice an end, and start what should run."""
        if self._child is not None:
            code = self._child.poll()
            if code is not None:
                self._ended(self._child, code)
            elif not (self._stopping or self._may_run()):
                self._ask_to_end()
        elif self._may_begin() and self._may_run() and self.is_due():
            self._begin()

    def state(self) -> PartState:
        pid = self._child.pid if self._child is not None else None
        if self.refusal is not None:
            condition, note = ProcessCondition.REFUSED, self.refusal.reason
        elif pid is not None:
            condition, note = ProcessCondition.RUNNING, self._present_trouble()
        elif self._stopping:
            condition, note = ProcessCondition.STOPPED, ""
        elif self._why_waiting:
            seconds = max(0.0, self._not_before - self._clock())
            condition, note = ProcessCondition.WAITING, f"{self._why_waiting}; next try in {seconds:.0f} s"
        else:
            condition, note = ProcessCondition.IDLE, ""
        remedy = self.refusal.remedy if self.refusal is not None else ""
        return PartState(name=self.name, condition=condition, pid=pid, restarts=self.restarts, note=note, remedy=remedy)

    # -- orders ------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Ask it to stop; it is not started again."""
        self._stopping = True
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        if self._child is not None:
            log.warning("part_killed", part=self.name, reason="it did not stop when it was asked to")
            self._child.kill()

    def forgive(self) -> None:
        """A person has mended what it refused because of: try again."""
        if self.refusal is not None:
            self.refusal = None
            self._not_before = 0.0
            self._why_waiting = ""
            self._backoff.reset()

    # -- its life ----------------------------------------------------------------------------------------------

    def arguments(self) -> Sequence[str]:
        return self._arguments

    def is_due(self) -> bool:
        return self._is_due()

    def take(self, event: dict[str, Any]) -> None:
        """A structured line of its log."""
        of = f"{event['store']}: " if "store" in event else ""
        if event.get("event") == _TROUBLE:
            self._trouble[of] = (self._clock(), str(event.get("reason", "")))
        elif event.get("event") in _WELL:
            self._trouble.pop(of, None)
            self._trouble.pop("", None)

    def judge(self, code: int, words: LastWords) -> LastWords | None:
        """The refusal, if this end is one."""
        return words if code in (EXIT_WRONG_USE, EXIT_REFUSED) else None

    def _present_trouble(self) -> str:
        since = self._clock() - _TROUBLE_SECONDS
        return "; ".join(f"{of}{why}" for of, (at, why) in sorted(self._trouble.copy().items()) if at > since)

    def _take_line(self, line: str) -> None:
        event = as_event(line)
        if event is not None:
            self.take(event)
        self._write_line(self.name, line)

    def _may_begin(self) -> bool:
        return not (self._stopping or self.is_refused) and self._clock() >= self._not_before

    def _ask_to_end(self) -> None:
        """This life, for no fault of its own: it is no refusal, and the next one begins when it may."""
        if self._child is not None and not self._asked_to_end:
            self._asked_to_end = True
            self._child.terminate()

    def _begin(self) -> None:
        self._trouble = {}
        self._started_at = self._clock()
        self._why_waiting = ""
        try:
            self._child = self._start(self.arguments(), self._take_line)
        except OSError as error:  # no memory, no processes left: as if it had died at once
            self._plan_restart(1, LastWords(f"it could not be started: {error.strerror}"))
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
        words = child.last_words()
        self.refusal = self.judge(code, words)
        if self.refusal is not None:
            log.error("part_refused", part=self.name, exit_code=code, reason=words.reason, remedy=words.remedy)
        elif code == 0 and self._ends_by_itself:
            self._backoff.reset()
            log.info("part_done", part=self.name)
        else:
            self._plan_restart(code, words)

    def _plan_restart(self, code: int, words: LastWords) -> None:
        pause = self._backoff.after(self._clock() - self._started_at)
        self._not_before = self._clock() + pause
        self.restarts += 1
        self._why_waiting = f"killed by signal {-code}" if code < 0 else f"exit code {code}: {words.reason}"
        log.warning("part_died", part=self.name, exit_code=code, reason=self._why_waiting, restart_in_seconds=pause)
