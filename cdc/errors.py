"""Every error Tailrace raises on purpose, branched by what the caller does about it.

    TailraceError
    ├── UsageError          wrong use or config: say what and where, exit 2
    │   └── ConfigError     carries every problem found, not only the first
    ├── TransientError      try again with backoff: a server is down, a connection broke
    ├── RefusedError        going on could lose or double data: a person decides, exit 3
    │   └── ProtocolError   the server sent bytes that we cannot understand
    └── ParkedError         this one record cannot be delivered; everything else flows

Messages name the table, the LSN and the remedy; never a row's values, never a password.
"""

from __future__ import annotations


class TailraceError(Exception):
    """Root. `remedy` is the sentence that tells the reader what to do now."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class UsageError(TailraceError):
    exit_code = 2


class ConfigError(UsageError):
    """`problems` lists `(place, what is wrong)`, for one report that shows them all."""

    def __init__(self, source: str, problems: list[tuple[str, str]]) -> None:
        self.source = source
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "".join(f"\n  {place}: {what}" if place else f"\n  {what}" for place, what in problems)
        super().__init__(f"{source}: {count}{lines}")


class TransientError(TailraceError):
    """Worth another try; the retry loop shows it while it waits."""


class RefusedError(TailraceError):
    """A supervisor never restarts this by itself."""

    exit_code = 3


class ProtocolError(RefusedError):
    """The replication stream broke its own format; skipping ahead would lose rows."""


class ParkedError(TailraceError):
    """One record that a topic or a store cannot take."""
