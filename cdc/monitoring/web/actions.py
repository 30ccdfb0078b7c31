"""The actions of the dashboard: pause and resume a store, start an audit, retry parked rows.

An audit and a retry run as child processes, with the same commands that an operator would type. The end of their output
is kept.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from cdc.cli import COMMANDS
from cdc.config import Config
from cdc.errors import TransientError, UsageError
from cdc.logs import get_logger
from cdc.positions.store_notes import set_paused
from cdc.secrets import redact

log = get_logger("actions")

_MOST = 20
_KEPT_CHARACTERS = 2000
KINDS = ("pause", "resume", "audit", "retry-parked")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardAction:
    """One action. `exit_code` is None while it runs. `said`: the end of the command's output."""

    number: int
    kind: str
    store: str
    began: float
    ended: float | None = None
    exit_code: int | None = None
    said: str = ""


class Actions:
    """Runs actions and keeps the last 20. It is thread-safe. At most one of each kind runs per store."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._actions: list[DashboardAction] = []
        self._children: list[subprocess.Popen[bytes]] = []

    def as_json(self) -> list[dict[str, Any]]:
        """Return the actions, newest first."""
        with self._lock:
            return [asdict(action) for action in reversed(self._actions)]

    def do(self, kind: str, store: str) -> DashboardAction:
        """Run an action. Raises UsageError if it does not exist, TransientError if it cannot run at the moment."""
        if store not in self._config.stores:
            raise UsageError(f"The config has no store {store}.")
        if kind in ("pause", "resume"):
            set_paused(self._config, store, kind == "pause")
            log.info("store_paused" if kind == "pause" else "store_resumed", store=store)
            now = time.time()
            return self._add(DashboardAction(number=0, kind=kind, store=store, began=now, ended=now, exit_code=0))
        return self._start(kind, store)

    def stop(self) -> None:
        """Terminate the child processes that still run."""
        for child in self._children:
            if child.poll() is None:
                child.terminate()

    def _start(self, kind: str, store: str) -> DashboardAction:
        arguments = _command(kind, store)
        if self._config.file is None:
            raise UsageError("The config was not read from a file.")
        with self._lock:
            if any(each.exit_code is None and (each.kind, each.store) == (kind, store) for each in self._actions):
                raise TransientError(f"An action {kind} of store {store} is already running.")
        child = subprocess.Popen(
            [sys.executable, "-m", "cdc", *arguments, "--config", str(self._config.file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._children.append(child)
        log.info("action_started", kind=kind, store=store, pid=child.pid)
        action = self._add(DashboardAction(number=0, kind=kind, store=store, began=time.time()))
        threading.Thread(target=self._attend, args=(action, child), name=f"action {kind}", daemon=True).start()
        return action

    def _attend(self, action: DashboardAction, child: subprocess.Popen[bytes]) -> None:
        output, _ = child.communicate()
        self._children.remove(child)
        lines = [line for line in output.decode(errors="replace").splitlines() if not line.startswith("{")]
        said = redact("\n".join(lines))[-_KEPT_CHARACTERS:]
        ended = replace(action, ended=time.time(), exit_code=child.returncode, said=said)
        with self._lock:
            self._actions = [ended if each.number == action.number else each for each in self._actions]
        log.info("action_ended", kind=action.kind, store=action.store, exit_code=child.returncode)

    def _add(self, action: DashboardAction) -> DashboardAction:
        with self._lock:
            number = self._actions[-1].number + 1 if self._actions else 1
            added = replace(action, number=number)
            self._actions = [*self._actions, added][-_MOST:]
            return added


def _command(kind: str, store: str) -> list[str]:
    if kind == "retry-parked":
        return ["parked", "retry", "--store", store]
    if kind == "audit" and "audit" in COMMANDS:
        return ["audit", store]
    raise UsageError(f"There is no action {kind}.")
