"""The seam between the stack and its four servers: what a server's module must say about it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deploy.artifacts import Artifact
from deploy.stack.account import Account
from deploy.stack.process import Launch

Fetch = Callable[[Artifact], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where one server lives. `mark` goes into its environment as TAILRACE_STACK; see process.strays."""

    home: Path
    port: int
    inner_port: int  # Kafka's controller listens there; the others have none
    account: Account | None
    mark: str
    lock_fd: int

    def environ(self, **more: str) -> dict[str, str]:
        """A small environment, so that nothing of the caller's shell changes how a server behaves."""
        kept = {name: os.environ[name] for name in ("PATH", "TZ", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        return {**kept, "HOME": str(self.home), "TAILRACE_STACK": self.mark, **more}

    def write(self, name: str, content: str) -> Path:
        """Writes a file under the home, owned by whom the server runs as."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o644)
        if self.account:
            os.chown(path.parent, self.account.uid, self.account.gid)
            os.chown(path, self.account.uid, self.account.gid)
        return path

    def folder(self, name: str) -> Path:
        """Makes a folder under the home, owned by whom the server runs as."""
        path = self.home / name
        path.mkdir(parents=True, exist_ok=True)
        if self.account:
            os.chown(path, self.account.uid, self.account.gid)
        return path


class Program(Protocol):
    """One kind of server."""

    name: str
    version: str
    refuses_root: bool
    stop_signal: signal.Signals

    def install(self, fetch: Fetch) -> Path:
        """Where its program files are, fetched first where needed."""

    def prepare(self, install: Path, site: Site) -> None:
        """Makes data and configuration ready; called before every start, quick when nothing is to be done."""

    def command(self, install: Path, site: Site) -> Launch:
        """How to start it."""


def properties(settings: Mapping[str, object]) -> str:
    """`key=value` lines, as Kafka and log4j read them."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())
