"""`tailrace bootstrap`: build a new generation of a store from the topics, then switch readers to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc.commands.observe.query import base_of, warehouse_of
from cdc.commands.options import config_option, json_option
from cdc.config import Config, load_config
from cdc.errors import UsageError
from cdc.lsn import LSN

if TYPE_CHECKING:
    from spark_jobs.bootstrap.bootstrap import BootstrapPlan, BootstrapReport
    from spark_jobs.writing.contract import LoadProgress


@click.command()
@click.argument("store")
@config_option
@json_option
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing.")
@click.option("--keep-old", is_flag=True, help="Keep the generation that readers used before.")
@click.option("--no-switch", is_flag=True, help="Build the new generation without switching readers to it.")
@click.option(
    "--switch-to", type=click.IntRange(min=1), metavar="N", help="Build nothing; switch readers to generation N."
)
@click.option("--from", "source", type=click.Choice(["topics", "history"]), default="topics", show_default=True)
@click.option("--as-of", metavar="LSN|TIME", help="With --from history: the past state to build.")
@click.option("--anyway", is_flag=True, help="Build even if the topics do not hold every row of the tables.")
def bootstrap(
    store: str,
    config_path: Path,
    as_json: bool,
    dry_run: bool,
    keep_old: bool,
    no_switch: bool,
    switch_to: int | None,
    anyway: bool,
    source: str,
    as_of: str | None,
) -> int:
    """Build a new generation of STORE from the compacted topics alone, without reading the database.

    Readers see the old generation until the new one is built. The command prints "complete as of LSN" only if that is
    proven. Exit code 1: completeness is not proven (the command prints the reasons), or rows are parked.
    """
    from spark_jobs.bootstrap.bootstrap import BuildOptions, plan_bootstrap, run_bootstrap, switch_generation  # noqa: PLC0415 - see cdc.commands

    config = load_config(config_path)
    if source == "history":
        return _replay(config, store, as_of, as_json)
    if switch_to is not None:
        switch_generation(config, store, switch_to, keep_old=keep_old)
        click.echo(f"{store}: readers now see generation {switch_to}.")
        return 0
    if dry_run:
        plan = plan_bootstrap(config, store)
        click.echo(json.dumps(asdict(plan), indent=2) if as_json else "\n".join(_plan_lines(plan)))
        return 1 if plan.reasons else 0
    options = BuildOptions(keep_old=keep_old, switch=not no_switch, anyway=anyway)
    report = run_bootstrap(config, store, options, _shower())
    click.echo(json.dumps(_as_json(report), indent=2) if as_json else _report_line(report))
    return 0 if report.verdict.complete else 1


def _replay(config: Config, store: str, as_of: str | None, as_json: bool) -> int:
    """Build the store's past state from a warehouse's history tables; return the exit code."""
    from spark_jobs.bootstrap.history_replay import run_replay  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.session.spark_session import spark_session  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.sync.sync import chosen_stores  # noqa: PLC0415 - see cdc.commands
    from spark_jobs.warehouse.query import parse_as_of  # noqa: PLC0415 - see cdc.commands

    if as_of is None:
        raise UsageError("--from history needs --as-of, the past state to build.")
    chosen_stores(config, [store])
    warehouse, settings = warehouse_of(config, None)
    past = parse_as_of(as_of, base_of(config))
    spark = spark_session(config.spark, f"tailrace-replay {store}", warehouse=settings)
    try:
        done = run_replay(config, store, warehouse, past, spark, lambda line: click.echo(line, err=True))
    finally:
        spark.stop()
    line = f"{store}: generation {done.generation} shows the state as of {as_of}, {done.rows:,} rows."
    click.echo(json.dumps(asdict(done), indent=2) if as_json else line)
    return 1 if done.rejected else 0


def _plan_lines(plan: BootstrapPlan) -> list[str]:
    serving = f"readers see generation {plan.serving}" if plan.serving is not None else "readers see no generation yet"
    return [
        f"{plan.store}: {serving}; a new one would be complete as of {LSN(plan.lsn)}.",
        f"  {len(plan.tables)} tables, at most {plan.records:,} records: {', '.join(plan.tables)}",
        *(f"  not complete: {reason}" for reason in plan.reasons),
    ]


def _report_line(report: BootstrapReport) -> str:
    ending = "readers see it" if report.switched else "readers do not see it yet"
    return (
        f"{report.plan.store}: generation {report.generation} is {report.verdict}; {ending} ({report.seconds:.0f} s)."
    )


def _as_json(report: BootstrapReport) -> dict[str, object]:
    verdict = report.verdict
    return {
        "store": report.plan.store,
        "generation": report.generation,
        "complete": verdict.complete,
        "lsn": str(LSN(verdict.lsn)),
        "rows": verdict.rows,
        "parked": verdict.parked,
        "reasons": verdict.reasons,
        "switched": report.switched,
        "seconds": round(report.seconds, 3),
    }


def _shower() -> Callable[[LoadProgress], None]:
    """Return a function that prints load progress: one updated line on a terminal, else a line every ten seconds."""
    shown_at = 0.0

    def show(progress: LoadProgress) -> None:
        nonlocal shown_at
        on_terminal = sys.stderr.isatty()
        if time.monotonic() - shown_at < (0.5 if on_terminal else 10.0):
            return
        shown_at = time.monotonic()
        parts = f"{progress.tasks_done} of {progress.tasks}" if progress.tasks else "some"
        line = f"loading {progress.events:,} records: {parts} parts done"
        click.echo(f"\r\033[K{line}" if on_terminal else line, err=True, nl=not on_terminal)

    return show
