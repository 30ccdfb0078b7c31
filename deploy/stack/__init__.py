"""The local stack: real Postgres, Kafka, Elasticsearch and Redis on this machine, for demo, tests and trials.

`open_stack` is the one place that decides between processes and containers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from cdc.errors import UsageError
from deploy.progress import ProgressDisplay, Quiet
from deploy.stack.choices import Wishes
from deploy.stack.local import LocalStack
from deploy.stack.model import ALL_NAMES, CONTAINERS, NAMES, PROCESSES, Server, Stack
from deploy.stack.state import load_state

__all__ = ["ALL_NAMES", "CONTAINERS", "NAMES", "PROCESSES", "ProgressDisplay", "Server", "Stack", "open_stack"]


def open_stack(
    folder: Path,
    *,
    postgres_major: int | None = None,
    ports: Mapping[str, int] | None = None,
    postgres_settings: Mapping[str, str] | None = None,
    progress: ProgressDisplay | None = None,
    kind: str | None = None,
) -> Stack:
    """The stack of a folder; starts nothing yet. What is not given is as the folder has it, else a default."""
    folder = folder.expanduser().resolve()
    wishes = Wishes(postgres_major=postgres_major, postgres_settings=postgres_settings, ports=ports or {})
    state = load_state(folder)
    if state and kind not in {None, state.kind}:
        raise UsageError(
            f"The stack in {folder} is made of {state.kind}.",
            remedy="Run `tailrace stack down --wipe` first, or use another --folder.",
        )
    chosen = state.kind if state else kind or (CONTAINERS if _has_engine() else PROCESSES)
    if chosen == PROCESSES:
        return LocalStack(folder, wishes, progress or Quiet())
    stack: Stack = _containers().ContainerStack(folder, wishes, progress or Quiet())
    return stack


def _has_engine() -> bool:
    """Whether a Docker engine on this very machine answers; a remote one's ports would not be on loopback."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    is_local = address.startswith("unix://") and Path(address.removeprefix("unix://")).exists()
    return is_local and bool(_containers().engine_answers(address))


def _containers() -> ModuleType:
    from deploy.stack import containers  # noqa: PLC0415 - Docker's libraries take 0.3 s; most machines have no engine

    return containers
