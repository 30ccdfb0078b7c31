"""Checks of the Postgres server: version, settings for logical decoding, and limits that can invalidate the slot.

`read_server` reads the facts and `judge_server` judges them, so unit tests can cover every judgement without a server
of that version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psycopg

from cdc.check.findings import Finding, fail, ok, warn
from cdc.check.managed_services import Service

PLACE = "server"
OLDEST_MAJOR, NEWEST_MAJOR = 14, 18

_MEGABYTE = 1 << 20
_SMALL_WAL_KEEP = 1024 * _MEGABYTE
_SMALL_WORK_MEM = 64 * _MEGABYTE
_SHORT_SENDER_TIMEOUT_MS = 5_000
_UNITS = {"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": _MEGABYTE, "GB": 1 << 30, "ms": 1, "s": 1_000, "min": 60_000}
_SETTINGS = (
    "idle_replication_slot_timeout",
    "logical_decoding_work_mem",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_senders",
    "server_encoding",
    "wal_level",
    "wal_sender_timeout",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A server setting.

    `text`: as SHOW prints it. `amount`: in bytes, in milliseconds, or without a unit. -1 if that value means no limit.
    """

    text: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server's version, settings, and use of slots, WAL senders and prepared transactions."""

    version: int  # as in server_version_num
    in_recovery: bool
    settings: Mapping[str, Setting]
    slots_used: int
    senders_used: int
    prepared_transactions: int
    oldest_prepared_seconds: float


def read_server(connection: psycopg.Connection) -> ServerFacts:
    """Read the server's version, settings and resource use."""
    row = connection.execute(
        "select pg_is_in_recovery(), (select count(*) from pg_replication_slots),"
        " (select count(*) from pg_stat_replication), count(p.gid),"
        " coalesce(extract(epoch from now() - min(p.prepared)), 0)::float8"
        " from (select 1) one left join pg_prepared_xacts p on p.database = current_database()"
    ).fetchone()
    assert row is not None  # noqa: S101  # an aggregate has one row
    settings = connection.execute(
        "select name, current_setting(name), setting, unit from pg_settings where name = any(%s)", [list(_SETTINGS)]
    ).fetchall()
    return ServerFacts(
        version=connection.info.server_version,
        in_recovery=row[0],
        settings={name: Setting(text, _amount(raw, unit)) for name, text, raw, unit in settings},
        slots_used=row[1],
        senders_used=row[2],
        prepared_transactions=row[3],
        oldest_prepared_seconds=row[4],
    )


def judge_server(facts: ServerFacts, service: Service, *, slot_exists: bool, slot_active: bool) -> Iterator[Finding]:
    """Yield the findings about the server. `slot_exists`, `slot_active`: the state of capture's own slot."""
    yield _version(facts.version, service)
    yield _role_in_replication(facts.in_recovery)
    yield _wal_level(facts.settings["wal_level"].text, service)
    yield _slots(facts, service, slot_exists=slot_exists)
    yield _senders(facts, service, slot_active=slot_active)
    yield _wal_keep(facts.settings["max_slot_wal_keep_size"], service)
    yield _sender_timeout(facts.settings["wal_sender_timeout"], service)
    if "idle_replication_slot_timeout" in facts.settings:  # from Postgres 18 on
        yield _idle_timeout(facts.settings["idle_replication_slot_timeout"], service)
    yield _work_mem(facts.settings["logical_decoding_work_mem"], service)
    yield _encoding(facts.settings["server_encoding"].text)
    yield _prepared(facts, slot_exists=slot_exists)


def _amount(raw: str, unit: str | None) -> int:
    if not raw.lstrip("-").isdigit():
        return 0
    return int(raw) if raw.startswith("-") else int(raw) * _UNITS.get(unit or "", 1)


def _version(version: int, service: Service) -> Finding:
    major, shown = version // 10_000, f"{version // 10_000}.{version % 10_000}"
    where = f" ({service.name})" if service.name else ""
    if major < OLDEST_MAJOR:
        return fail(PLACE, f"Postgres {shown}{where} is too old.", f"Upgrade to {OLDEST_MAJOR} or later.")
    if major > NEWEST_MAJOR:
        return warn(
            PLACE,
            f"Postgres {shown}{where} is newer than the versions with which this Tailrace was tested.",
            f"Use {OLDEST_MAJOR} to {NEWEST_MAJOR}, or a newer Tailrace.",
        )
    return ok(PLACE, f"Postgres {shown}{where}")


def _role_in_replication(in_recovery: bool) -> Finding:
    if in_recovery:
        return fail(PLACE, "This is a standby server; capture reads the primary.", "Point [source] dsn at the primary.")
    return ok(PLACE, "it is a primary")


