"""`tailrace remove`: print the plan, ask for confirmation, and remove a table or the whole capture."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from cdc.commands.options import config_option, json_option
from cdc.commands.plans import DONE, NOTHING_OR_NO, agreed, carry_out, end
from cdc.config import Config, TableSelector, load_config
from cdc.errors import TransientError, UsageError
from cdc.postgres.connection import connect
from cdc.setup.capture_removal import CaptureRemoval
from cdc.setup.removable_topics import RemovableTopics
from cdc.setup.removal import Removal, RemovalAction, RemovalPlan
from cdc.setup.table_removal import TableRemoval


@click.command()
@config_option
@click.option("--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Remove this table; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Remove the whole capture: slot and publication.")
@click.option("--topics", "delete_topics", is_flag=True, help="Also delete the topics, with their content.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing.")
@json_option
def remove(
    config_path: Path,
    tables: Sequence[str],
    everything: bool,
    delete_topics: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Remove a table or the whole capture, so that no unused slot fills the server's disk with WAL.

    Stop capture first. The command prints its plan and asks for confirmation. It deletes topics only with --topics, and
    then the operator must type the prefix to confirm. If the command is interrupted, run it again. Exit codes: 0 done,
    1 nothing to remove or the answer was no, 3 refused (capture is running, or the owner of the publication must act).
    """
    if bool(tables) == everything:
        raise UsageError("Use either --table or --all to choose what to remove.")
    if as_json and not (yes or dry_run):
        raise UsageError("--json cannot ask for confirmation: it needs --yes or --dry-run.")
    selectors = [_table(name) for name in tables]
    config = load_config(config_path)
    with _removal(config, selectors, delete_topics=delete_topics) as removal:
        plan = removal.plan()
        if not as_json:
            _show(plan, delete_topics=delete_topics)
        if not plan.steps:
            return end(plan, "nothing", as_json=as_json, code=NOTHING_OR_NO)
        if plan.refusal is not None:
            if as_json:
                end(plan, "refused", as_json=True, code=plan.refusal.exit_code)
            raise plan.refusal
        if dry_run:
            return end(plan, "planned", as_json=as_json, code=DONE)
        if not yes and not _agreed(config, plan):
            click.echo("Nothing was removed.")
            return NOTHING_OR_NO
        return carry_out(plan, partial(removal.carry_out, plan), state="removed", as_json=as_json)


def _table(name: str) -> TableSelector:
    try:
        selector = TableSelector.parse(name)
    except ValueError as error:
        raise UsageError(f"{name}: {error}.") from None
    if selector.table is None:
        raise UsageError(f"{name}: --table takes the name of one table; repeat --table for several.")
    return selector


@contextmanager
def _removal(config: Config, tables: Sequence[TableSelector], *, delete_topics: bool) -> Iterator[Removal]:
    with connect(config.source.conninfo(), application_name="tailrace remove") as connection:
        topics = _topics(config, needed=bool(tables) or delete_topics)
        try:
            if tables:
                assert topics is not None  # noqa: S101 - `needed` is true, so _topics raises instead of returning None
                yield TableRemoval(config, connection, topics, tables, delete_topics=delete_topics)
            else:
                yield CaptureRemoval(config, connection, topics, delete_topics=delete_topics)
        finally:
            if topics is not None:
                topics.close()


def _topics(config: Config, *, needed: bool) -> RemovableTopics | None:
    """Connect to Kafka. Return None if Kafka is down and not `needed`.

    Dropping a slot that fills the disk must work while Kafka is down. Every other removal needs Kafka.
    """
    try:
        return RemovableTopics(config.kafka)
    except TransientError:
        if needed:
            raise
        return None


def _show(plan: RemovalPlan, *, delete_topics: bool) -> None:
    if not plan.steps:
        left = " Its topics remain; --topics deletes them." if plan.left and not delete_topics else ""
        click.echo(f"There is nothing to remove.{left}")
    else:
        click.echo("Plan:")
    for line in plan.lines():
        click.echo(line)


def _agreed(config: Config, plan: RemovalPlan) -> bool:
    if any(step.action is RemovalAction.DELETE_TOPIC for step in plan.steps):
        prefix = config.kafka.prefix
        click.echo(f"The topics' content will be lost. Type the prefix ({prefix}) to continue: ", nl=False)
        return sys.stdin.readline().strip() == prefix
    return agreed()
