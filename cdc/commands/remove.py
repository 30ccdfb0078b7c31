"""`tailrace remove`: show what would go, ask, and take it away."""

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
@click.option("--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Take this table away; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Take the whole capture away: slot and publication.")
@click.option("--topics", "delete_topics", is_flag=True, help="Delete the topics too; their content is lost.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
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
    """Take a table, or the whole capture, away, so that no slot is left behind to fill the server's disk.

    Stop capture first. What is going to happen is shown and asked for; topics go only with --topics, and then the
    prefix has to be typed. Interrupted, it is simply run again. Exit codes: 0 done, 1 nothing to remove or the answer
    was no, 3 refused (capture runs, or the owner of the publication has to act).
    """
    if bool(tables) == everything:
        raise UsageError("Say what to remove: either --table or --all.")
    if as_json and not (yes or dry_run):
        raise UsageError("--json does not ask: it needs --yes or --dry-run.")
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
        raise UsageError(f"{name}: name one table; --table can be repeated.")
    return selector


@contextmanager
def _removal(config: Config, tables: Sequence[TableSelector], *, delete_topics: bool) -> Iterator[Removal]:
    with connect(config.source.conninfo(), application_name="tailrace remove") as connection:
        topics = _topics(config, needed=bool(tables) or delete_topics)
        try:
            if tables:
                assert topics is not None  # noqa: S101 - it was needed
                yield TableRemoval(config, connection, topics, tables, delete_topics=delete_topics)
            else:
                yield CaptureRemoval(config, connection, topics, delete_topics=delete_topics)
        finally:
            if topics is not None:
                topics.close()


def _topics(config: Config, *, needed: bool) -> RemovableTopics | None:
    """A slot that fills the disk can be dropped while Kafka is down; all else needs it."""
    try:
        return RemovableTopics(config.kafka)
    except TransientError:
        if needed:
            raise
        return None


def _show(plan: RemovalPlan, *, delete_topics: bool) -> None:
    if not plan.steps:
        left = " Its topics are left; --topics deletes them." if plan.left and not delete_topics else ""
        click.echo(f"There is nothing to remove.{left}")
    else:
        click.echo("To be done:")
    for line in plan.lines():
        click.echo(line)


def _agreed(config: Config, plan: RemovalPlan) -> bool:
    if any(step.action is RemovalAction.DELETE_TOPIC for step in plan.steps):
        prefix = config.kafka.prefix
        click.echo(f"The topics' content will be lost. Type the prefix ({prefix}) to go on: ", nl=False)
        return sys.stdin.readline().strip() == prefix
    return agreed()
