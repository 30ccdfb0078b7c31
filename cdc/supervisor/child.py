"""One child process: a `tailrace` command in its own session. A thread reads its output line by line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from cdc.supervisor.child_output import as_event

_LINES_KEPT = 60
_ERROR = "tailrace: error: "

TakeLine = Callable[[str], None]


class ExitReason(NamedTuple):
    """The error message and the remedy that a command printed before it ended."""

    reason: str
    remedy: str = ""


class Running(Protocol):
    """The interface of `Child` that a part uses. Tests implement it without a process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs. The code is negative if a signal ended the process."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def exit_reason(self) -> ExitReason: ...


class Child:
    """A child process.

    It has its own session, so that Ctrl-C reaches only the supervisor, which then stops the parts in order.
    """

    def __init__(self, arguments: Sequence[str], take_line: TakeLine) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._take_line = take_line
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cdc.supervisor.child_main", *arguments],
            stdin=subprocess.PIPE,  # it closes when the supervisor ends, which stops the child (see child_main)
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"lines of {self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None and self._process.stdin is not None and not self._process.stdin.closed:
            self._signal_group(signal.SIGKILL)  # a JVM that outlives its driver would continue to write
            self._process.stdin.close()
            self._reader.join(timeout=2)
        return code

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kill the whole process group, because Spark's JVM is a separate process."""
        self._signal_group(signal.SIGKILL)

    def exit_reason(self) -> ExitReason:
        """Return the command's last error message and its remedy; without one, its last line."""
        lines = list(self._lines)
        for place in range(len(lines) - 1, -1, -1):
            if lines[place].startswith(_ERROR):
                remedy = [line.strip() for line in lines[place + 1 :] if line.startswith("  ")]
                return ExitReason(lines[place].removeprefix(_ERROR), " ".join(remedy))
        return ExitReason(_plain(lines[-1]) if lines else "no output")

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101 - Popen was called with stdout=PIPE
        with pipe:
            for data in pipe:
                line = data.decode(errors="replace").rstrip()
                if line:
                    self._lines.append(line)
                    self._take_line(line)


def _plain(line: str) -> str:
    event = as_event(line)
    return line if event is None else str(event.get("reason") or event.get("event") or line)
