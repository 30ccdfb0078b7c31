"""`tailrace lag`: how far behind is each store?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc.commands.options import config_option, json_option
from cdc.config import load_config
from cdc.errors import UsageError

if TYPE_CHECKING:
    from cdc.store_lag import Lag, StoreLag


@click.command()
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@config_option
@json_option
@click.option("--max-seconds", type=click.FloatRange(min=0), help="Exit code 1 if a store is further behind.")
def lag(stores: tuple[str, ...], config_path: Path, as_json: bool, max_seconds: float | None) -> int:
    """Say how far STOREs (all, unless named) are behind the source: bytes of its log, records, seconds.

    Heartbeats move an idle store on, so that its seconds stay below the heartbeat's interval. Exit code 1: a store is
    further behind than --max-seconds, or nobody can tell.
    """
    from cdc.store_lag import read_lag  # noqa: PLC0415 - the stores' clients take their time

    config = load_config(config_path)
    for name in stores:
        if name not in config.stores:
            raise UsageError(f"There is no [stores.{name}] in the config.")
    found = read_lag(config, stores or list(config.stores))
    click.echo(json.dumps(_as_json(found), indent=2) if as_json else "\n".join(_lines(found)))
    too_far = [
        each
        for each in found.stores
        if each.seconds is None or each.seconds > (max_seconds if max_seconds is not None else float("inf"))
    ]
    return 1 if max_seconds is not None and too_far else 0


def _as_json(found: Lag) -> dict[str, Any]:
    return {
        "source_lsn": str(found.source_lsn) if found.source_lsn is not None else None,
        "topics_lsn": str(found.topics_lsn) if found.topics_lsn is not None else None,
        "stores": [{**asdict(each), "lsn": str(each.lsn) if each.lsn is not None else None} for each in found.stores],
    }


def _lines(found: Lag) -> list[str]:
    source = f"source at {found.source_lsn}" if found.source_lsn is not None else "the source does not answer"
    return [
        f"{source}, topics at {found.topics_lsn if found.topics_lsn is not None else 'nothing yet'}",
        *(_line(each) for each in found.stores),
    ]


def _line(each: StoreLag) -> str:
    if each.problem is not None or each.seconds is None:
        return f"{each.name}: {each.problem}"
    behind = f"{each.bytes:,} bytes" if each.bytes is not None else "unknown bytes"
    return f"{each.name}: at {each.lsn}, {behind}, {each.records:,} records, {each.seconds:.1f} s behind"
