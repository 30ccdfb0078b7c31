"""What a stack's folder remembers between commands, and the lock that makes commands on it take turns.

`state.json` holds the choices (ports, major, settings); `run/NAME.json` is written by each server's own process as
its first act (see launch.py). Starts and stops nothing.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cdc.errors import RefusedError
from deploy.stack.launch import start_mark, write_whole

FORMAT = 1


@dataclass(slots=True, kw_only=True)
class StackState:
    """The folder's choices; kept until it is wiped."""

    format: int = FORMAT
    kind: str = "processes"
    postgres_major: int | None = None
    postgres_settings: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRecord:
    """A server that was started: `mark` tells it from a later process with the same pid."""

    name: str
    pid: int
    mark: str
    port: int
    version: str

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return start_mark(self.pid) == self.mark


def load_state(folder: Path) -> StackState | None:
    """None where the folder has no stack yet."""
    try:
        content = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RefusedError(
            f"{folder / 'state.json'} cannot be read: {error}.",
            remedy="Run `tailrace stack down` and remove the folder.",
        ) from error
    if content.get("format", 0) > FORMAT:
        raise RefusedError(
            f"{folder} was made by a newer Tailrace (format {content['format']}, this one knows {FORMAT}).",
            remedy="Use that version, or another folder.",
        )
    return StackState(**content)


def save_state(folder: Path, state: StackState) -> None:
    """Replaces the state whole."""
    write_whole(folder / "state.json", json.dumps(asdict(state), indent=2))


def record_path(folder: Path, name: str) -> Path:
    """Where a server's process records itself."""
    return folder / "run" / f"{name}.json"


def load_record(folder: Path, name: str) -> StackRecord | None:
    """The server's last start, alive or not."""
    try:
        content = json.loads(record_path(folder, name).read_text())
    except FileNotFoundError:
        return None
    return StackRecord(**{key: content[key] for key in StackRecord.__dataclass_fields__})


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Takes turns with other commands on the folder; gives the lock's file descriptor, for children to hold too."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()
