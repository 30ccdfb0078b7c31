"""`tailrace recover`: say what is wrong, show what would be done, ask, and mend it."""

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
@click.option("--dry-run", is_flag=True, help="Only show what is wrong and what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--anyway", is_flag=True, help="Also where nothing is found to be wrong.")
@json_option
def recover(config_path: Path, dry_run: bool, yes: bool, anyway: bool, as_json: bool) -> int:
    """Mend a pipeline that capture refuses to go on with: a new slot, and every table copied again, in place.

    Topics, stores and their positions stay. What is new wins over all that was published before, whatever the server's
    LSNs are, and rows that are gone at the source go from the topics and the stores when the copy is through.

    Stop capture first. What is going to happen is shown and asked for. Interrupted, it is simply run again. A `tailrace
    run` whose capture has refused notices the recovery and goes on; otherwise start it (or `tailrace capture`, and
    `tailrace snapshot` beside it). Exit codes: 0 done, 1 nothing is wrong or the answer was no, 3 refused.
    """
    if as_json and not (yes or dry_run):
        raise UsageError("--json does not ask: it needs --yes or --dry-run.")
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
                click.echo("Recovered. The tables are copied again, beside the stream, by `tailrace run`.")
                click.echo("One that runs and whose capture has refused goes on by itself; otherwise start it.")
            return code
    finally:
        topics.close()


def _show(plan: RecoveryPlan) -> None:
    if not plan.steps:
        click.echo("Nothing is wrong that `tailrace recover` could mend; start capture.")
        click.echo("To copy every table again all the same, with a new slot: tailrace recover --anyway")
        return
    if plan.problems:
        click.echo("What is wrong:")
    for problem in plan.problems:
        click.echo(f"  - {problem}")
    click.echo("To be done:")
    for line in plan.lines():
        click.echo(line)