def _wal_level(level: str, service: Service) -> Finding:
    if level != "logical":
        return fail(PLACE, f"wal_level is {level}; logical decoding needs logical.", service.set_wal_level)
    return ok(PLACE, "wal_level is logical")


def _slots(facts: ServerFacts, service: Service, *, slot_exists: bool) -> Finding:
    limit = facts.settings["max_replication_slots"].amount
    what = f"{facts.slots_used} of {limit} replication slots are in use"
    if facts.slots_used >= limit and not slot_exists:
        return fail(PLACE, f"{what}: none is left for capture.", _raise(service, "max_replication_slots", limit + 4))
    return ok(PLACE, what)


def _senders(facts: ServerFacts, service: Service, *, slot_active: bool) -> Finding:
    limit = facts.settings["max_wal_senders"].amount
    what = f"{facts.senders_used} of {limit} WAL senders are in use"
    if facts.senders_used >= limit and not slot_active:
        return fail(PLACE, f"{what}: none is left for capture.", _raise(service, "max_wal_senders", limit + 4))
    return ok(PLACE, what)


def _wal_keep(keep: Setting, service: Service) -> Finding:
    name = "max_slot_wal_keep_size"
    if keep.amount < 0:
        return warn(
            PLACE,
            f"{name} is -1: while capture is stopped, the slot keeps WAL until the server's disk is full.",
            _change(service, name, "50GB") + " Choose a size that the disk can hold: beyond it the slot is lost.",
        )
    if keep.amount < _SMALL_WAL_KEEP:
        return warn(
            PLACE,
            f"{name} is {keep.text}: on a busy server, a short stop of capture loses the slot.",
            _change(service, name, "50GB") + " Choose a size that the disk can hold.",
        )
    return ok(PLACE, f"{name} is {keep.text}: the slot is lost if it holds more WAL than that")


def _sender_timeout(timeout: Setting, service: Service) -> Finding:
    name = "wal_sender_timeout"
    if timeout.amount == 0:
        return warn(
            PLACE,
            f"{name} is 0: a capture that lost its network keeps the slot, and a standby capture cannot take over.",
            _change(service, name, "60s"),
        )
    if timeout.amount < _SHORT_SENDER_TIMEOUT_MS:
        return warn(
            PLACE, f"{name} is {timeout.text}: a short pause ends the connection.", _change(service, name, "60s")
        )
    return ok(PLACE, f"{name} is {timeout.text}")


def _idle_timeout(timeout: Setting, service: Service) -> Finding:
    name = "idle_replication_slot_timeout"
    if timeout.amount > 0:
        return warn(
            PLACE,
            f"{name} is {timeout.text}: if capture is stopped for longer, the slot is lost.",
            _change(service, name, "0") + f" Limit the WAL with max_slot_wal_keep_size instead of {name}.",
        )
    return ok(PLACE, f"{name} is 0: the server never invalidates the slot only because it is idle")


def _work_mem(work_mem: Setting, service: Service) -> Finding:
    name = "logical_decoding_work_mem"
    if work_mem.amount < _SMALL_WORK_MEM:
        return warn(
            PLACE,
            f"{name} is {work_mem.text}: the server spills larger transactions to disk before it sends them.",
            _change(service, name, "64MB"),
        )
    return ok(PLACE, f"{name} is {work_mem.text}; raise it if large transactions are common")


def _encoding(encoding: str) -> Finding:
    if encoding == "UTF8":
        return ok(PLACE, "the database's encoding is UTF8")
    what = f"The database's encoding is {encoding}; UTF8 is recommended"
    if encoding == "SQL_ASCII":
        what += ". It accepts any bytes, and a text that is not valid UTF-8 stops capture"
    return warn(PLACE, f"{what}.", "Create a database with encoding 'UTF8', and move the data there.")


def _prepared(facts: ServerFacts, *, slot_exists: bool) -> Finding:
    count = facts.prepared_transactions
    what = f"{count} prepared transactions (two-phase commit) are open"
    if count and not slot_exists:
        why = "Postgres cannot create the slot until they end"
    elif count and facts.oldest_prepared_seconds > 600:
        why = f"the oldest is {facts.oldest_prepared_seconds:.0f} seconds old, and the server keeps WAL for it"
    else:
        return ok(PLACE, f"{what}; capture publishes them on commit" if count else "no prepared transaction is open")
    return warn(
        PLACE,
        f"{what}: {why}.",
        "End the abandoned ones: select gid, prepared, owner from pg_prepared_xacts; rollback prepared '…';",
    )


def _change(service: Service, name: str, value: str) -> str:
    return service.change_setting.format(name=name, value=value)


def _raise(service: Service, name: str, value: int) -> str:
    return _change(service, name, str(value)) + " It takes effect after a restart. Or drop unused replication slots."
