"""Demonstrates time travel: records the shop's totals at an LSN, and later queries the warehouse as of that LSN."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cdc.config import Config
from cdc.errors import TransientError
from cdc.lsn import LSN
from cdc.postgres import catalog
from cdc.postgres.connection import connect

_QUERY = "SELECT count(*) AS orders, coalesce(sum(total), 0) AS total FROM public.orders"
_SECONDS = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTotals:
    """The number of orders and their total value at an LSN."""

    lsn: LSN
    orders: int
    total: str


def remember(config: Config) -> PastTotals:
    """Read the totals and the current LSN. No client may write to the shop meanwhile."""
    with connect(config.source.conninfo()) as connection:
        row = connection.execute("SELECT count(*), coalesce(sum(total), 0)::text FROM public.orders").fetchone()
        lsn = catalog.current_lsn(connection)
    if row is None:
        raise TransientError("The shop has no orders to count.")
    return PastTotals(lsn=lsn, orders=row[0], total=f"{float(row[1]):.2f}")


def query_as_of(past: PastTotals, config_file: Path, show: Callable[[str], None]) -> bool:
    """Query the warehouse with `tailrace query --as-of`, show the answer, and return whether it equals `past`."""
    arguments = ["query", _QUERY, "--as-of", str(past.lsn), "--json", "--config", str(config_file)]
    answered = subprocess.run(
        [sys.executable, "-m", "cdc", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if answered.returncode != 0:
        raise TransientError(f"The query of the warehouse as of {past.lsn} failed: {answered.stderr.strip()[-300:]}")
    found = json.loads(answered.stdout)["rows"][0]
    same = found["orders"] == past.orders and f"{float(found['total']):.2f}" == past.total
    then = f"{past.orders:,} orders worth {past.total}"
    now = "as the source had then" if same else f"but the source had {then}"
    show(f"warehouse as of {past.lsn}: {found['orders']:,} orders worth {float(found['total']):.2f}, {now}.")
    return same
