"""`tailrace check`: check everything that capture depends on, and print a remedy for each problem."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdc.check import Finding, Level, inspect, worst
from cdc.check.shapes import ShapeReport
from cdc.commands.options import config_option, json_option
from cdc.config import Config, load_config
from cdc.stores.contract import TableSchema

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command()
@config_option
@json_option
def check(config_path: Path, as_json: bool) -> int:
    """Check the source, the publication, the slot, the broker, the topics and the stores; change nothing.

    Every line is OK, WARN (capture runs, but this is likely to cause an error later) or FAIL (capture would refuse to
    run, or could lose data). WARN and FAIL lines name the SQL or the setting that repairs the problem. Exit code 1: at
    least one line is FAIL.
    """
    findings = inspect(load_config(config_path), _analyze_shapes)
    if as_json:
        click.echo(json.dumps(_as_plain(findings), indent=2, ensure_ascii=False))
    elif sys.stdout.isatty():
        _print_pretty(findings)
    else:
        click.echo(_as_text(findings))
    return 1 if worst(findings) is Level.FAIL else 0


def _analyze_shapes(config: Config, stores: Sequence[str], tables: Mapping[str, TableSchema]) -> Iterable[ShapeReport]:
    from spark_jobs.shape.shape_check import analyze_shapes  # noqa: PLC0415 - see cdc.commands

    return analyze_shapes(config, stores, tables)


def _as_plain(findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "level": worst(findings).value,
        "counts": _counts(findings),
        "findings": [finding.as_plain() for finding in findings],
    }


def _as_text(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{finding.level.value:4}  {finding.place}: {finding.what}")
        if finding.remedy:
            lines.append(f"      -> {finding.remedy}")
    return "\n".join([*lines, _summary(findings)])


def _print_pretty(findings: Sequence[Finding]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(max_width=40, overflow="fold")
    table.add_column(overflow="fold")
    last_place = ""
    for finding in findings:
        # Text, not markup: a table may be called "[red]".
        what = Text(finding.what)
        if finding.remedy:
            what.append(f"\n→ {finding.remedy}", style="bold")
        place = Text(finding.place if finding.place != last_place else "", style="cyan")
        table.add_row(Text(finding.level.value, style=f"bold {_COLOURS[finding.level]}"), place, what)
        last_place = finding.place
    console = Console(highlight=False)
    console.print(table)
    console.print(Text(_summary(findings), style=f"bold {_COLOURS[worst(findings)]}"))


def _summary(findings: Sequence[Finding]) -> str:
    counts = _counts(findings)
    return f"{counts['ok']} OK, {counts['warn']} WARN, {counts['fail']} FAIL"


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    counted = Counter(finding.level for finding in findings)
    return {level.value.lower(): counted[level] for level in Level}
