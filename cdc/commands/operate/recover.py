"""`tailrace recover`: print the problems and the plan, ask for confirmation, and repair the pipeline."""

from __future__ import annotations

from pathlib import Path

import click

from cdc.commands.options import config_option, json_option
from cdc.commands.plans import DONE, NOTHING_OR_NO, agreed, carry_out, end
from cdc.config import load_config
from cdc.errors import UsageError
from cdc.postgres.connection import connect
from cdc.recovery.plan import RecoveryPlan
from cdc.recovery.recovery import Recovery
from cdc.recovery.topic_repair import RepairableTopics


@click.command()
@config_option
@click.option("--dry-run", is_flag=True, help="Print the problems and the plan; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--anyway", is_flag=True, help="Recover even if no problem is found.")
@json_option
def recover(config_path: Path, dry_run: bool, yes: bool, anyway: bool, as_json: bool) -> int:
    """Repair a pipeline that capture refuses to continue: a new slot, and a new snapshot of every table, in place.

    Topics, stores and their positions stay. New versions are higher than all published ones, whatever the server's LSNs
    are. Rows that the source no longer has are removed from the topics and the stores at the end of the snapshot.

    Stop capture first. The command prints its plan and asks for confirmation. If it is interrupted, run it again. A
    running `tailrace run` whose capture has refused detects the recovery and continues. Otherwise start `tailrace run`
    (or `tailrace capture` and, at the same time, `tailrace snapshot`). Exit codes: 0 done, 1 no problem was found or
    the answer was no, 3 refused.
    """
    if as_json and not (yes or dry_run):
        raise UsageError("--json cannot ask for confirmation: it needs --yes or --dry-run.")
    config = load_config(config_path)
    topics = RepairableTopics(config.kafka)
    try:
        with connect(config.source.conninfo(), application_name="tailrace recover") as connection:
            recovery = Recovery(config, connection, topics, anyway=anyway)
            plan = recovery.plan()
            if not as_json:
                _show(plan)
            if not plan.steps:
                return end(plan, "nothing", as_json=as_json, code=NOTHING_OR_NO)
            if plan.refusal is not None:
                end(plan, "refused", as_json=as_json, code=plan.refusal.exit_code)
                raise plan.refusal
            if dry_run:
                return end(plan, "planned", as_json=as_json, code=DONE)
            if not yes and not agreed():
                click.echo("Nothing was changed.")
                return NOTHING_OR_NO
            code = carry_out(plan, recovery.carry_out, state="recovered", as_json=as_json)
            if not as_json:
                click.echo("Recovered. `tailrace run` now takes an incremental snapshot of every table.")
                click.echo(
                    "A running `tailrace run` whose capture has refused continues by itself; otherwise start it."
                )
            return code
    finally:
        topics.close()


def _show(plan: RecoveryPlan) -> None:
    if not plan.steps:
        click.echo("There is no problem that `tailrace recover` could repair; start capture.")
        click.echo("To make a new slot and a new snapshot of every table nevertheless: tailrace recover --anyway")
        return
    if plan.problems:
        click.echo("Problems:")
    for problem in plan.problems:
        click.echo(f"  - {problem}")
    click.echo("Plan:")
    for line in plan.lines():
        click.echo(line)
