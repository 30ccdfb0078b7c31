"""`tailrace snapshot`: publish the existing rows of tables, on Spark, and show the progress."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from cdc.commands.options import config_option, json_option
from cdc.commands.pipeline.snapshot_requests import carry_out_request
from cdc.config import Config, load_config
from cdc.errors import UsageError
from cdc.snapshot.incremental.keys import record_keys, snapshot_keys
from cdc.snapshot.records import SnapshotProgress
from cdc.stop_signals import event_on
from cdc.tables.state_reader import read_recorded_states

if TYPE_CHECKING:
    from spark_jobs.snapshot.initial import SnapshotReport, SnapshotView

_PLAIN_SECONDS = 5.0


@click.command()
@config_option
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Take a new snapshot of this table; repeatable."
)
@click.option("--where", default="", metavar="SQL", help="Only rows of --table that match this condition.")
@click.option("--keys", default="", metavar="KEY,KEY…|FILE", help="Only rows with these keys, including deleted rows.")
@click.option("--status", "order", flag_value="status", help="Only list running, due and cancelled snapshots.")
@click.option("--pause", "order", flag_value="pause", help="Pause incremental snapshots after their current chunks.")
@click.option("--resume", "order", flag_value="resume", help="Resume paused and cancelled incremental snapshots.")
@click.option("--cancel", "order", flag_value="cancel", help="Cancel all incremental snapshots, or those of --table.")
@json_option
def snapshot(
    config_path: Path, tables: tuple[str, ...], where: str, keys: str, order: str | None, as_json: bool
) -> int:
    """Publish the existing rows of the tables to the topics, as a Spark job.

    A new pipeline starts with the initial snapshot. Capture creates the slot, holds the slot's snapshot open and
    publishes no change until every row of the snapshot is in the topics. Then it streams the later changes. If no
    capture is running, this command creates the slot itself. After a crash, start the command again: it continues as
    long as the process that created the slot is still running.

    Later, this command takes incremental snapshots while capture streams: of the tables that have become incomplete
    (see `tailrace capture --status`), or of those named with --table. Capture must be running.

    An incremental snapshot can be paused, resumed and cancelled from another terminal or host. A table whose snapshot
    was cancelled stays incomplete. Its snapshot starts again only after --resume, or with --table.

    With --keys, the command publishes the current rows with these keys of one table, and deletes keys that the source
    does not have from the topic. A key is a value or, for a key of several columns, a JSON array of values. Separate
    keys by commas, or write one key per line of a file. This needs no Spark.

    With --json, the command prints progress as lines of JSON, and a last line with the result. Exit code 1: some tables
    are incomplete and need another snapshot.
    """
    if order is not None:
        if where or (tables and order != "cancel"):
            raise UsageError(f"--{order} takes no --where, and only --cancel takes --table.")
        return carry_out_request(order, load_config(config_path), tables, as_json=as_json)
    if keys:
        if len(tables) != 1 or where:
            raise UsageError("--keys needs exactly one --table and takes no --where.")
        return _snapshot_rows(load_config(config_path), tables[0], keys, as_json=as_json)
    from spark_jobs.snapshot.due_snapshots import take_due_snapshots  # noqa: PLC0415 - see cdc.commands

    if where and not tables:
        raise UsageError("--where needs --table.", remedy="Name the tables that the condition applies to.")
    config = load_config(config_path)
    stop = event_on()
    with _view(as_json=as_json) as view:
        report = take_due_snapshots(config, view, stop, tables=tables, where=where)
    click.echo(_json(report) if as_json else "\n".join(_lines(report)))
    return 0 if _is_done(report, first=config.snapshot.initial) else 1


def _snapshot_rows(config: Config, table: str, given: str, *, as_json: bool) -> int:
    """Publish the rows of `table` whose keys are in `given`, print the result, and return the exit code."""
    name = table if "." in table else f"public.{table}"
    states = read_recorded_states(config)
    oids = {f"{state.schema}.{state.table}": oid for oid, state in states.tables.items()} if states is not None else {}
    if name not in oids:
        raise UsageError(f"Table {name} is not captured.", remedy=f"Captured are: {', '.join(sorted(oids)) or 'none'}.")
    keys = record_keys(config, oids[name], _texts_of(given))
    published = snapshot_keys(config, oids[name], keys)
    if as_json:
        click.echo(orjson.dumps({"event": "result", "table": name, "keys": len(keys), "published": published}).decode())
    else:
        click.echo(f"Published {published:,} of {len(keys):,} keys of {name} again.")
    return 0


def _texts_of(given: str) -> list[str]:
    """Return the keys in `given`: a file with one key per line, or keys or JSON arrays separated by commas."""
    try:
        lines = Path(given).read_text().splitlines() if Path(given).is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {given}: {error}.") from None
    if lines is not None:
        return [line for line in lines if line.strip()]
    if not given.lstrip().startswith("["):
        return [text for text in given.split(",") if text]
    try:
        return [orjson.dumps(each).decode() for each in orjson.loads(f"[{given}]")]
    except orjson.JSONDecodeError:
        raise UsageError("--keys is neither a file nor a list of keys separated by commas.") from None


def _is_done(report: SnapshotReport, *, first: bool) -> bool:
    """Return whether every requested snapshot is complete.

    Without an initial snapshot (`[snapshot] initial = false`), tables that are incomplete by that choice do not count.
    """
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
        lines.append("Nothing to do: the initial snapshot is complete.")
    if report.stopped and not report.is_complete:
        lines.append("Stopped. Published rows stay; `tailrace snapshot` continues from there while capture runs.")
    lines += [
        f"  {table['table']}: incomplete since {table['since']}: {table['reason']}"
        + ("; its snapshot was cancelled (--resume starts it again)" if table.get("cancelled") else "")
        for table in report.incomplete
    ]
    tables = report.status["tables"] if report.status is not None else []
    lines += [
        f"  {table['table']}: {table['parked']:,} parked, too large to publish (tailrace parked list)"
        for table in tables
        if "parked" in table
    ]
    return lines


def _figures(progress: SnapshotProgress) -> str:
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
    """Yield the progress view that fits the output: JSON lines, plain lines or a progress bar."""
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
    """Prints a line of JSON whenever the state has changed."""

    def __init__(self) -> None:
        self._last: object = None

    def waiting(self, what: str) -> None:
        self._print({"event": "waiting", "for": what}, what)

    def progress(self, progress: SnapshotProgress) -> None:
        self._print({"event": "progress", **msgspec.to_builtins(progress)}, progress.chunks)

    def _print(self, line: dict[str, object], mark: object) -> None:
        if mark != self._last:
            self._last = mark
            click.echo(orjson.dumps(line))


class _PlainView:
    """Prints a line of text every few seconds."""

    def __init__(self) -> None:
        self._last = ""
        self._next_at = 0.0

    def waiting(self, what: str) -> None:
        if what != self._last:
            self._last = what
            click.echo(f"Waiting for {what}.", err=True)

    def progress(self, progress: SnapshotProgress) -> None:
        self._last = ""
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _PLAIN_SECONDS
            click.echo(_figures(progress), err=True)


class _BarView:
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)

    def waiting(self, what: str) -> None:
        self._bar.update(self._task, description=f"waiting for {what}")

    def progress(self, progress: SnapshotProgress) -> None:
        self._bar.update(
            self._task, total=progress.total_bytes or 1, completed=progress.size_bytes, description=_figures(progress)
        )
