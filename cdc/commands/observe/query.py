"""`tailrace query`: run Spark SQL over the present or a past state of the warehouse."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc.commands.options import config_option, json_option
from cdc.config import Config, IcebergConfig, load_config
from cdc.errors import TransientError, UsageError
from cdc.names import Control, control_topic
from cdc.positions.progress import read_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WIDEST = 60


@click.command()
@click.argument("sql")
@config_option
@json_option
@click.option(
    "--as-of", "as_of", metavar="LSN|TIME", help="Query the state at this point: 16/B374D848 or 2026-01-31T12:00:00Z."
)
@click.option("--store", metavar="NAME", help="Warehouse to query; required if the config has several.")
def query(sql: str, config_path: Path, as_json: bool, as_of: str | None, store: str | None) -> int:
    """Run a Spark SQL query over the warehouse.

    Tables have the source's names (`public.orders`). The history of a table is in `public__history.orders`. With
    --as-of, the tables show a past state of the source: everything committed before that LSN, or up to that time.
    """
    from sinks.iceberg.store import IcebergStore  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.session.spark_session import spark_session  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.warehouse.query import parse_as_of  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.warehouse.query import query_warehouse as run_query  # noqa: PLC0415 - see cdc.commands

    config = load_config(config_path)
    name, settings = warehouse_of(config, store)
    past = parse_as_of(as_of, base_of(config)) if as_of is not None else None
    with closing(IcebergStore(name, settings, config.kafka.prefix)) as opened:
        spark = spark_session(config.spark, "tailrace-query", warehouse=settings)
        try:
            answer = run_query(spark, opened, sql, past)
            for warning in answer.warnings:
                click.echo(f"warning: {warning}", err=True)
            click.echo(_as_json(answer.frame, answer.warnings) if as_json else _as_table(answer.frame))
        finally:
            spark.stop()
    return 0


def warehouse_of(config: Config, store: str | None) -> tuple[str, IcebergConfig]:
    """Return the name and settings of the warehouse `store`, or of the only warehouse if `store` is None."""
    found = {name: each for name, each in config.stores.items() if isinstance(each, IcebergConfig)}
    if store is not None:
        if store not in found:
            raise UsageError(f"There is no warehouse [stores.{store}] in the config.")
        return store, found[store]
    if len(found) != 1:
        what = f"several warehouses ({', '.join(sorted(found))})" if found else "no store of kind iceberg"
        raise UsageError(f"The config has {what}.", remedy="Choose one with --store NAME." if found else None)
    return next(iter(found.items()))


def base_of(config: Config) -> int:
    """Return the number that the pipeline adds to LSNs: 0 unless `tailrace recover` has raised it.

    Also 0 if Kafka cannot be read now.
    """
    try:
        progress = read_progress(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PROGRESS))
    except TransientError:
        return 0
    return 0 if progress is None else progress.base


def _as_json(frame: DataFrame, warnings: list[str]) -> str:
    rows = [json.loads(row) for row in frame.toJSON().collect()]
    columns = [{"name": each.name, "type": each.dataType.simpleString()} for each in frame.schema.fields]
    return json.dumps({"columns": columns, "rows": rows, "warnings": warnings}, indent=2, ensure_ascii=False)


def _as_table(frame: DataFrame) -> str:
    names = frame.columns
    rows = [[_cell(value) for value in row] for row in frame.collect()]
    widths = [max([len(name), *(len(row[place]) for row in rows)]) for place, name in enumerate(names)]
    lines = [[name.ljust(width) for name, width in zip(names, widths, strict=True)], ["-" * width for width in widths]]
    lines += [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    counted = f"({len(rows):,} row{'' if len(rows) == 1 else 's'})"
    return "\n".join([*("  ".join(line).rstrip() for line in lines), counted])


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
