"""`tailrace wait`: wait until stores have applied a given LSN, to read one's own writes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cdc.commands.options import config_option, json_option
from cdc.config import load_config
from cdc.errors import UsageError
from cdc.lsn import LSN
from cdc.positions.wait import wait_for


@click.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@config_option
@json_option
@click.option(
    "--lsn", "lsn_text", required=True, metavar="LSN", help="LSN to wait for, as Postgres prints it: 16/B374D848."
)
@click.option("--timeout", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait.")
def wait(stores: tuple[str, ...], config_path: Path, as_json: bool, lsn_text: str, timeout: float) -> int:
    """Wait until every STORE has applied all changes that were committed before the LSN.

    After its commit, a writer gets the LSN from SELECT pg_current_wal_insert_lsn(). Exit code 0: every store has
    reached the LSN. Exit code 1: the timeout passed first.
    """
    try:
        lsn = LSN.parse(lsn_text)
    except ValueError as error:
        raise UsageError(f"--lsn: {error}.") from None
    waited = wait_for(load_config(config_path), stores, lsn, timeout_seconds=timeout)
    if as_json:
        found = {each.name: {"lsn": str(each.lsn), "problem": each.problem} for each in waited.stores}
        click.echo(json.dumps({"reached": waited.reached, "lsn": str(lsn), "stores": found}, indent=2))
    else:
        for each in waited.stores:
            word = "reached" if each.lsn >= lsn else "not reached yet"
            click.echo(f"{each.name}: {word} (at {each.lsn}{'; ' + each.problem if each.problem else ''})")
    return 0 if waited else 1
