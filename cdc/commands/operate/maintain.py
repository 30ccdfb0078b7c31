"""`tailrace maintain`: compact and clean up the warehouse while the sync runs."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc.commands.observe.query import warehouse_of
from cdc.commands.options import config_option, json_option
from cdc.config import load_config

if TYPE_CHECKING:
    from spark_jobs.warehouse.maintain import Upkeep


@click.command()
@config_option
@json_option
@click.option("--store", metavar="NAME", help="Warehouse to maintain; required if the config has several.")
def maintain(config_path: Path, as_json: bool, store: str | None) -> int:
    """Compact small files of the warehouse, expire old snapshots and remove orphan files.

    Query results do not change, and the sync may run at the same time. Exit code 1: maintenance of a table failed, and
    the table was left unchanged.
    """
    from sinks.iceberg.store import IcebergStore  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.session.spark_session import spark_session  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.warehouse.maintain import maintain_warehouse as run_maintain  # noqa: PLC0415 - see cdc.commands

    config = load_config(config_path)
    name, settings = warehouse_of(config, store)
    with closing(IcebergStore(name, settings, config.kafka.prefix)) as opened:
        if opened.serving() is None:
            click.echo("[]" if as_json else f"{name} serves nothing yet.")
            return 0
        spark = spark_session(config.spark, "tailrace-maintain", warehouse=settings)
        try:
            done = run_maintain(spark, opened, lambda upkeep: None if as_json else click.echo(_line(upkeep)))
        finally:
            spark.stop()
    if as_json:
        click.echo(json.dumps([asdict(each) for each in done], indent=2))
    return 1 if any(each.problem for each in done) else 0


def _line(upkeep: Upkeep) -> str:
    if upkeep.problem is not None:
        return f"{upkeep.table}: left unchanged: {upkeep.problem}"
    return (
        f"{upkeep.table}: {upkeep.files_before} -> {upkeep.files} files, {upkeep.deletes_before} -> {upkeep.deletes}"
        f" delete files, {upkeep.bytes_before:,} -> {upkeep.bytes:,} bytes, {upkeep.snapshots_before} ->"
        f" {upkeep.snapshots} snapshots ({upkeep.seconds:.1f} s)"
    )
