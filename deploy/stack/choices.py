"""What is decided before a stack starts, the same for processes and containers: names, ports, major, settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cdc.errors import UsageError
from deploy.stack.model import ALL_NAMES, NAMES
from deploy.stack.ports import choose_port, is_free
from deploy.stack.state import StackState
from deploy.versions import POSTGRES, POSTGRES_DEFAULT_MAJOR

T = TypeVar("T")

DOWN_FIRST = "Run `tailrace stack down` first, or use another --folder."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the caller asked for; what is None or missing stays as the folder has it."""

    postgres_major: int | None
    postgres_settings: Mapping[str, str] | None
    ports: Mapping[str, int]

    def __post_init__(self) -> None:
        checked(list(self.ports))
        if self.postgres_major not in {None, *POSTGRES}:
            majors = ", ".join(str(major) for major in POSTGRES)
            raise UsageError(f"There is no Postgres {self.postgres_major} here.", remedy=f"Choose one of {majors}.")

    def major(self, state: StackState) -> int:
        """The Postgres major to run."""
        return self.postgres_major or state.postgres_major or POSTGRES_DEFAULT_MAJOR

    def settings(self, state: StackState) -> Mapping[str, str]:
        """Postgres settings on top of the stack's own."""
        return state.postgres_settings if self.postgres_settings is None else self.postgres_settings


def settle(
    state: StackState, wishes: Wishes, names: Sequence[str], *, running: Callable[[str], bool], folder: Path
) -> None:
    """Fills in what is not decided yet; refuses a wish that a running server cannot follow."""
    major = wishes.major(state)
    if state.postgres_major not in {None, major} and running("postgres"):
        raise UsageError(
            f"Postgres {state.postgres_major} runs in {folder}, and {major} is asked for.", remedy=DOWN_FIRST
        )
    state.postgres_major = major
    state.postgres_settings = dict(wishes.settings(state))
    for name, port in wishes.ports.items():
        if state.ports.get(name, port) != port and running(name):
            raise UsageError(
                f"{name} runs on port {state.ports[name]} in {folder}, and {port} is asked for.", remedy=DOWN_FIRST
            )
        state.ports[name] = port
    for name in (*NAMES, *(name for name in names if name not in NAMES)):
        _choose_ports(state.ports, name, running)
    state.asked = [name for name in ALL_NAMES if name in {*state.asked, *names}]


def _choose_ports(ports: dict[str, int], name: str, running: Callable[[str], bool]) -> None:
    """A client's port is kept for the folder's life; the inner one, which no client knows, may change."""
    if name not in ports:
        ports[name] = choose_port(set(ports.values()))
    inner = f"{name}.inner"
    if inner not in ports or not (running(name) or is_free(ports[inner])):
        ports[inner] = choose_port(set(ports.values()))


def checked(names: Sequence[str]) -> list[str]:
    """The names in the usual order, once each; raises on one that is no server's."""
    unknown = [name for name in names if name not in ALL_NAMES]
    if unknown:
        raise UsageError(f"There is no server {', '.join(unknown)}.", remedy=f"Known are {', '.join(ALL_NAMES)}.")
    return [name for name in ALL_NAMES if name in names]


def known(name: str, state: StackState | None, folder: Path) -> StackState:
    """The state, if the folder was ever asked for that server."""
    checked((name,))
    if state is None or name not in state.asked:
        raise UsageError(f"{name} was never started in {folder}.", remedy="Run: tailrace stack up")
    return state


def in_parallel(work: Callable[[str], T], names: Sequence[str]) -> dict[str, T]:
    """Runs one thread per name; raises the first name's error, after all have ended.

    The threads are daemons, so that Ctrl-C ends the command at once and not after the slowest server.
    """
    results: dict[str, T] = {}
    errors: dict[str, BaseException] = {}

    def run(name: str) -> None:
        try:
            results[name] = work(name)
        except BaseException as error:
            errors[name] = error  # raised below, in the caller's thread

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        if name in errors:
            raise errors[name]
    return {name: results[name] for name in names}
