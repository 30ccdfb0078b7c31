"""The output of the demo: a live page on a terminal, plain lines every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from cdc.demo.parts import DemoPart
from deploy.stack import Server


class DemoView(Protocol):
    """Displays servers and parts. `interval_seconds`: how often the demo calls `show`."""

    interval_seconds: float

    def show(self, servers: Sequence[Server], parts: Sequence[DemoPart]) -> None: ...


class PlainDemoView:
    """Prints the servers' addresses once, then one line per part."""

    interval_seconds = 5.0

    def __init__(self, console: Console, hint: str) -> None:
        self._console = console
        self._hint = hint
        self._introduced = False

    def show(self, servers: Sequence[Server], parts: Sequence[DemoPart]) -> None:
        if not self._introduced:
            self._introduced = True
            for server in servers:
                self._print(f"{server.name}: {server.address}")
            self._print(self._hint)
            return
        away = [server.name for server in servers if not server.healthy]
        if away:
            self._print(f"not healthy: {', '.join(away)}")
        for part in parts:
            self._print(f"{part.name}: {', '.join(f'{label} {value}' for label, value in part.figures())}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveDemoView:
    """Redraws one page in place."""

    interval_seconds = 1.0

    def __init__(self, live: Live, hint: str) -> None:
        self._live = live
        self._hint = hint

    def show(self, servers: Sequence[Server], parts: Sequence[DemoPart]) -> None:
        self._live.update(
            Group(_servers_table(servers), *map(_part_table, parts), Text(self._hint, "dim")),
            refresh=True,
        )


@contextmanager
def view_on(console: Console, hint: str) -> Iterator[DemoView]:
    """Yield the view that fits the console. `hint`: a line that says what the user can do next."""
    if not console.is_terminal:
        yield PlainDemoView(console, hint)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield LiveDemoView(live, hint)


def _servers_table(servers: Sequence[Server]) -> Table:
    table = Table("server", Column("address", overflow="fold"), "health", box=SIMPLE_HEAD)
    for server in servers:
        table.add_row(server.name, server.address, "[green]healthy[/]" if server.healthy else "[red]not healthy[/]")
    return table


def _part_table(part: DemoPart) -> Table:
    figures = part.figures()
    table = Table("", *(figure.label for figure in figures), box=SIMPLE_HEAD)
    table.add_row(part.name, *(figure.value for figure in figures))
    return table
