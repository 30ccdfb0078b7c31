"""The SQL that writes rows in the warehouse, in Spark's dialect. Pure: no I/O.

Every statement is idempotent. A statement that was planned before the commit of another process fails at its own commit
(serializable isolation), or sees the result of that commit:

- A statement inserts a version into the history only if the history has neither that version nor a newer one. It closes
  the open version only if the new one is newer. So each key has one open version.
- A statement writes only those rows of a batch to the current table that are the newest in the history. It reads the
  history in the same statement. So it does not undo a concurrent delete.
"""

# ruff: noqa: S608 - identifiers pass through `quoted_name`, and everything else is a number

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sinks.iceberg.naming import (
    AT,
    CATALOG,
    CLOSING,
    ENDS,
    LAST_POSITION,
    LAST_SEQ,
    OP,
    OPEN,
    POSITION,
    SEQ,
    TO_POSITION,
    TO_SEQ,
    VALID_FROM,
    VALID_TO,
    Identifier,
)
from sinks.iceberg.schemas import CURRENT_OWN, HISTORY_OWN

#: The end of an open version: the first of the batch's ends for its key that is newer than the version.
_ENDS = (
    f"array_min(filter(s.{ENDS}, e -> e.position > t.{POSITION} OR (e.position = t.{POSITION} AND e.seq > t.{SEQ})))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table's names and columns, and bounds of the batch's keys.

    `ranges` are the ranges (first and last value) of the first key column in the batch. `hashes` are the hashes of the
    batch's keys, given if the keys are few compared with the table. Rows with other hashes are not joined.
    """

    current: Identifier
    history: Identifier
    columns: Sequence[str]
    key: Sequence[str]
    least_position: int
    ranges: Sequence[tuple[int, int]] = ()
    hashes: tuple[int, ...] = ()


def quoted_name(name: str) -> str:
    """Return a quoted identifier."""
    return "`" + name.replace("`", "``") + "`"


def full_name(name: Identifier) -> str:
    """Return a table's quoted name with the catalog."""
    return ".".join(quoted_name(part) for part in (CATALOG, *name))


def merge_history(target: Target, inserts: str, closings: str) -> str:
    """Return the MERGE that adds a batch's versions to the history and closes the versions that they replace.

    `inserts` is a view of versions as complete rows of the history. `closings` is a view with one row per key and the
    possible ends of its open version.
    """
    own = list(HISTORY_OWN)
    columns = [quoted_name(each) for each in [*target.columns, *own]]
    listed = ", ".join(columns)
    keys = {quoted_name(each) for each in target.key}
    empty = ", ".join(each if each in keys else f"NULL AS {each}" for each in columns)
    newer = f"(h.{POSITION} > b.{POSITION} OR (h.{POSITION} = b.{POSITION} AND h.{SEQ} > b.{SEQ}))"
    known = (
        f"SELECT /*+ BROADCAST(b) */ {_of('b', [*target.key, POSITION, SEQ])} FROM {full_name(target.history)} h"
        f" JOIN (SELECT {_plain([*target.key, POSITION, SEQ])} FROM {inserts}) b ON {_equal('h', 'b', target.key)}"
        f" AND ((h.{POSITION} = b.{POSITION} AND h.{SEQ} = b.{SEQ}) OR (h.{OPEN} AND {newer}))"
        f" WHERE h.{POSITION} >= {target.least_position}"
    )
    return (
        f"MERGE INTO {full_name(target.history)} t USING ("
        f" SELECT {_of('i', [*target.columns, *own])}, false AS {CLOSING}, i.{ENDS},"
        f" CAST(NULL AS bigint) AS {LAST_POSITION}, CAST(NULL AS int) AS {LAST_SEQ} FROM {inserts} i"
        f" LEFT ANTI JOIN ({known}) k ON {_equal('i', 'k', [*target.key, POSITION, SEQ])}"
        f" UNION ALL SELECT {empty}, true AS {CLOSING}, {ENDS}, {LAST_POSITION}, {LAST_SEQ} FROM {closings}"
        f") s ON s.{CLOSING} AND t.{OPEN} = true AND {_equal('t', 's', target.key)}{_bounded(target)}"
        f" AND (t.{POSITION} < s.{LAST_POSITION} OR (t.{POSITION} = s.{LAST_POSITION} AND t.{SEQ} < s.{LAST_SEQ}))"
        f" WHEN MATCHED THEN UPDATE SET t.{OPEN} = false, t.{TO_POSITION} = {_ENDS}.position,"
        f" t.{TO_SEQ} = {_ENDS}.seq, t.{VALID_TO} = {_ENDS}.at"
        f" WHEN NOT MATCHED AND NOT s.{CLOSING} THEN INSERT ({listed}) VALUES ({_of('s', [*target.columns, *own])})"
    )


def merge_current(target: Target, rows: str, *, guarded: bool) -> str:
    """Return the MERGE that writes a batch to the current table.

    `rows` is a view of the newest version of each key. If `guarded`, the statement writes only versions that are the
    newest in the history.
    """
    columns = [*target.columns, *CURRENT_OWN]
    identity = [*target.key, POSITION, SEQ]
    guard = (
        f" JOIN (SELECT {_plain(identity)} FROM {full_name(target.history)}"
        f" WHERE {OPEN} = true AND {POSITION} >= {target.least_position}) h ON {_equal('r', 'h', identity)}"
    )
    assigned = ", ".join(f"t.{quoted_name(each)} = s.{quoted_name(each)}" for each in columns)
    newer = f"(s.{POSITION} > t.{POSITION} OR (s.{POSITION} = t.{POSITION} AND s.{SEQ} > t.{SEQ}))"
    return (
        f"MERGE INTO {full_name(target.current)} t USING ("
        f"SELECT /*+ BROADCAST(r) */ {_of('r', columns)}, r.{OP} FROM {rows} r{guard if guarded else ''}"
        f") s ON {_equal('t', 's', target.key)}{_bounded(target)}"
        f" WHEN MATCHED AND {newer} AND s.{OP} = 'd' THEN DELETE"
        f" WHEN MATCHED AND {newer} THEN UPDATE SET {assigned}"
        f" WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({_plain(columns)}) VALUES ({_of('s', columns)})"
    )


def close_superseded(target: Target) -> str:
    """Return the MERGE that closes open versions for which a rebuilt current table has newer ones."""
    return (
        f"MERGE INTO {full_name(target.history)} t USING {full_name(target.current)} s"
        f" ON t.{OPEN} = true AND {_equal('t', 's', target.key)}"
        f" WHEN MATCHED AND (s.{POSITION} > t.{POSITION} OR (s.{POSITION} = t.{POSITION} AND s.{SEQ} > t.{SEQ}))"
        f" THEN UPDATE SET t.{OPEN} = false, t.{TO_POSITION} = s.{POSITION}, t.{TO_SEQ} = s.{SEQ},"
        f" t.{VALID_TO} = s.{AT}"
    )


def close_vanished(target: Target, end: Marker) -> str:
    """Return the MERGE that closes open versions of rows that a rebuilt current table lacks.

    They end at `end`, the version as of which the table was rebuilt.
    """
    gone = (
        f"SELECT {_of('h', target.key)} FROM {full_name(target.history)} h LEFT ANTI JOIN {full_name(target.current)} c"
        f" ON {_equal('h', 'c', target.key)} WHERE h.{OPEN} = true AND h.{OP} <> 'd' AND h.{POSITION} <= {end.position}"
    )
    return (
        f"MERGE INTO {full_name(target.history)} t USING ({gone}) s"
        f" ON t.{OPEN} = true AND {_equal('t', 's', target.key)} AND t.{POSITION} <= {end.position}"
        f" WHEN MATCHED THEN UPDATE SET t.{OPEN} = false, t.{TO_POSITION} = {end.position}, t.{TO_SEQ} = {end.seq},"
        f" t.{VALID_TO} = timestamp_micros({end.at_us}L)"
    )


def fill_history(target: Target) -> str:
    """Return the INSERT that copies the current table into an empty history."""
    known = {POSITION: POSITION, SEQ: SEQ, OP: "'r'", VALID_FROM: AT, OPEN: "true"}
    values = [known.get(name, f"CAST(NULL AS {kind})") for name, kind in HISTORY_OWN.items()]
    return (
        f"INSERT INTO {full_name(target.history)} ({_plain([*target.columns, *HISTORY_OWN])})"
        f" SELECT {_plain(target.columns)}, {', '.join(values)} FROM {full_name(target.current)}"
    )


def insert_unknown(target: Target, marker: Marker | None) -> str:
    """Return the MERGE that adds rows of a rebuilt current table that have no open version in the history.

    `marker` is the last TRUNCATE marker that was applied to the history. Older rows are not added.
    """
    own = {POSITION: POSITION, SEQ: SEQ, OP: "'r'", VALID_FROM: AT, OPEN: "true"}
    dead = "" if marker is None else f" WHERE NOT {is_older(marker)}"
    columns = [*target.columns, *own]
    values = ", ".join([_of("s", target.columns), *(each if each[0] in "'t" else f"s.{each}" for each in own.values())])
    return (
        f"MERGE INTO {full_name(target.history)} t USING (SELECT * FROM {full_name(target.current)}{dead}) s"
        f" ON t.{OPEN} = true AND {_equal('t', 's', target.key)}"
        f" WHEN NOT MATCHED THEN INSERT ({_plain(columns)}) VALUES ({values})"
    )


@dataclass(frozen=True, slots=True, order=True)
class Marker:
    """A TRUNCATE, or the end of a snapshot of the whole table. Older rows no longer exist."""

    position: int
    seq: int
    at_us: int
    by_copy: bool = False

    def as_end(self) -> str:
        """Return the marker as a SQL struct in the form of a version's end."""
        return f"named_struct('position', {self.position}L, 'seq', {self.seq}, 'at', timestamp_micros({self.at_us}L))"


def sweep_history(target: Target, markers: Sequence[Marker]) -> str:
    """Return the UPDATE that closes each open version that is older than a marker, at the first newer marker."""
    ends = ", ".join(marker.as_end() for marker in sorted(markers))
    end = (
        f"array_min(filter(array({ends}), e -> e.position > {POSITION} OR (e.position = {POSITION} AND e.seq > {SEQ})))"
    )
    return (
        f"UPDATE {full_name(target.history)} SET {OPEN} = false, {TO_POSITION} = {end}.position,"
        f" {TO_SEQ} = {end}.seq, {VALID_TO} = {end}.at"
        f" WHERE {OPEN} = true AND {OP} <> 'd' AND {is_older(max(markers))}"
    )


def sweep_current(target: Target, markers: Sequence[Marker]) -> str:
    """Return the DELETE that removes current rows that are older than the last marker."""
    return f"DELETE FROM {full_name(target.current)} WHERE {is_older(max(markers))}"


def is_older(marker: Marker) -> str:
    """Return the condition that a row's version is smaller than the marker's."""
    return f"({POSITION} < {marker.position} OR ({POSITION} = {marker.position} AND {SEQ} < {marker.seq}))"


def as_of_position(history: Identifier, columns: Sequence[str], position: int) -> str:
    """Return the SELECT of the rows that existed after all commits before this LSN."""
    return (
        f"SELECT {_plain(columns)} FROM {full_name(history)} WHERE {OP} <> 'd'"
        f" AND ({POSITION} < {position} OR ({POSITION} = {position} AND {SEQ} = 0))"
        f" AND ({TO_POSITION} IS NULL OR {TO_POSITION} > {position} OR ({TO_POSITION} = {position} AND {TO_SEQ} > 0))"
    )


def as_of_time(history: Identifier, columns: Sequence[str], at_us: int) -> str:
    """Return the SELECT of the rows that existed at this time of the source's clock."""
    at = f"timestamp_micros({at_us}L)"
    return (
        f"SELECT {_plain(columns)} FROM {full_name(history)} WHERE {OP} <> 'd'"
        f" AND {VALID_FROM} <= {at} AND ({VALID_TO} IS NULL OR {VALID_TO} > {at})"
    )


def _plain(names: Sequence[str]) -> str:
    return ", ".join(quoted_name(each) for each in names)


def _of(alias: str, names: Sequence[str]) -> str:
    return ", ".join(f"{alias}.{quoted_name(each)}" for each in names)


def _equal(left: str, right: str, names: Sequence[str]) -> str:
    return " AND ".join(f"{left}.{quoted_name(each)} = {right}.{quoted_name(each)}" for each in names)


def _bounded(target: Target) -> str:
    """Return conditions that let Spark skip files without any of the batch's keys, and drop other rows early."""
    first = f"t.{quoted_name(target.key[0])}"
    within = " OR ".join(f"({first} >= {least} AND {first} <= {most})" for least, most in target.ranges)
    bounds = f" AND ({within})" if within else ""
    listed = ", ".join(f"{each}L" for each in target.hashes)
    return bounds + (f" AND {key_hash(target.key, 't.')} IN ({listed})" if target.hashes else "")


def key_hash(key: Sequence[str], of: str = "") -> str:
    """Return the hash expression of a key.

    Iceberg cannot evaluate it on file statistics. So Spark neither pushes it down nor uses it in conflict detection.
    """
    return f"xxhash64({', '.join(of + quoted_name(each) for each in key)})"
