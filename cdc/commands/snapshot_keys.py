"""`tailrace snapshot --keys`: some rows of a table copied anew, by their keys."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from cdc.config import Config
from cdc.errors import UsageError


def copy_some(config: Config, table: str, given: str, *, as_json: bool) -> int:
    from cdc.snapshot.incremental.keys import copy_keys, record_keys  # noqa: PLC0415 - needs Kafka's client
    from cdc.tables.state_reader import read_recorded_states  # noqa: PLC0415 - as above

    name = table if "." in table else f"public.{table}"
    states = read_recorded_states(config)
    oids = {f"{state.schema}.{state.table}": oid for oid, state in states.tables.items()} if states is not None else {}
    if name not in oids:
        raise UsageError(f"Table {name} is not captured.", remedy=f"Captured are: {', '.join(sorted(oids)) or 'none'}.")
    keys = record_keys(config, oids[name], texts_of(given))
    published = copy_keys(config, oids[name], keys)
    if as_json:
        click.echo(orjson.dumps({"event": "result", "table": name, "keys": len(keys), "published": published}).decode())
    else:
        click.echo(f"{published:,} of {len(keys):,} keys of {name} published anew.")
    return 0


def texts_of(given: str) -> list[str]:
    """A file with one key on each line, or keys with commas between; JSON arrays may hold commas of their own."""
    try:
        lines = Path(given).read_text().splitlines() if Path(given).is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{given} cannot be read: {error}.") from None
    if lines is not None:
        return [line for line in lines if line.strip()]
    if not given.lstrip().startswith("["):
        return [text for text in given.split(",") if text]
    try:
        return [orjson.dumps(each).decode() for each in orjson.loads(f"[{given}]")]
    except orjson.JSONDecodeError:
        raise UsageError("--keys is neither a file nor keys with commas between.") from None
