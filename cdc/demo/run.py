"""Runs the demo: servers up, parts started, shown until the time is over or someone stops it, a last word on whether
all of it arrived, then all down again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass

from cdc.demo.interruption import interruptible
from cdc.demo.parts import DemoPart
from cdc.demo.view import DemoView
from deploy.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """`bring_up` starts the servers and shows how; `parts` is called once they run; `say` gets a word at the end.

    `conclude` is called when the time is over, with all parts running; it answers whether all is well.
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
        """Ends when the time is over, or on Ctrl-C or SIGTERM; raises what went wrong, after all is stopped."""
        with interruptible() as interruption, ExitStack() as cleaning:
            # Servers that ran before belong to someone else.
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
