"""The local stack: real Postgres, Kafka, Elasticsearch and Redis on this machine, for demo, tests and trials.

`open_stack` is the one place that decides between processes and containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cdc.errors import UsageError
from deploy.progress import ProgressDisplay, Quiet
from deploy.stack.choices import Wishes
from deploy.stack.containers import KIND as CONTAINERS
from deploy.stack.containers import ContainerStack, engine_answers
from deploy.stack.local import KIND as PROCESSES
from deploy.stack.local import LocalStack
from deploy.stack.model import ALL_NAMES, NAMES, Server, Stack
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
    chosen = state.kind if state else kind or (CONTAINERS if engine_answers() else PROCESSES)
    make = ContainerStack if chosen == CONTAINERS else LocalStack
    return make(folder, wishes, progress or Quiet())
