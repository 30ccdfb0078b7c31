"""The output of `tailrace run`: a live page on a terminal, plain lines elsewhere, or JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from cdc.monitoring.store_lag import StoreLag
from cdc.supervisor.parts.part import ProcessCondition
from cdc.supervisor.process_report import RunReport, SnapshotFigures

_COLOURS = {ProcessCondition.RUNNING: "green", ProcessCondition.WAITING: "yellow", ProcessCondition.REFUSED: "red"}
_OLD_SECONDS = 10.0


class RunView(Protocol):
    """Displays reports. `interval_seconds`: how often the supervisor calls `show`."""

    interval_seconds: float

    def show(self, report: RunReport) -> None: ...


@contextmanager
def view_for(*, as_json: bool, is_terminal: bool) -> Iterator[RunView]:
    """Yield the view that fits the output."""
    if as_json:
        yield JsonRunView()
    elif not is_terminal:
        yield PlainRunView()
    else:
        with Live(auto_refresh=False, transient=False) as live:
            yield LiveRunView(live)


class JsonRunView:
    """Prints each report as one JSON line."""

    interval_seconds = 1.0

    def show(self, report: RunReport) -> None:
        click.echo(json.dumps(report.as_json()))


class PlainRunView:
    """Prints one line for all parts, then one line per hop and per problem."""

    interval_seconds = 10.0

    def show(self, report: RunReport) -> None:
        parts = (f"{part.name} {part.condition.value}{f' ({part.note})' if part.note else ''}" for part in report.parts)
        click.echo("; ".join(parts))
        for line in (*hop_lines(report), *error_lines(report)):
            click.echo(f"  {line}")


class LiveRunView:
    """Redraws one page in place."""

    interval_seconds = 1.0

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, report: RunReport) -> None:
        table = Table("part", "state", "pid", "restarts", Column("", overflow="fold"), box=SIMPLE_HEAD)
        for part in report.parts:
            colour = _COLOURS.get(part.condition, "dim")
            pid = str(part.pid or "")
            table.add_row(part.name, Text(part.condition.value, colour), pid, str(part.restarts or ""), Text(part.note))
        hops = Text("\n".join(hop_lines(report)))
        errors = Text("\n".join(error_lines(report)), "red")
        self._live.update(Group(table, hops, errors, Text("Ctrl-C stops everything.", "dim")), refresh=True)


def hop_lines(report: RunReport) -> list[str]:
    """Return one line per hop, from the source to the stores."""
    lag, slot = report.hops.lag, report.hops.slot
    lines = []
    if lag is not None:
        source = f"at {lag.source_lsn}" if lag.source_lsn is not None else "does not answer"
        lines.append(f"source: {source}")
    if slot is not None:
        limit = (
            f", {_size(slot.left_bytes)} left until the server invalidates it" if slot.left_bytes is not None else ""
        )
        lines.append(f"slot: at {slot.confirmed}, {_size(slot.bytes)} behind{limit}")
    if lag is not None:
        lines.append(f"topics: {f'at {lag.topics_lsn}' if lag.topics_lsn is not None else 'nothing yet'}")
        lines += [f"{each.name}: {store_text(each)}" for each in lag.stores]
    if report.snapshot is not None:
        lines.append(f"snapshot: {_snapshot_text(report.snapshot)}")
    age_seconds = time.time() - report.hops.read_at
    if lag is not None and age_seconds > _OLD_SECONDS:
        lines.append(f"(as of {age_seconds:.0f} s ago)")
    return lines


def error_lines(report: RunReport) -> list[str]:
    """Return one line per problem. A refusal's line contains its remedy."""
    lines = [
        f"{part.name} refused: {part.note} {part.remedy}".rstrip()
        for part in report.parts
        if part.condition is ProcessCondition.REFUSED
    ]
    lines += [
        f"{name} refused: {words.reason} {words.remedy}".rstrip() for name, words in report.refused_stores.items()
    ]
    lines += [f"incomplete: {table}: {reason}" for table, reason in report.due.tables]
    return lines + report.hops.problems


def store_text(each: StoreLag) -> str:
    """Return the lag of a store as text."""
    if each.seconds is None:
        return each.problem or "nothing is served yet"
    size = _size(each.bytes) if each.bytes is not None else "unknown bytes"
    return f"at {each.lsn}, {size}, {each.records or 0:,} records, {each.seconds:.1f} s behind"


def _snapshot_text(copy: SnapshotFigures) -> str:
    percent = 100 * copy.size_bytes / copy.total_bytes if copy.total_bytes else 100
    left = f", {copy.seconds_left:.0f} s left" if copy.seconds_left else ""
    return f"{percent:.0f}%, {copy.rows:,} rows, {copy.rows_per_second:,.0f} rows/s{left}"


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000 or unit == "MB":
            break
        count = round(count / 1000)
    return f"{count:,} {unit}"
