"""How a long first start shows what it is doing: live on a terminal, plain lines otherwise, or not at all."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class ProgressDisplay(Protocol):
    """Told from several threads; `part` is a server's name, `text` what it does now."""

    def show(self, part: str, text: str) -> None:
        """`part` now does `text`; repeated often for a download that grows."""

    def done(self, part: str, text: str) -> None:
        """`part` is finished."""


class Quiet:
    """Shows nothing: for tests and for `--json`."""

    def show(self, part: str, text: str) -> None:
        """Nothing."""

    def done(self, part: str, text: str) -> None:
        """Nothing."""


class ProgressLines:
    """A line per change of state, for logs and pipes; a growing byte count alone is not a new line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()

    def show(self, part: str, text: str) -> None:
        """Prints unless only the figure in brackets moved."""
        stem = text.partition(" (")[0]
        with self._lock:
            if self._last.get(part) == stem:
                return
            self._last[part] = stem
            self._out.write(f"{part}: {stem}\n")
            self._out.flush()

    def done(self, part: str, text: str) -> None:
        """Prints the final state."""
        self.show(part, text)


class Terminal:
    """One live row per part: spinner, what it does, elapsed time. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._rows: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        self._rich = RichProgress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.fields[part]:<14}"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )

    def __enter__(self) -> Terminal:
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.stop()

    def show(self, part: str, text: str) -> None:
        """Updates the part's row."""
        with self._lock:
            if part not in self._rows:
                self._rows[part] = self._rich.add_task(text, total=1, part=part)
        self._rich.update(self._rows[part], description=text)

    def done(self, part: str, text: str) -> None:
        """Ticks the part's row off."""
        self.show(part, text)
        self._rich.update(self._rows[part], completed=1)


def lines_on_stderr() -> ProgressLines:
    """What a command uses where stderr is not a terminal."""
    return ProgressLines(sys.stderr)
