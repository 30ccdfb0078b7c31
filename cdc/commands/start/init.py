"""`tailrace init`: inspect a database, write a config for it, and print the SQL that the database still needs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import psycopg
from psycopg import sql

from cdc.config import parse_config
from cdc.config.dsn import dsn_parameters, dsn_problem
from cdc.errors import UsageError
from cdc.names import is_prefix
from cdc.postgres.connection import connect
from cdc.public_settings import is_public_libpq_parameter
from cdc.secrets import Dsn
from cdc.setup.config_text import PASSWORD_VARIABLE, config_text, dsn_text
from cdc.setup.source_sql import source_sql
from cdc.setup.survey import Survey, choose_role, survey

_PUBLICATION = "tailrace"


@click.command()
@click.option(
    "--dsn",
    required=True,
    envvar="TAILRACE_DSN",
    show_envvar=True,
    help="Connection string of the primary; any role that can log in is enough.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("tailrace.toml"),
    show_default=True,
    help="Config file to write.",
)
@click.option("--force", is_flag=True, help="Overwrite the output file if it exists.")
@click.option("--kafka", "bootstrap", default="localhost:9092", show_default=True, metavar="HOST:PORT")
@click.option("--prefix", help="First part of every topic, index and key name  [default: the database's name]")
@click.option(
    "--role", help="Role that capture connects as  [default: the DSN's role if it has REPLICATION; else tailrace]"
)
def init(dsn: str, output: Path, force: bool, bootstrap: str, prefix: str | None, role: str | None) -> None:
    """Inspect a database (read-only), write a commented config for it, and print the SQL that the database needs.

    The SQL goes to standard output, ready to run. It contains only what is missing, so a second `init` after running it
    prints no SQL. The config contains no password; it refers to an environment variable.
    """
    if output.exists() and not force:
        raise UsageError(f"{output} exists.", remedy="Use --force to overwrite it, or --output to name another file.")
    secret = Dsn.parse(dsn)
    if problem := dsn_problem(secret):
        raise UsageError(f"--dsn {problem}.")
    with connect(dsn, application_name="tailrace init") as connection:
        found = survey(connection, role=role or choose_role(connection), publication=_PUBLICATION)
        text, needs_password = _config(found, connection, secret, bootstrap, prefix or _prefix_of(found.database))
    _write(output, text, force=force)
    click.echo(source_sql(found, publication=sql.Identifier(_PUBLICATION).as_string(None)), nl=False)
    _say_what_next(found, output, needs_password=needs_password)


def _config(found: Survey, connection: psycopg.Connection, dsn: Dsn, bootstrap: str, prefix: str) -> tuple[str, bool]:
    """Return the config text and whether it needs a password.

    The text is parsed before it is written, so that a bad --kafka or --prefix gets the config reader's error message.
    """
    given = dsn_parameters(dsn)
    # A new role needs a password if the present role used one, from whatever place libpq read it.
    is_new = connection.info.user != found.role.name
    needs_password = "password" in given or (is_new and bool(connection.pgconn.used_password))
    text = config_text(
        found,
        dsn=dsn_text(_without_secrets(given, connection, found.role.name)),
        password=needs_password,
        slot=_slot_of(prefix),
        publication=_PUBLICATION,
        bootstrap=bootstrap,
        prefix=prefix,
    )
    parse_config(text, file=Path("the config"), environment={**os.environ, PASSWORD_VARIABLE: "unknown"})
    return text, needs_password


def _without_secrets(given: dict[str, str], connection: psycopg.Connection, role: str) -> dict[str, str]:
    """Return the DSN's parameters that are not secret.

    Parameters that libpq took from the environment are filled in, because capture may run on another machine.
    """
    info = connection.info
    place = {} if {"host", "hostaddr", "service"} & set(given) else {"host": info.host, "port": str(info.port)}
    known = {**place, "dbname": info.dbname, **given, "user": role}
    return {name: value for name, value in known.items() if name == "options" or is_public_libpq_parameter(name)}


def _prefix_of(database: str) -> str:
    prefix = re.sub(r"[^a-z0-9_-]", "_", database.lower())[:40].lstrip("_-")
    return prefix if is_prefix(prefix) else "tailrace"


def _slot_of(prefix: str) -> str:
    """Return a slot name that contains the prefix: slot names are shared by all pipelines of a server."""
    return f"tailrace_{re.sub('[^a-z0-9_]', '_', prefix.lower())}"[:63]


def _write(output: Path, text: str, *, force: bool) -> None:
    try:
        if not force:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
            return
        beside = output.with_name(f".{output.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(output)
    except OSError as error:
        raise UsageError(f"Cannot write {output}: {error.strerror}.") from None


def _say_what_next(found: Survey, output: Path, *, needs_password: bool) -> None:
    left_out = len(found.tables) - len(found.capturable)
    click.echo(
        f"{output}: {len(found.capturable)} tables to capture, {left_out} left out; the file names each reason.",
        err=True,
    )
    if not found.capturable:
        click.echo("No table can be captured yet, so the config selects all tables of schema public.", err=True)
    if needs_password:
        click.echo(
            f"The file contains no password: set the environment variable {PASSWORD_VARIABLE} to the password of role "
            f"{found.role.name} where Tailrace runs.",
            err=True,
        )
    click.echo("Next: run the SQL above on the source, then `tailrace capture`.", err=True)
