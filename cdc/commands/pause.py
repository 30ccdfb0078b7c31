"""`tailrace pause` and `tailrace resume`: hold the sync of stores, and let it go on."""

from __future__ import annotations

from pathlib import Path

import click

from cdc.commands.options import config_option
from cdc.config import load_config
from cdc.errors import UsageError


@click.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@config_option
def pause(stores: tuple[str, ...], config_path: Path) -> None:
    """Hold the sync of STOREs after the batch under way, wherever it runs, until `tailrace resume`.

    Other stores and capture do not notice. A pause lasts across restarts; one that is longer than [kafka]
    delete_retention_hours ends in a bootstrap.
    """
    _set(stores, config_path, paused=True)


@click.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@config_option
def resume(stores: tuple[str, ...], config_path: Path) -> None:
    """Let paused STOREs go on from where they are."""
    _set(stores, config_path, paused=False)


def _set(stores: tuple[str, ...], config_path: Path, *, paused: bool) -> None:
    from cdc.positions.store_notes import set_paused  # noqa: PLC0415 - the drivers take their time

    config = load_config(config_path)
    for name in stores:
        if name not in config.stores:
            raise UsageError(f"There is no [stores.{name}] in the config.")
    for name in stores:
        set_paused(config, name, paused)
        click.echo(f"{name}: {'paused' if paused else 'goes on'}")
