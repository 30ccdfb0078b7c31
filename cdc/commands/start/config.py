"""`tailrace config`: print the effective config with defaults filled in and secrets masked."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cdc.commands.options import config_option, json_option
from cdc.config import load_config
from cdc.config.toml.report import as_plain, as_toml


@click.command()
@config_option
@json_option
def config(config_path: Path, as_json: bool) -> None:
    """Show the effective config: every key with its value or default, secrets masked.

    This is also the quickest way to test a config file: if it has problems, the command lists all of them and exits
    with code 2.
    """
    plain = as_plain(load_config(config_path))
    click.echo(json.dumps(plain, indent=2, ensure_ascii=False) if as_json else as_toml(plain))
