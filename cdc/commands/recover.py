"""`tailrace recover`: say what is wrong, show what would be done, ask, and mend it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from cdc.commands.options import config_option, json_option
from cdc.config import load_config
from cdc.errors import UsageError
from cdc.postgres import connect
from cdc.recovery.mendable_topics import MendableTopics
from cdc.recovery.plan import RecoveryPlan, Step
from cdc.recovery.recovery import Recovery

_DONE, _NOTHING_OR_NO = 0, 1


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

    Stop capture first. What is going to happen is shown and asked for. Interrupted, it is simply run again. Then start
    `tailrace run` (or `tailrace capture`, and `tailrace snapshot` beside it). Exit codes: 0 done, 1 nothing is wrong or
    the answer was no, 3 refused.
    """
    if as_json and not (yes or dry_run):
        raise UsageError("--json does not ask: it needs --yes or --dry-run.")
    config = load_config(config_path)
    topics = MendableTopics(config.kafka)
    try:
        with connect(config.source.conninfo(), application_name="tailrace recover") as connection:
            recovery = Recovery(config, connection, topics, anyway=anyway)
            plan = recovery.plan()
            if not as_json:
                _show(plan)
            if not plan.steps:
                return _end(plan, "nothing", as_json=as_json, code=_NOTHING_OR_NO)
            if plan.refusal is not None:
                _end(plan, "refused", as_json=as_json, code=plan.refusal.exit_code)
                raise plan.refusal
            if dry_run:
                return _end(plan, "planned", as_json=as_json, code=_DONE)
            if not yes and not _agreed():
                click.echo("Nothing was changed.")
                return _NOTHING_OR_NO
            return _carry_out(recovery, plan, as_json=as_json)
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


def _agreed() -> bool:
    """End of input is a no; Ctrl-C stays Ctrl-C."""
    click.echo("Go on? [y/N] ", nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _carry_out(recovery: Recovery, plan: RecoveryPlan, *, as_json: bool) -> int:
    finished: list[Step] = []

    def done(step: Step) -> None:
        finished.append(step)
        if not as_json:
            click.echo(f"Done: {step}")

    try:
        recovery.carry_out(done)
    except BaseException:
        if as_json:
            click.echo(json.dumps(plan.as_json("incomplete", finished), indent=2))
        raise
    if as_json:
        click.echo(json.dumps(plan.as_json("recovered", finished), indent=2))
    else:
        click.echo("Recovered. Start `tailrace run`: it copies the tables again, beside the stream.")
    return _DONE


def _end(plan: RecoveryPlan, state: str, *, as_json: bool, code: int) -> int:
    if as_json:
        click.echo(json.dumps(plan.as_json(state, []), indent=2))
    return code
