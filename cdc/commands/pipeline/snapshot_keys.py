"""`tailrace snapshot --keys`: publish the current rows of a table with given keys again."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from cdc.config import Config
from cdc.errors import UsageError
from cdc.snapshot.incremental.keys import record_keys, snapshot_keys
from cdc.tables.state_reader import read_recorded_states


def snapshot_rows(config: Config, table: str, given: str, *, as_json: bool) -> int:
    """Publish the rows of `table` whose keys are in `given`, print the result, and return the exit code."""
    name = table if "." in table else f"public.{table}"
    states = read_recorded_states(config)
    oids = {f"{state.schema}.{state.table}": oid for oid, state in states.tables.items()} if states is not None else {}
    if name not in oids:
        raise UsageError(f"Table {name} is not captured.", remedy=f"Captured are: {', '.join(sorted(oids)) or 'none'}.")
    keys = record_keys(config, oids[name], texts_of(given))
    published = snapshot_keys(config, oids[name], keys)
    if as_json:
        click.echo(orjson.dumps({"event": "result", "table": name, "keys": len(keys), "published": published}).decode())
    else:
        click.echo(f"Published {published:,} of {len(keys):,} keys of {name} again.")
    return 0


def texts_of(given: str) -> list[str]:
    """Return the keys in `given`: a file with one key per line, or keys or JSON arrays separated by commas."""
    try:
        lines = Path(given).read_text().splitlines() if Path(given).is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {given}: {error}.") from None
    if lines is not None:
        return [line for line in lines if line.strip()]
    if not given.lstrip().startswith("["):
        return [text for text in given.split(",") if text]
    try:
        return [orjson.dumps(each).decode() for each in orjson.loads(f"[{given}]")]
    except orjson.JSONDecodeError:
        raise UsageError("--keys is neither a file nor a list of keys separated by commas.") from None
