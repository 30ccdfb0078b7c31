"""One child process: a `tailrace` command in a session of its own, whose lines are read as they come."""

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


class LastWords(NamedTuple):
    """Why a command ended, in its own words."""

    reason: str
    remedy: str = ""


class Running(Protocol):
    """What a part needs of its process; tests have one without a process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The exit code, once it has ended; minus the signal's number if a signal ended it."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def last_words(self) -> LastWords: ...


class Child:
    """In a session of its own, so that Ctrl-C reaches the supervisor alone, which stops its parts in order."""

    def __init__(self, arguments: Sequence[str], take_line: TakeLine) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._take_line = take_line
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cdc.supervisor.child_main", *arguments],
            stdin=subprocess.PIPE,  # the leash
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
            self._signal_group(signal.SIGKILL)  # a JVM that outlives its driver would go on writing
            self._process.stdin.close()
            self._reader.join(timeout=2)
        return code

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """With everything in its group: Spark's JVM is a process of its own."""
        self._signal_group(signal.SIGKILL)

    def last_words(self) -> LastWords:
        lines = list(self._lines)
        for place in range(len(lines) - 1, -1, -1):
            if lines[place].startswith(_ERROR):
                remedy = [line.strip() for line in lines[place + 1 :] if line.startswith("  ")]
                return LastWords(lines[place].removeprefix(_ERROR), " ".join(remedy))
        return LastWords(_plain(lines[-1]) if lines else "it said nothing")

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101  # asked for above
        with pipe:
            for data in pipe:
                line = data.decode(errors="replace").rstrip()
                if line:
                    self._lines.append(line)
                    self._take_line(line)


def _plain(line: str) -> str:
    event = as_event(line)
    return line if event is None else str(event.get("reason") or event.get("event") or line)
