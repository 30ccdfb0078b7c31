"""What the config says about a table's columns: masks and column lists. Changed, the rows already published are wrong.

The next change of a row brings it as it is to be. Until then the topic holds it as
it was, so a table whose settings have changed is marked as incomplete, and copied again.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

import orjson

from cdc.config import Config
from cdc.config.tables import TableName
from cdc.logs import get_logger
from cdc.table_states import TableStates

log = get_logger("startup")

_REASON = "its masks or columns were changed in the config"
_DIGITS = 16


def settings_digest(config: Config, table: TableName) -> str:
    """The salt is in it, and cannot be had from it as long as it is not guessable itself."""
    masks = {name.column: str(mask) for name, mask in config.mask.items() if (name.schema, name.table) == table}
    salt = config.capture.mask_salt
    key = b"" if salt is None or "hash" not in masks.values() else salt.reveal().encode()
    columns = config.columns.get(table)
    said = orjson.dumps([sorted(masks.items()), None if columns is None else sorted(columns)])
    return hmac.new(key, said, sha256).hexdigest()[:_DIGITS]


def follow_settings(config: Config, states: TableStates, lsn: int) -> TableStates:
    """At a start: tables that were published under other settings are due for a copy."""
    for state in states.tables.values():
        digest = settings_digest(config, TableName(state.schema, state.table))
        if states.settings.get(state.topic, digest) != digest:
            log.warning("table_incomplete", table=f"{state.schema}.{state.table}", reason=_REASON)
            states = states.with_pending(state.topic, lsn, _REASON).with_settings(state.topic, digest)
    return states


def learn_settings(config: Config, states: TableStates) -> TableStates:
    """Those of tables that are new."""
    for state in states.tables.values():
        if state.topic not in states.settings:
            digest = settings_digest(config, TableName(state.schema, state.table))
            states = states.with_settings(state.topic, digest)
    return states
