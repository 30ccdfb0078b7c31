"""`tailrace snapshot`: copy what is in the tables already, on Spark, with the progress shown."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
import msgspec
import orjson

from cdc.commands.options import config_option, json_option
from cdc.commands.snapshot_keys import copy_some
from cdc.commands.snapshot_requests import carry_out_request
from cdc.config import load_config
from cdc.errors import UsageError
from cdc.snapshot.records import CopyProgress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from spark_jobs.snapshot.initial import SnapshotReport, SnapshotView

_PLAIN_SECONDS = 5.0


@click.command()
@config_option
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Copy this table again; may be repeated."
)
@click.option("--where", default="", metavar="SQL", help="Only its rows for which this condition holds.")
@click.option("--keys", default="", metavar="KEY,KEY…|FILE", help="Only the rows with these keys, present or not.")
@click.option("--status", "order", flag_value="status", help="Only say which copies are under way, due or cancelled.")
@click.option("--pause", "order", flag_value="pause", help="Later copies begin no further chunk.")
@click.option("--resume", "order", flag_value="resume", help="They go on, also those that were cancelled.")
@click.option("--cancel", "order", flag_value="cancel", help="Give copies up: all, or those of --table.")
@json_option
def snapshot(
    config_path: Path, tables: tuple[str, ...], where: str, keys: str, order: str | None, as_json: bool
) -> int:
    """Copy the rows that are in the tables already to the topics, as a Spark job.

    A new pipeline begins with this: capture makes the slot, keeps its snapshot and publishes nothing until every row
    that the snapshot shows is in the topics; then it streams what came after. Where no capture runs, this command makes
    the slot itself. Killed and started again it goes on where it was, as long as whoever made the slot still runs.

    Afterwards it copies the tables that have become incomplete since (see `tailrace capture --status`), or those named
    with --table, while capture goes on: capture must be running then.

    A copy that runs beside the stream can be paused, resumed and cancelled from elsewhere. What was cancelled stays
    as incomplete as it was, and is not copied again until --resume, or --table names it.

    With --keys, the rows of one table under these keys are copied as they are now, and those that the source does not
    have are deleted from the topic: a value each, or for a key of several columns a JSON array of them, separated by
    commas, or one on each line of a file. This needs no Spark.

    With --json: a line of JSON now and then, and one with the result at the end. Exit code 1: some tables are
    incomplete and must be copied again.
    """
    if order is not None:
        if where or (tables and order != "cancel"):
            raise UsageError(f"--{order} takes no --where, and --table only goes with --cancel.")
        return carry_out_request(order, load_config(config_path), tables, as_json=as_json)
    if keys:
        if len(tables) != 1 or where:
            raise UsageError("--keys goes with one --table, and with no --where.")
        return copy_some(load_config(config_path), tables[0], keys, as_json=as_json)
    from spark_jobs.snapshot.due_snapshots import copy_what_is_due  # noqa: PLC0415 - Spark's session is not needed for --help

    if where and not tables:
        raise UsageError("--where needs --table.", remedy="Name the tables that the condition is about.")
    config = load_config(config_path)
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    with _view(as_json=as_json) as view:
        report = copy_what_is_due(config, view, stop, tables=tables, where=where)
    click.echo(_json(report) if as_json else "\n".join(_lines(report)))
    return 0 if _is_done(report, first=config.snapshot.initial) else 1


def _is_done(report: SnapshotReport, *, first: bool) -> bool:
    """Whether everything is copied that is wanted: not the rows of before, where there is to be no first copy."""
    left = [table for table in report.incomplete if first or not table.get("by_choice")]
    return report.status is not None and report.status["state"] == "streaming" and not left


def _json(report: SnapshotReport) -> str:
    status = report.status or {"state": "none", "tables": []}
    result = {
        "event": "result",
        "complete": report.is_complete,
        "stopped": report.stopped,
        "state": status["state"],
        "tables": status["tables"],
        "progress": None if report.progress is None else msgspec.to_builtins(report.progress),
    }
    return orjson.dumps(result).decode()


def _lines(report: SnapshotReport) -> list[str]:
    lines = []
    if report.progress is not None:
        lines.append(_figures(report.progress))
    elif report.is_complete:
        lines.append("Nothing to do: the first copy is complete.")
    if report.stopped and not report.is_complete:
        lines.append("Stopped. What is copied stands; `tailrace snapshot` goes on from there while capture runs.")
    lines += [
        f"  {table['table']}: incomplete since {table['since']}: {table['reason']}"
        + ("; its copy was cancelled (--resume)" if table.get("cancelled") else "")
        for table in report.incomplete
    ]
    tables = report.status["tables"] if report.status is not None else []
    lines += [
        f"  {table['table']}: {table['parked']:,} parked, too large to publish (tailrace parked list)"
        for table in tables
        if "parked" in table
    ]
    return lines


def _figures(progress: CopyProgress) -> str:
    parts = [
        f"{progress.percent:.0f}%",
        f"{progress.rows:,} rows",
        f"{progress.size_bytes / 1e6:,.0f} of {progress.total_bytes / 1e6:,.0f} MB",
        f"{progress.rows_per_second:,.0f} rows/s",
    ]
    if progress.paused:
        parts.append("paused")
    elif progress.seconds_left:
        parts.append(f"{_duration(progress.seconds_left)} left")
    if progress.wal_held_bytes is not None:
        parts.append(f"{progress.wal_held_bytes / 1e6:,.0f} MB of WAL held")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


@contextmanager
def _view(*, as_json: bool) -> Iterator[SnapshotView]:
    """What fits where the output goes."""
    from rich.console import Console  # noqa: PLC0415 - not needed for --help
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    console = Console(stderr=True)
    if as_json:
        yield _JsonView()
    elif not console.is_terminal:
        yield _PlainView()
    else:
        columns = SpinnerColumn(), BarColumn(), TextColumn("{task.description}", markup=False)
        with Progress(*columns, console=console) as bar:
            yield _BarView(bar)


class _JsonView:
    """A line when something has changed, for programs."""

    def __init__(self) -> None:
        self._last: object = None

    def waiting(self, what: str) -> None:
        self._print({"event": "waiting", "for": what}, what)

    def progress(self, progress: CopyProgress) -> None:
        self._print({"event": "progress", **msgspec.to_builtins(progress)}, progress.chunks)

    def _print(self, line: dict[str, object], mark: object) -> None:
        if mark != self._last:
            self._last = mark
            click.echo(orjson.dumps(line))


class _PlainView:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._last = ""
        self._next_at = 0.0

    def waiting(self, what: str) -> None:
        if what != self._last:
            self._last = what
            click.echo(f"Waiting for {what}.", err=True)

    def progress(self, progress: CopyProgress) -> None:
        self._last = ""
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _PLAIN_SECONDS
            click.echo(_figures(progress), err=True)


class _BarView:
    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)

    def waiting(self, what: str) -> None:
        self._bar.update(self._task, description=f"waiting for {what}")

    def progress(self, progress: CopyProgress) -> None:
        self._bar.update(
            self._task, total=progress.total_bytes or 1, completed=progress.size_bytes, description=_figures(progress)
        )
