"""`tailrace parked`: list, show and retry rows that could not be delivered."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc.commands.options import config_option, json_option
from cdc.config import Config, load_config
from cdc.errors import UsageError
from cdc.lsn import LSN, Version
from cdc.tables.state_reader import read_recorded_states

if TYPE_CHECKING:
    from cdc.publishing.parked import Parked
    from spark_jobs.writing.contract import Retried


@click.group()
def parked() -> None:
    """List, show and retry parked rows: rows that could not be delivered.

    Capture parks a row that is too large for a Kafka record. A sync parks a row that its store rejects. All other rows
    are delivered. A row that capture parked is in no store. It is settled when a change makes it small enough, when it
    is deleted, or by `retry` once [kafka] max_message_bytes is large enough. NUMBER identifies a parked row, as `list`
    prints it.
    """


@parked.command("list")
@config_option
@json_option
@click.option("--store", "store", help="Only rows missing in this store, including rows that capture parked.")
def list_parked(config_path: Path, as_json: bool, store: str | None) -> int:
    """List parked rows: number, store, topic, key and reason. Exit code 1: at least one row is parked."""
    rows = _read(load_config(config_path), store)
    if as_json:
        click.echo(json.dumps([_described(row) for row in rows], indent=2))
    elif not rows:
        click.echo("Nothing is parked.")
    else:
        for row in rows:
            click.echo(f"{row.place}  {row.store or 'capture'}  {row.topic}  {row.key}  {row.reason}")
    return 1 if rows else 0


@parked.command("show")
@click.argument("number", type=int)
@config_option
@json_option
def show_parked(number: int, config_path: Path, as_json: bool) -> None:
    """Show one parked row: topic, partition, offset, key, version, time and reason."""
    row = _one(_read(load_config(config_path), None), number)
    described = _described(row)
    if as_json:
        click.echo(json.dumps(described, indent=2))
    else:
        for name, value in described.items():
            click.echo(f"{name}: {value}")


@parked.command("retry")
@click.argument("numbers", nargs=-1, type=int, metavar="[NUMBER]...")
@config_option
@json_option
@click.option("--store", "store", help="Only rows missing in this store, including rows that capture parked.")
def retry_parked(numbers: tuple[int, ...], config_path: Path, as_json: bool, store: str | None) -> int:
    """Retry the delivery of parked rows: those with the given NUMBERs, or all.

    Run this after removing the cause, for example after changing a mapping or raising a limit. A store receives the
    row's current state from the topic. Rows that capture parked are read again from the source, for which capture must
    be running. Exit code 1: some rows are still parked.
    """
    config = load_config(config_path)
    rows = _read(config, store)
    chosen = [_one(rows, number) for number in numbers] if numbers else rows
    for row in chosen:
        if row.store and row.store not in config.stores:
            raise UsageError(f"Parked row {row.place} belongs to store {row.store}, which is not in the config.")
    results = [
        result
        for name in dict.fromkeys(row.store for row in chosen)
        for result in _retry(config, name, [row for row in chosen if row.store == name])
    ]
    if as_json:
        found = [{**_described(each.parked), "settled": each.settled, "reason": each.reason} for each in results]
        click.echo(json.dumps(found, indent=2))
    else:
        for each in results:
            word = "settled" if each.settled else "still parked"
            click.echo(f"{each.parked.place}  {word}{': ' + each.reason if each.reason else ''}")
        if not results:
            click.echo("Nothing to retry.")
    return 0 if all(each.settled for each in results) else 1


def _retry(config: Config, store: str, rows: list[Parked]) -> list[Retried]:
    from spark_jobs.sync.retry import retry, retry_capture  # noqa: PLC0415 - see cdc.commands

    return retry(config, store, rows) if store else retry_capture(config, rows)


def _read(config: Config, store: str | None) -> list[Parked]:
    from spark_jobs.tasks.parked_rows import read_parked  # noqa: PLC0415 - see cdc.commands

    rows = read_parked(config)
    if store is None:
        return rows
    if store not in config.stores:
        return [row for row in rows if row.store == store]
    states = read_recorded_states(config)
    tables = states.tables.values() if states is not None else ()
    gets = {state.topic for state in tables if config.stores[store].gets(state.schema, state.table)}
    return [row for row in rows if row.store == store or (not row.store and row.topic in gets)]


def _one(rows: list[Parked], number: int) -> Parked:
    found = next((row for row in rows if row.place == number), None)
    if found is None:
        raise UsageError(f"There is no parked row {number}.", remedy="`tailrace parked list` shows them.")
    return found


def _described(row: Parked) -> dict[str, Any]:
    when = datetime.fromtimestamp(row.parked_ms / 1000, timezone.utc).isoformat() if row.parked_ms else None
    return {
        "number": row.place,
        "store": row.store or None,
        "topic": row.topic,
        "partition": row.partition if row.partition >= 0 else None,
        "offset": row.offset if row.offset >= 0 else None,
        "key": row.key,
        "version": row.version,
        "position": str(LSN(Version.parse(row.version).position)),
        "parked": when,
        "reason": row.reason,
    }
