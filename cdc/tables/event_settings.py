"""Digests of the settings that determine a table's events. Capture, snapshots and repairs must use equal settings.

A row that is published with other settings than the rest of its table is wrong: a masked column may be unmasked, or the
record may have another key. So capture records the digest of each table. Jobs compare their digests with it before they
write anything, and capture compares the digests in every watermark. If capture's own settings have changed, the rows
that it published before are wrong. The table is then incomplete until an incremental snapshot.
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

# The format of values and envelope. Increase it if the same row gives other bytes. Every table then needs a snapshot.
EVENT_FORMAT = 1

_REASON = "its masks or columns were changed in the config"
# The prefix of digests. Those of releases up to 0.1.0 have none.
_FORM = "2:"
_DIGITS = 32
_OLD_DIGITS = 16
# A masked value contains no zero byte, so no published hash is the hash of this text.
_DOMAIN = b"\0tailrace settings digest 2"


def settings_digest(config: Config, table: TableName) -> str:
    """Return the digest of all settings that determine the bytes, topic and partition of this table's events.

    The salt is part of it. The salt cannot be computed from the digest. A guess of the salt can be verified with the
    digest, as it can with the published hashes.
    """
    masks = config.masks_of(table)
    columns = config.columns_of(table)
    said = orjson.dumps(
        {
            "events": EVENT_FORMAT,
            "prefix": config.kafka.prefix,
            "partitions": config.kafka.partitions,
            "publication": config.source.publication,  # its column lists and row filters may exclude columns and rows
            "masks": sorted((name, str(mask)) for name, mask in masks.items()),
            "columns": None if columns is None else sorted(columns),
        }
    )
    return _FORM + hmac.new(_key(config) if masks else b"", said, sha256).hexdigest()[:_DIGITS]


def pipeline_digest(config: Config) -> str:
    """Return the digest of the settings of all tables, including tables that the config names but that do not exist."""
    tables = {TableName(name.schema, name.table) for name in config.mask} | set(config.columns) | {TableName("", "")}
    said = orjson.dumps([(*table, settings_digest(config, table)) for table in sorted(tables)])
    return _FORM + sha256(said).hexdigest()[:_DIGITS]


def event_settings_digests(config: Config, tables: Mapping[str, TableName]) -> dict[str, str]:
    """Return the settings digests of the tables by oid."""
    return {oid: settings_digest(config, name) for oid, name in tables.items()}


def name_of(state: TableState) -> TableName:
    return TableName(state.schema, state.table)


def is_same(config: Config, table: TableName, recorded: str) -> bool:
    """Whether a digest, which may be from an older release, is that of these settings."""
    if recorded.startswith(_FORM):
        return hmac.compare_digest(recorded, settings_digest(config, table))
    return hmac.compare_digest(recorded, _old_digest(config, table))


def apply_changed_settings(config: Config, states: TableStates, lsn: int) -> TableStates:
    """Compare the recorded settings with the config at start. Tables with changed settings are due for a snapshot."""
    for state in states.tables.values():
        recorded = states.settings.get(state.topic)
        if recorded is None:
            continue
        if not is_same(config, name_of(state), recorded):
            log.warning("table_incomplete", table=f"{state.schema}.{state.table}", reason=_REASON)
            states = states.with_pending(state.topic, lsn, _REASON)
        if recorded != (digest := settings_digest(config, name_of(state))):
            states = states.with_settings(state.topic, digest)
    return record_settings(config, states)


def record_settings(config: Config, states: TableStates) -> TableStates:
    """Record the settings of new tables, and the present masks and column lists of all tables.

    Removes the settings of tables that no longer exist. If such a table is created again, it is published with the
    settings of that time.
    """
    live = {state.topic: state for state in states.tables.values()}
    if states.settings.keys() - live.keys():
        left = {topic: digest for topic, digest in states.settings.items() if topic in live}
        states = msgspec.structs.replace(states, settings=left)
    for topic, state in live.items():
        if topic not in states.settings:
            states = states.with_settings(topic, settings_digest(config, name_of(state)))
    protected = {state.topic: found for state in states.tables.values() if (found := _protected(config, state))}
    return states.with_protected(protected)


def recorded_settings_mismatch(config: Config, states: TableStates, tables: Mapping[str, TableName]) -> str | None:
    """Return why this config would publish one of the tables (by oid) differently from capture, or None."""
    for oid, name in tables.items():
        state = states.tables.get(oid)
        recorded = None if state is None else states.settings.get(state.topic)
        if recorded is not None and not is_same(config, name, recorded):
            return _different(name)
    return None


def job_settings_mismatch(config: Config, said: Mapping[str, str], tables: Mapping[str, TableName]) -> str | None:
    """Return why a job's settings differ from this config, or None.

    `said` has the digests by oid that the job encodes with. A table without a digest counts as different.
    """
    return next(
        (_different(name) for oid, name in tables.items() if not is_same(config, name, said.get(oid, ""))), None
    )


def refuse_settings_mismatch(config: Config, recorded: Mapping[str, str], tables: Mapping[str, TableName]) -> None:
    """Refuse to run if a recorded digest (by oid) differs from this config's. Records of older releases have none."""
    for oid, name in tables.items():
        if oid in recorded and not is_same(config, name, recorded[oid]):
            raise settings_mismatch_error(_different(name))


