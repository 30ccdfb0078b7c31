"""The command `tailrace`: the table of subcommands, which are imported on use, and the output of errors.

A new command needs one line in COMMANDS. Importing this module must stay fast: `tailrace --help` imports neither a
database driver nor Spark.
"""

from __future__ import annotations

import difflib
import importlib
import textwrap
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from cdc import __version__
from cdc.errors import TailraceError
from cdc.secrets import redact

LOG_LEVELS = ("debug", "info", "warning", "error")
EXIT_INTERRUPTED = 130


class Lazy(NamedTuple):
    """A subcommand that is not imported yet: its group, its `module:attribute`, and its line of help."""

    group: str
    target: str
    help: str


def _lazy(group: str, target: str, help: str) -> Lazy:  # noqa: A002 - as click names it
    return Lazy(group, f"cdc.commands.{group}.{target}", help)


#: The groups of commands: packages of `cdc.commands`, and the sections of `tailrace --help`.
GROUPS = {"start": "Getting started", "pipeline": "Pipeline", "observe": "Observation", "operate": "Operation"}

COMMANDS = {
    "init": _lazy("start", "init:init", "Write a config for a database, and print the SQL that it needs."),
    "check": _lazy("start", "check:check", "Check what capture depends on; print a remedy per problem."),
    "config": _lazy("start", "config:config", "Show the effective config, with secrets masked."),
    "demo": _lazy("start", "demo:demo", "Run an example shop and a pipeline on the local servers."),
    "stack": _lazy("start", "stack:stack", "Run the local servers: Postgres, Kafka, Elasticsearch, Redis."),
    "run": _lazy("pipeline", "run:run", "Run and supervise capture, due snapshots and all syncs."),
    "capture": _lazy("pipeline", "capture:capture", "Publish every change of the source to the topics."),
    "snapshot": _lazy("pipeline", "snapshot:snapshot", "Publish the existing rows of tables, as a Spark job."),
    "sync": _lazy("pipeline", "sync:sync", "Apply the topics' events to stores."),
    "bootstrap": _lazy("pipeline", "bootstrap:bootstrap", "Build a store from the topics, then switch readers to it."),
    "pause": _lazy("pipeline", "pause:pause", "Pause the sync of stores."),
    "resume": _lazy("pipeline", "pause:resume", "Resume the sync of paused stores."),
    "lag": _lazy("observe", "lag:lag", "Print the lag and the health of every hop."),
    "wait": _lazy("observe", "wait:wait", "Wait until stores have applied all changes up to an LSN."),
    "tail": _lazy("observe", "tail:tail", "Print the changes of a table as they are published."),
    "audit": _lazy("observe", "audit:audit", "Compare stores or topics with the source; repair them."),
    "query": _lazy("observe", "query:query", "Run Spark SQL over the warehouse's present or past state."),
    "dashboard": _lazy("observe", "dashboard:dashboard", "Serve the web dashboard and /metrics, and send alerts."),
    "parked": _lazy("operate", "parked:parked", "List, show and retry rows that could not be delivered."),
    "recover": _lazy("operate", "recover:recover", "Repair a pipeline that capture refuses to continue."),
    "maintain": _lazy("operate", "maintain:maintain", "Compact the warehouse's files, expire old snapshots."),
    "remove": _lazy("operate", "remove:remove", "Remove a table, or the whole capture with its slot."),
}


@dataclass(slots=True)
class Invocation:
    """Settings of one run that `main` still needs after click has raised an error."""

    log_level: str = "info"


class LazyGroup(click.Group):
    """A command group that lists its commands without importing them, and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"no such command: {name}.{_suggestion(name)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        for group, title in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items() if lazy.group == group])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tailrace")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    envvar="TAILRACE_LOG",
    show_envvar=True,
    help="Lowest level of log lines to print; debug also prints tracebacks.",
)
@click.pass_context
def tailrace(ctx: click.Context, log_level: str) -> None:
    """Keep a search index, a cache and a warehouse in step with a Postgres database.

    Exit codes: 0 success, 1 a negative result or an error, 2 wrong usage or config, 3 refused: the operator must
    decide.
    """
    from cdc import logs  # noqa: PLC0415 - structlog is not needed for --help

    ctx.ensure_object(Invocation).log_level = log_level
    logs.configure(log_level)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tailrace`, print errors to stderr with their remedies, and return the exit code."""
    invocation = Invocation()
    try:
        result = tailrace.main(
            args=None if argv is None else list(argv), prog_name="tailrace", standalone_mode=False, obj=invocation
        )
    except TailraceError as error:
        _report(error, invocation)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as error:
        _report_unexpected(error, invocation)
        return 1
    return result if type(result) is int else 0


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f" Did you mean {near[0]}?" if near else f" Commands: {', '.join(COMMANDS)}."


def _report(error: TailraceError, invocation: Invocation) -> None:
    _traceback(error, invocation)
    _complain(error.message)
    if error.remedy:
        click.echo(textwrap.indent(redact(error.remedy), "  "), err=True)


def _report_unexpected(error: Exception, invocation: Invocation) -> None:
    _traceback(error, invocation)
    what = str(error).strip().splitlines()
    _complain(f"{type(error).__name__}: {what[0]}" if what else type(error).__name__)
    if invocation.log_level != "debug":
        click.echo("  This error is unexpected. `tailrace --log-level debug …` prints its traceback.", err=True)


def _complain(message: str) -> None:
    click.echo(f"tailrace: error: {redact(message)}", err=True)


def _traceback(error: Exception, invocation: Invocation) -> None:
    if invocation.log_level == "debug":
        click.echo(redact("".join(traceback.format_exception(error))), err=True, nl=False)
