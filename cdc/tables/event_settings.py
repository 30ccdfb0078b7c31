"""What the config says about a table's events, as a digest: capture, copies and repairs must agree on it.

A row that is published under other settings than its table is wrong: as plain text under a column that is masked, or
under a key that nothing else has. So capture writes the digest of each table down, jobs compare theirs before they
write anything, and capture compares that of every mark. Where capture's own settings were changed, the rows already
published are wrong: the table is incomplete until it is copied again.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256

import msgspec
import orjson

from cdc.config import Config
from cdc.config.tables import ColumnName, TableName
from cdc.errors import RefusedError
from cdc.logs import get_logger
from cdc.tables.recorded_state import Protected, TableState, TableStates

log = get_logger("startup")

# Of the encoders and the envelope. Raise it where the same row gives other bytes: every table is copied again then.
EVENT_FORMAT = 1

_REASON = "its masks or columns were changed in the config"
# The digests of releases up to 0.1.0 have no such beginning.
_FORM = "2:"
_DIGITS = 32
_OLD_DIGITS = 16
# A masked value has no zero byte in it: no published hash is ever made with this text.
_DOMAIN = b"\0tailrace settings digest 2"


def settings_digest(config: Config, table: TableName) -> str:
    """Of everything in the config that decides the bytes and the place of this table's events.

    The salt is in it. It cannot be computed from the digest, but it can be guessed: like the hashes themselves.
    """
    masks = config.masks_of(table)
    columns = config.columns_of(table)
    said = orjson.dumps(
        {
            "events": EVENT_FORMAT,
            "prefix": config.kafka.prefix,
            "partitions": config.kafka.partitions,
            "publication": config.source.publication,  # it may leave out columns and rows
            "masks": sorted((name, str(mask)) for name, mask in masks.items()),
            "columns": None if columns is None else sorted(columns),
        }
    )
    return _FORM + hmac.new(_key(config) if masks else b"", said, sha256).hexdigest()[:_DIGITS]


def pipeline_digest(config: Config) -> str:
    """Of the settings of all tables together, also of those that are not there."""
    tables = {TableName(name.schema, name.table) for name in config.mask} | set(config.columns) | {TableName("", "")}
    said = orjson.dumps([(*table, settings_digest(config, table)) for table in sorted(tables)])
    return _FORM + sha256(said).hexdigest()[:_DIGITS]


def event_settings_digests(config: Config, tables: Mapping[str, TableName]) -> dict[str, str]:
    """By oid."""
    return {oid: settings_digest(config, name) for oid, name in tables.items()}


def name_of(state: TableState) -> TableName:
    return TableName(state.schema, state.table)


def is_same(config: Config, table: TableName, recorded: str) -> bool:
    """Whether a digest, perhaps of an older Tailrace, is that of these settings."""
    if recorded.startswith(_FORM):
        return hmac.compare_digest(recorded, settings_digest(config, table))
    return hmac.compare_digest(recorded, _old_digest(config, table))


def follow_settings(config: Config, states: TableStates, lsn: int) -> TableStates:
    """At a start: tables that were published under other settings are due for a copy."""
    for state in states.tables.values():
        recorded = states.settings.get(state.topic)
        if recorded is None:
            continue
        if not is_same(config, name_of(state), recorded):
            log.warning("table_incomplete", table=f"{state.schema}.{state.table}", reason=_REASON)
            states = states.with_pending(state.topic, lsn, _REASON)
        if recorded != (digest := settings_digest(config, name_of(state))):
            states = states.with_settings(state.topic, digest)
    return learn_settings(config, states)


def learn_settings(config: Config, states: TableStates) -> TableStates:
    """Those of tables that are new, and what is kept back of each as it is now. Tables that are gone are forgotten:
    one that comes back under the same name is published under the settings of then."""
    live = {state.topic: state for state in states.tables.values()}
    if states.settings.keys() - live.keys():
        left = {topic: digest for topic, digest in states.settings.items() if topic in live}
        states = msgspec.structs.replace(states, settings=left)
    for topic, state in live.items():
        if topic not in states.settings:
            states = states.with_settings(topic, settings_digest(config, name_of(state)))
    protected = {state.topic: found for state in states.tables.values() if (found := _protected(config, state))}
    return states.with_protected(protected)


def why_other(config: Config, states: TableStates, tables: Mapping[str, TableName]) -> str | None:
    """Which of the tables (by oid) this config would publish otherwise than capture does; None where there is none."""
    for oid, name in tables.items():
        state = states.tables.get(oid)
        recorded = None if state is None else states.settings.get(state.topic)
        if recorded is not None and not is_same(config, name, recorded):
            return _different(name)
    return None


def why_different(config: Config, said: Mapping[str, str], tables: Mapping[str, TableName]) -> str | None:
    """As `why_other`, of digests by oid that a job says it encodes with; one that says none counts as different."""
    return next(
        (_different(name) for oid, name in tables.items() if not is_same(config, name, said.get(oid, ""))), None
    )


def refuse_other(config: Config, recorded: Mapping[str, str], tables: Mapping[str, TableName]) -> None:
    """`recorded`: digests by oid. What an older Tailrace wrote has none."""
    for oid, name in tables.items():
        if oid in recorded and not is_same(config, name, recorded[oid]):
            raise other_settings(_different(name))


def other_settings(reason: str) -> RefusedError:
    return RefusedError(
        f"{reason[:1].upper()}{reason[1:]}.",
        remedy="Run it with the config that capture runs with: the same [mask], mask_salt and [columns]. To change "
        "them, change capture's config first and restart it.",
    )


def _different(table: TableName) -> str:
    return f"the settings of {table} ([mask], mask_salt, [columns]) are not those that capture publishes it with"


# -- what may not leave without being said ----------------------------------------------------------------


def refuse_removed(config: Config, states: TableStates, now: Mapping[str, TableState]) -> None:
    """A mask or a column list that tables were published with is gone from the config: by accident, perhaps.

    `now`: the tables that are still there, by oid. Of tables and columns that were dropped nothing can get out.
    """
    for oid, state in states.tables.items():
        if oid not in now:
            continue
        known = states.protected.get(state.topic)
        if known is None:
            _refuse_unknown(config, states, state)
            continue
        for column in known.masks:
            if _is_there(state, now[oid], column) and _lets_out(config, state, column):
                name = ColumnName(state.schema, state.table, column)
                raise RefusedError(
                    f"Column {name} was published with a mask, and [mask] does not have it any more.",
                    remedy=f"Put the mask back. To publish the column as it is from now on: '{name}' = \"none\"",
                )
        if known.has_list and name_of(state) not in config.columns:
            raise _list_removed(state)


def _refuse_unknown(config: Config, states: TableStates, state: TableState) -> None:
    """A record of release 0.1.0 has only the digest: it tells whether there was anything, not what."""
    recorded, table = states.settings.get(state.topic), name_of(state)
    if recorded is None or recorded.startswith(_FORM) or recorded == _old_digest(None, table):
        return
    is_said = table in config.columns or any((name.schema, name.table) == table for name in config.mask)
    if not is_said:
        raise _list_removed(state)


def _list_removed(state: TableState) -> RefusedError:
    return RefusedError(
        f"Table {name_of(state)} was published with columns kept back, and the config does not say so any more.",
        remedy="Put its lines in [columns] and [mask] back. To publish all of its columns from now on: "
        f"[columns] '{name_of(state)}' = [\"*\"]",
    )


def _protected(config: Config, state: TableState) -> Protected:
    masks = config.masks_of(name_of(state))
    columns = [column.name for column in state.columns if column.name in masks]
    return Protected(sorted(columns), config.columns_of(name_of(state)) is not None)


def _lets_out(config: Config, state: TableState, column: str) -> bool:
    """Neither a mask, nor a line that says that there is none, nor a list that leaves it out."""
    columns = config.columns_of(name_of(state))
    is_published = columns is None or column in columns
    return is_published and ColumnName(state.schema, state.table, column) not in config.mask


def _is_there(before: TableState, now: TableState, column: str) -> bool:
    """Under whatever name: one that was renamed is looked at when its first row comes (`masks.refuse_lost_mask`)."""
    numbers = {each.number for each in now.columns}
    return any(each.name == column and each.number in numbers for each in before.columns)


def _key(config: Config) -> bytes:
    salt = config.capture.mask_salt
    return hmac.new(b"" if salt is None else salt.reveal().encode(), _DOMAIN, sha256).digest()


def _old_digest(config: Config | None, table: TableName) -> str:
    """As releases up to 0.1.0 made it. None: of a table without masks and without a list."""
    masks = {} if config is None else {name: str(mask) for name, mask in config.masks_of(table).items()}
    columns = None if config is None else config.columns_of(table)
    salt = None if config is None else config.capture.mask_salt
    key = b"" if salt is None or "hash" not in masks.values() else salt.reveal().encode()
    said = orjson.dumps([sorted(masks.items()), None if columns is None else sorted(columns)])
    return hmac.new(key, said, sha256).hexdigest()[:_OLD_DIGITS]
