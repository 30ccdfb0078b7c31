"""A real process under test: started in its own group, observed by its output, killed at the end.

A wait that fails shows all output of the process, so that the test need not be run again.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import IO, Final

from tests.harness.processes.waiting import eventually

ROOT: Final = Path(__file__).resolve().parents[3]
_SHOWN_CHARACTERS: Final = 20_000


class Process:
    """`output` is standard output, `errors` standard error, both complete once the process has ended."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        self.argv = tuple(argv)
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._popen = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Unbuffered, so that a line is seen when it is printed; the caller's own settings win.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=cwd or ROOT,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._collect, args=(name, pipe), daemon=True)
            for name, pipe in (("stdout", self._popen.stdout), ("stderr", self._popen.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        return "".join(self._lines["stdout"])

    @property
    def errors(self) -> str:
        return "".join(self._lines["stderr"])

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if a signal ended it."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def wait(self, deadline_seconds: float = 30.0) -> int:
        """Wait for the end, and return the exit code."""
        try:
            code = self._popen.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {deadline_seconds:g} s\n{self.transcript()}") from None
        self._finish_reading()
        return code

    def stop(self) -> None:
        """Send SIGTERM and expect exit code 0."""
        self.terminate()
        self.expect_exit(0)

    def expect_exit(self, code: int, deadline_seconds: float = 30.0) -> None:
        found = self.wait(deadline_seconds)
        assert found == code, f"exit code {found} instead of {code}\n{self.transcript()}"

    def wait_for(self, condition: Callable[[], object], deadline_seconds: float = 30.0, what: str = "") -> None:
        """Wait until `condition` is true; fail at once if the process ends before."""
        try:
            eventually(lambda: self._alive_and(condition), deadline_seconds, what or "the condition")
        except _EndedEarlyError as early:
            raise AssertionError(f"{early} before {what or 'the condition'} held\n{self.transcript()}") from None
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.transcript()}") from None

    def wait_for_line(self, pattern: str, deadline_seconds: float = 30.0) -> re.Match[str]:
        """Wait for a line of either output that matches; returns the first match."""
        found: list[re.Match[str]] = []

        def seen() -> bool:
            for line in [*self._lines["stdout"], *self._lines["stderr"]]:
                if match := re.search(pattern, line):
                    found.append(match)
                    return True
            return False

        self.wait_for(seen, deadline_seconds, f"a line like {pattern!r}")
        return found[0]

    def signal(self, number: Signals) -> None:
        """Signal the process itself, as a supervisor would."""
        self._popen.send_signal(number)

    def kill(self) -> int:
        """`kill -9` to the whole group, as the kernel's memory killer or a power cut would."""
        self._signal_group(Signals.SIGKILL)
        return self.wait()

    def terminate(self) -> None:
        self.signal(Signals.SIGTERM)

    def interrupt(self) -> None:
        """Ctrl-C: the terminal signals everyone in the foreground group."""
        self._signal_group(Signals.SIGINT)

    def freeze(self) -> None:
        """Send SIGSTOP to the group: the process exists but does nothing."""
        self._signal_group(Signals.SIGSTOP)

    def thaw(self) -> None:
        self._signal_group(Signals.SIGCONT)

    def transcript(self) -> str:
        """Command, exit and output, for a failing assertion."""
        fate = "running" if self.running else f"exit code {self.exit_code}"
        parts = [f"--- {' '.join(self.argv)} ({fate})"]
        for name, text in (("stdout", self.output), ("stderr", self.errors)):
            parts.append(f"--- {name}\n{text[-_SHOWN_CHARACTERS:]}")
        return "\n".join(parts)

    def _alive_and(self, condition: Callable[[], object]) -> bool:
        running = self.running  # asked first: what it did last still counts
        if not running:
            self._finish_reading()
        if condition():
            return True
        if not running:
            raise _EndedEarlyError(f"the process ended with exit code {self.exit_code}")
        return False

    def _signal_group(self, number: Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)  # a session leader's pid is its group's id

    def _collect(self, name: str, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        with pipe:
            for line in pipe:
                self._lines[name].append(line.decode(errors="replace"))

    def _finish_reading(self) -> None:
        # A grandchild that holds the pipe open must not hold up the test.
        for reader in self._readers:
            reader.join(timeout=5)


class _EndedEarlyError(Exception):
    pass


def tailrace_argv(*args: str) -> list[str]:
    """The argument list that runs the command under test with this interpreter."""
    return [sys.executable, "-m", "cdc", *args]


StartProcess = Callable[..., Process]
