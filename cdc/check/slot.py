"""Checks of the replication slot: that capture can create it, or that it fits the progress record; and its WAL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from cdc.check.findings import Finding, fail, ok, refusal, warn
from cdc.check.role import RoleIdentity
from cdc.errors import RefusedError
from cdc.positions import continuity
from cdc.positions.progress import Progress
from cdc.postgres import catalog
from cdc.postgres.catalog import ReplicationSlot

_GIGABYTE = 1 << 30
_MUCH_WAL = 10 * _GIGABYTE
_RECOVER = "Run: tailrace recover"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """The slot in the catalog, the WAL that it holds, and the limit of that."""

    slot: ReplicationSlot | None
    physical: bool  # a physical slot has this name
    database: str  # the connection's database
    held_bytes: int | None  # None: the slot does not exist, or the server is in recovery
    limit_bytes: int | None  # max_slot_wal_keep_size; None: no limit


def read_slot(connection: psycopg.Connection, name: str) -> SlotFacts:
    """Read the slot from the catalog."""
    row = connection.execute(
        "select slot_type = 'physical',"
        " case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 end"
        " from pg_replication_slots where slot_name = %s",
        [name],
    ).fetchone()
    limit = connection.execute(
        "select nullif(setting, '-1')::int8 * 1048576 from pg_settings where name = 'max_slot_wal_keep_size'"
    ).fetchone()
    return SlotFacts(
        slot=catalog.slot(connection, name),
        physical=bool(row and row[0]),
        database=catalog.database_name(connection),
        held_bytes=row[1] if row else None,
        limit_bytes=limit[0] if limit else None,
    )


def judge_slot(
    name: str, facts: SlotFacts, *, progress: Progress | None, progress_known: bool, identity: RoleIdentity | None
) -> Iterator[Finding]:
    """Yield the findings about the slot, and about the cluster and timeline if there is a progress record.

    `progress_known`: the progress record could be read, or Kafka has none. `identity` None: it could not be read.
    """
    place = f"slot {name}"
    if facts.physical:
        yield fail(place, "A physical slot has this name.", "Choose another [source] slot.")
    elif facts.slot is None:
        yield _missing(place, name, progress, known=progress_known)
    else:
        yield _state(place, name, facts, progress, known=progress_known)
        yield ok(place, _reader(facts.slot))
        yield from _wal(place, facts)
    if progress is not None and identity is not None:
        yield _cluster(progress, identity)


def _missing(place: str, name: str, progress: Progress | None, *, known: bool) -> Finding:
    if not known:
        return warn(
            place,
            "It does not exist. The progress record could not be read, so it is unknown whether the slot should exist.",
            "Repair the findings about the broker, then run this check again.",
        )
    if progress is None or progress.state == "creating":
        return ok(place, "capture creates it on its first start")
    return refusal(place, continuity.missing_slot(name, progress.confirmable), _RECOVER)


def _state(place: str, name: str, facts: SlotFacts, progress: Progress | None, *, known: bool) -> Finding:
    assert facts.slot is not None  # noqa: S101  # the caller has checked it
    if not known and facts.slot.wal_status != "lost":
        return warn(
            place,
            "It was not compared with the progress record, which could not be read.",
            "Repair the findings about the broker, then run this check again.",
        )
    if progress is not None and progress.state == "creating":
        return warn(
            place,
            "Capture's first start did not finish.",
            "Start capture: it drops this slot and starts from the beginning.",
        )
    try:
        continuity.check_slot(progress, facts.slot, name=name, database=facts.database)
    except RefusedError as error:
        return refusal(place, error, _RECOVER)
    if progress is not None and progress.state == "recovering":
        return fail(place, "A recovery has started and has not finished.", _RECOVER)
    if progress is not None and progress.state == "copying":
        return warn(
            place,
            "It waits for the initial snapshot; capture has published no changes yet.",
            "While capture runs, run: tailrace snapshot",
        )
    return ok(place, "it fits the progress record")


def _reader(slot: ReplicationSlot) -> str:
    return (
        "it is not active" if slot.active_pid is None else f"it is active (server process {slot.active_pid} reads it)"
    )


def _wal(place: str, facts: SlotFacts) -> Iterator[Finding]:
    held, limit = facts.held_bytes, facts.limit_bytes
    if held is None:
        return
    what = f"it holds {_size(held)} of WAL"
    catch_up = "Start capture, or find out why it lags."
    if facts.slot is not None and facts.slot.wal_status == "unreserved":
        yield fail(
            place, f"The server is about to invalidate it: {what}, and the limit is {_size(limit or 0)}.", catch_up
        )
    elif limit is not None and held > limit // 2:
        yield warn(place, f"It holds {_size(held)} of WAL, and the limit is {_size(limit)}.", catch_up)
    elif limit is None and held > _MUCH_WAL:
        yield warn(
            place,
            f"max_slot_wal_keep_size sets no limit, and {what}.",
            f"{catch_up} Or drop the slot if it is not needed.",
        )
    else:
        yield ok(place, what if limit is None else f"{what}; the limit is {_size(limit)}")


def _cluster(progress: Progress, identity: RoleIdentity) -> Finding:
    try:
        forked_at = identity.forks.get(progress.timeline)
        continuity.check_server(progress, identity.system_identifier, identity.timeline, forked_at=forked_at)
    except RefusedError as error:
        return refusal("server", error, _RECOVER)
    if identity.timeline != progress.timeline:
        return ok("server", "it was promoted, and it has every change that capture has published")
    return ok("server", "its cluster and timeline are those of the progress record")


def _size(count: int) -> str:
    """Format a number of bytes with the units of Postgres's settings."""
    for unit, factor in (("TB", 1 << 40), ("GB", _GIGABYTE), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 1000 * factor else f"{count // factor} {unit}"
    return f"{count} bytes"
