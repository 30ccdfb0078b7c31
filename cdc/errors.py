"""Every error that Tailrace raises on purpose, grouped by how the caller handles it.

    TailraceError
    ├── UsageError          wrong usage or config: the message names the place, exit 2
    │   └── ConfigError     lists every problem found, not only the first
    ├── TransientError      retry with backoff: a server is down, a connection broke
    └── RefusedError        continuing could lose or duplicate data: the operator decides, exit 3
        └── ProtocolError   the server sent bytes that Tailrace cannot decode

A message names the table, the LSN and the remedy. It never contains a row's values or a password.
"""

from __future__ import annotations


class TailraceError(Exception):
    """The base class. `remedy` is the sentence that says what the operator has to do now."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class UsageError(TailraceError):
    """The command line or the config is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """The config is wrong. `problems` lists `(place, description)`; one message reports all of them."""

    def __init__(self, source: str, problems: list[tuple[str, str]]) -> None:
        self.source = source
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "".join(f"\n  {place}: {what}" if place else f"\n  {what}" for place, what in problems)
        super().__init__(f"{source}: {count}{lines}")


class TransientError(TailraceError):
    """A retry can succeed. The retry loop logs the error while it waits."""


class RefusedError(TailraceError):
    """Continuing could lose or duplicate data. The supervisor does not restart a process that ends with this error."""

    exit_code = 3


class ProtocolError(RefusedError):
    """The replication stream has a wrong format. Skipping the message would lose rows."""
