"""The charted figures of the last days, in a SQLite file beside the config. Charts survive a reload and a restart.

There are two series: every reading, kept for two hours, and one summary per minute, kept for eight days. Each insert
deletes expired rows, so the file stays below a few megabytes. It may be deleted at any time: only the charts use it.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cdc.config import Config
from cdc.errors import TailraceError
from cdc.monitoring.state_folder import state_folder
from cdc.monitoring.status_record import PipelineStatus

_FINE, _COARSE = 0, 1
_FINE_SECONDS = 2 * 3600.0
_COARSE_SECONDS = 8 * 86_400.0
_MINUTE = 60.0
_SCHEMA = """
create table if not exists figures (ring integer, at real, figures text, primary key (ring, at)) without rowid;
pragma user_version = 1;
"""
_FORMAT = 1

Figures = dict[str, float]


def figures_of(record: PipelineStatus) -> Figures:
    """Return the charted figures by name. An unknown figure is left out and becomes a gap in the chart."""
    found: dict[str, float | int | None] = {
        "wal_bytes_per_second": record.source.wal_bytes_per_second,
        "slot_retained_bytes": record.slot.retained_bytes,
        "slot_left_bytes": record.slot.left_bytes,
        "topics_seconds": record.topics.seconds,
        "topics_bytes": record.topics.bytes,
        "topics_records_per_second": record.topics.records_per_second,
    }
    for store in record.stores:
        found[f"store_seconds:{store.name}"] = store.seconds
        found[f"store_records:{store.name}"] = store.records
        found[f"store_records_per_second:{store.name}"] = store.records_per_second
    return {name: round(float(value), 3) for name, value in found.items() if value is not None}


class History:
    """The file of charted figures. It is thread-safe."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._minute: list[Figures] = []
        self._minute_at = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = _opened(path)
        except sqlite3.DatabaseError:  # damaged, or written by a newer version: start a new file
            path.replace(path.with_name(path.name + ".unreadable"))
            self._connection = _opened(path)
        except OSError as error:
            raise TailraceError(f"Cannot open {path}: {error.strerror}.") from None

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def add(self, at: float, figures: Mapping[str, float]) -> None:
        """Add a reading, and the summary of the previous minute when a new minute begins."""
        with self._lock, self._connection:
            self._write(_FINE, at, figures, _FINE_SECONDS)
            minute = at // _MINUTE * _MINUTE
            if minute != self._minute_at and self._minute:
                self._write(_COARSE, self._minute_at, _summary(self._minute), _COARSE_SECONDS)
                self._minute.clear()
            self._minute_at = minute
            self._minute.append(dict(figures))

    def read(self, since: float, until: float, points: int = 240) -> dict[str, Any]:
        """Return at most `points` `times` and, for each figure, one value per time; None where it was unknown."""
        ring = _FINE if until - since <= _FINE_SECONDS else _COARSE
        with self._lock, closing(self._connection.cursor()) as cursor:
            rows = cursor.execute(
                "select at, figures from figures where ring = ? and at between ? and ? order by at",
                (ring, since, until),
            ).fetchall()
        step = max((until - since) / points, 1e-3)
        buckets: dict[int, list[Figures]] = {}
        for at, text in rows:
            buckets.setdefault(int((at - since) / step), []).append(json.loads(text))
        numbers = sorted(buckets)
        merged = [_summary(buckets[number]) for number in numbers]
        names = sorted({name for each in merged for name in each})
        return {
            "times": [round(since + (number + 0.5) * step, 3) for number in numbers],
            "step_seconds": step,
            "figures": {name: [each.get(name) for each in merged] for name in names},
        }

    def _write(self, ring: int, at: float, figures: Mapping[str, float], keep_seconds: float) -> None:
        self._connection.execute(
            "insert or replace into figures values (?, ?, ?)", (ring, at, json.dumps(figures, separators=(",", ":")))
        )
        self._connection.execute("delete from figures where ring = ? and at < ?", (ring, at - keep_seconds))


def open_history(config: Config) -> History:
    """Open the history file of the config's pipeline."""
    return History(state_folder(config) / f"history-{config.kafka.prefix}.db")


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=10)
    try:
        # Losing a few readings in a crash is harmless; an fsync for every reading is expensive.
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = off")
        if connection.execute("pragma user_version").fetchone()[0] > _FORMAT:
            raise sqlite3.DatabaseError("written by a newer version")
        connection.executescript(_SCHEMA)
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _summary(rows: Iterable[Figures]) -> Figures:
    """Summarise readings: rates by their mean, all other figures by their worst value, so that peaks of lag remain."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: round(_worst(name, each), 3) for name, each in values.items()}


def _worst(name: str, values: list[float]) -> float:
    if "per_second" in name:
        return sum(values) / len(values)
    return min(values) if name == "slot_left_bytes" else max(values)