def settings_mismatch_error(reason: str) -> RefusedError:
    """Return the error for a job whose settings differ from capture's."""
    return RefusedError(
        f"{reason[:1].upper()}{reason[1:]}.",
        remedy="Run this command with capture's config: the same [mask], mask_salt and [columns]. To change "
        "them, change capture's config first and restart it.",
    )


def _different(table: TableName) -> str:
    return f"the settings of {table} ([mask], mask_salt, [columns]) differ from those that capture publishes it with"


# -- masks and column lists that were removed from the config ---------------------------------------------


def refuse_removed(config: Config, states: TableStates, now: Mapping[str, TableState]) -> None:
    """Refuse to run if a mask or a column list of a published table was removed from the config, maybe by accident.

    `now` has the tables that still exist, by oid. Dropped tables and columns have no values that could be published.
    """
    for oid, state in states.tables.items():
        if oid not in now:
            continue
        known = states.protected.get(state.topic)
        if known is None:
            _refuse_unknown(config, states, state)
            continue
        for column in known.masks:
            if _is_there(state, now[oid], column) and _is_published_unmasked(config, state, column):
                name = ColumnName(state.schema, state.table, column)
                raise RefusedError(
                    f"Column {name} was published with a mask, and [mask] no longer has it.",
                    remedy=f"Restore the mask. To publish the column without a mask from now on: '{name}' = \"none\"",
                )
        if known.has_list and name_of(state) not in config.columns:
            raise _list_removed(state)


def _refuse_unknown(config: Config, states: TableStates, state: TableState) -> None:
    """Check a table whose record is from release 0.1.0 and has a digest only.

    The digest shows whether the table had masks or a column list, but not which.
    """
    recorded, table = states.settings.get(state.topic), name_of(state)
    if recorded is None or recorded.startswith(_FORM) or recorded == _old_digest(None, table):
        return
    is_said = table in config.columns or any((name.schema, name.table) == table for name in config.mask)
    if not is_said:
        raise _list_removed(state)


def _list_removed(state: TableState) -> RefusedError:
    return RefusedError(
        f"Table {name_of(state)} was published with masked or omitted columns, and the config no longer has them.",
        remedy="Restore its lines in [columns] and [mask]. To publish all of its columns from now on: "
        f"[columns] '{name_of(state)}' = [\"*\"]",
    )


def _protected(config: Config, state: TableState) -> Protected:
    masks = config.masks_of(name_of(state))
    columns = [column.name for column in state.columns if column.name in masks]
    return Protected(sorted(columns), config.columns_of(name_of(state)) is not None)


def _is_published_unmasked(config: Config, state: TableState, column: str) -> bool:
    """Whether the column would be published unmasked without an explicit "none" in [mask]."""
    columns = config.columns_of(name_of(state))
    is_published = columns is None or column in columns
    return is_published and ColumnName(state.schema, state.table, column) not in config.mask


def _is_there(before: TableState, now: TableState, column: str) -> bool:
    """Whether the column still exists, under any name.

    `mask_rules.refuse_lost_mask` checks a renamed column when its first row arrives.
    """
    numbers = {each.number for each in now.columns}
    return any(each.name == column and each.number in numbers for each in before.columns)


def _key(config: Config) -> bytes:
    salt = config.capture.mask_salt
    return hmac.new(b"" if salt is None else salt.reveal().encode(), _DOMAIN, sha256).digest()


def _old_digest(config: Config | None, table: TableName) -> str:
    """Return the digest in the form of releases up to 0.1.0.

    Without a config, the digest is that of a table without masks and column list.
    """
    masks = {} if config is None else {name: str(mask) for name, mask in config.masks_of(table).items()}
    columns = None if config is None else config.columns_of(table)
    salt = None if config is None else config.capture.mask_salt
    key = b"" if salt is None or "hash" not in masks.values() else salt.reveal().encode()
    said = orjson.dumps([sorted(masks.items()), None if columns is None else sorted(columns)])
    return hmac.new(key, said, sha256).hexdigest()[:_OLD_DIGITS]
