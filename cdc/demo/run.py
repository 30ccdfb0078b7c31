"""Runs the demo: starts servers and parts, displays their figures, compares the stores, and stops everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from cdc.demo.parts import DemoPart
from cdc.demo.view import DemoView
from cdc.stop_signals import handled_by
from deploy.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One run of the demo. `bring_up` starts the servers. `parts` creates the parts, after the servers have started.

    `conclude` is called at the end, while all parts still run. It returns whether the stores are correct. `say` prints
    a line. `seconds`: how long to run; None means until Ctrl-C. `keep`: leave the servers running.
    """

    stack: Stack
    bring_up: Callable[[], None]
    parts: Callable[[Stack], Sequence[DemoPart]]
    view: Callable[[], AbstractContextManager[DemoView]]
    conclude: Callable[[], bool]
    say: Callable[[str], None]
    seconds: float | None
    keep: bool

    def run(self) -> bool:
        """Run until the time is over, or until Ctrl-C or SIGTERM. Raises an error only after everything is stopped."""
        with _interruptible() as interruption, ExitStack() as cleaning:
            # Do not stop servers that ran before the demo started.
            if not self.keep and not any(server.healthy for server in self.stack.status()):
                cleaning.callback(self._down)
            try:
                self.bring_up()
                parts = self._start_parts(cleaning)
                with suppress(KeyboardInterrupt):
                    self._watch(parts)
                interruption.expect_another()
                return self.conclude() if all(part.healthy for part in parts) else False
            except KeyboardInterrupt:
                return True
            finally:
                interruption.ignore()

    def _down(self) -> None:
        self.say("Stopping the servers.")
        self.stack.down()

    def _start_parts(self, cleaning: ExitStack) -> Sequence[DemoPart]:
        parts = self.parts(self.stack)
        for part in parts:
            part.start()
            cleaning.callback(part.stop)
        return parts

    def _watch(self, parts: Sequence[DemoPart]) -> None:
        end = None if self.seconds is None else time.monotonic() + self.seconds
        with self.view() as view:
            while all(part.healthy for part in parts):
                view.show(self.stack.status(), parts)
                pause_seconds = view.interval_seconds
                if end is not None:
                    pause_seconds = min(pause_seconds, end - time.monotonic())
                if pause_seconds <= 0:
                    return
                time.sleep(pause_seconds)


class _Interruption:
    """The handler of Ctrl-C and SIGTERM. The first signal raises KeyboardInterrupt in the main thread.

    It ignores later ones, so that a second signal does not interrupt the shutdown that the first one started.
    """

    def __init__(self) -> None:
        self._ignored = False

    def expect_another(self) -> None:
        """Let the next signal raise KeyboardInterrupt again."""
        self._ignored = False

    def ignore(self) -> None:
        """Ignore all further signals, because the program is ending."""
        self._ignored = True

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if not self._ignored:
            self._ignored = True
            raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[_Interruption]:
    """Handle both signals within the block. Only the main thread may call this."""
    interruption = _Interruption()
    with handled_by(interruption.handle):
        yield interruption
