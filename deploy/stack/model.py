"""What a stack is to those who use it: names, facts about a server, and the interface. No behaviour."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

NAMES: Final = ("postgres", "kafka", "elasticsearch", "redis")
#: Servers that start only by name.
OPTIONAL_NAMES: Final = ("opensearch",)
ALL_NAMES: Final = (*NAMES, *OPTIONAL_NAMES)
HOST: Final = "127.0.0.1"
# The kinds of stacks.
PROCESSES: Final = "processes"
CONTAINERS: Final = "containers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server as it is now. `pid` is None where it does not run here as a process."""

    name: str
    address: str
    host: str
    port: int
    pid: int | None
    healthy: bool
    version: str
    log: Path | None


class Stack(Protocol):
    """The local servers of one folder. Whether they are processes or containers is not the caller's business."""

    folder: Path

    def up(self, names: Sequence[str] = NAMES) -> None:
        """Starts what does not run yet and waits until all of it is healthy."""

    def down(self, *, wipe: bool = False) -> None:
        """Stops what `up` started, whichever process called it; with `wipe`, removes the data too."""

    def status(self) -> list[Server]:
        """Every server that this folder was ever asked for."""

    def server(self, name: str) -> Server:
        """One server, by name."""

    def stop(self, name: str, sig: signal.Signals = signal.SIGTERM) -> None:
        """Stops one server: SIGTERM or SIGINT in good order, SIGKILL with all its children; SIGSTOP and SIGCONT freeze
        and thaw it."""

    def start(self, name: str) -> None:
        """Starts one server again, on the same port and data."""

    def home(self, name: str) -> Path:
        """The folder with a server's data and configuration."""

    def log_path(self, name: str) -> Path:
        """The file that a server's output goes to."""


def address_of(name: str, port: int) -> str:
    """How a client names the server."""
    return {
        "postgres": f"postgresql://postgres@{HOST}:{port}/postgres",
        "kafka": f"{HOST}:{port}",
        "elasticsearch": f"http://{HOST}:{port}",
        "opensearch": f"http://{HOST}:{port}",
        "redis": f"redis://{HOST}:{port}/0",
    }[name]
