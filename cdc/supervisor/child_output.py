"""Writes the children's output to one file per part, or to standard error as JSON lines.

Secrets in a structured log line are already redacted. Other lines come from libraries, and are redacted here.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import IO, Any, Protocol

from cdc.secrets import redact

_FILE_BYTES = 20_000_000


class ChildOutput(Protocol):
    """The destination of the children's output lines."""

    def write(self, part: str, line: str) -> None: ...


def as_event(line: str) -> dict[str, Any] | None:
    """Parse a structured log line; None if the line is not a JSON object."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class OnStderr:
    """Writes each line to standard error as a JSON object with the part's name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, part: str, line: str) -> None:
        event = as_event(line) or {"event": "output", "line": redact(line)}
        with self._lock:
            sys.stderr.write(json.dumps({"part": part, **event}) + "\n")


class InFiles:
    """Writes to `FOLDER/PART.log`. At 20 MB the file is renamed to `PART.log.1`, which replaces the previous one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._files: dict[str, IO[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, part: str, line: str) -> None:
        with self._lock:
            file = self._files.get(part)
            if file is not None and file.tell() > _FILE_BYTES:
                file.close()
                path = self._path(part)
                path.replace(path.with_name(path.name + ".1"))
                file = None
            if file is None:
                file = self._files[part] = self._path(part).open("a", encoding="utf-8", buffering=1)
            file.write((redact(line) if as_event(line) is None else line) + "\n")

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _path(self, part: str) -> Path:
        return self.folder / f"{part}.log"
