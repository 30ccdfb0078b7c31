"""The digest of a table's settings, and which changes need an explicit setting."""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from cdc.config import Config, parse_config
from cdc.config.tables import TableName
from cdc.errors import RefusedError
from cdc.tables.event_settings import (
    apply_changed_settings,
    is_same,
    job_settings_mismatch,
    pipeline_digest,
    record_settings,
    recorded_settings_mismatch,
    refuse_removed,
    refuse_settings_mismatch,
    settings_digest,
)
from cdc.tables.recorded_state import CatalogColumn, TableState, TableStates

T = TableName("public", "t")
COLUMNS = [CatalogColumn(number, name, 25, -1, "1", False) for number, name in enumerate(("id", "v", "w"), 1)]
STATE = TableState(schema="public", table="t", topic="p.public.t", key=["id"], storage="1", columns=COLUMNS)
STATES = TableStates(tables={"1": STATE})
SALT = '[capture]\nmask_salt = "pepper"\n'
MASK, LIST = '[mask]\n"public.t.v" = "hash"\n', '[columns]\n"public.t" = ["id"]\n'


def _config(ending: str = "", kafka: str = "", source: str = "") -> Config:
    text = f'[source]\ndsn = "postgresql://h/d"\n{source}[kafka]\nbootstrap = "h:1"\nprefix = "p"\n{kafka}{ending}'
    return parse_config(text, file=Path("tailrace.toml"), environment={})


def _released(config: Config, table: TableName) -> str:
    """The record as release 0.1.0 wrote it."""
    masks = {name.column: str(mask) for name, mask in config.mask.items() if (name.schema, name.table) == table}
    key = config.capture.mask_salt.reveal().encode() if config.capture.mask_salt and "hash" in masks.values() else b""
    columns = config.columns.get(table)
    said = orjson.dumps([sorted(masks.items()), None if columns is None else sorted(columns)])
    return hmac.new(key, said, sha256).hexdigest()[:16]


def test_the_digest_covers_what_decides_an_events_bytes() -> None:
    """The digest covers exactly the settings that decide an event's bytes; others may differ between hosts."""
    plain = settings_digest(_config(), T)
    different = [
        _config(MASK),
        _config(SALT + MASK),
        _config(LIST),
        _config('[mask]\n"public.t.v" = "fixed:x"\n'),
        _config(kafka="partitions = 7\n"),
        _config(source='publication = "other"\n'),
    ]
    assert len({settings_digest(each, T) for each in different} | {plain}) == len(different) + 1
    assert len({pipeline_digest(each) for each in [*different, _config()]}) == len(different) + 1
    for same in (
        _config('[mask]\n"public.other.v" = "hash"\n'),
        _config('[mask]\n"public.t.v" = "none"\n'),
        _config('[columns]\n"public.t" = ["*"]\n'),
        _config(SALT),
        _config("[snapshot]\nconnections = 9\n"),
    ):
        assert settings_digest(same, T) == plain


def test_the_digest_is_no_hash_that_a_masked_value_could_have() -> None:
    """The digest uses the salt under another name than masked values, so that neither reveals the other."""
    config = _config(SALT + MASK)
    digest = settings_digest(config, T).removeprefix("2:")
    assert "pepper" not in digest
    assert not hmac.new(b"pepper", b"", sha256).hexdigest().startswith(digest)
    assert digest != _released(config, T)


@pytest.mark.parametrize("ending", ["", MASK, SALT + MASK, LIST])
def test_digests_of_the_first_release_are_understood(ending: str) -> None:
    """A digest of release 0.1.0 is accepted without a new snapshot and replaced by today's."""
    config = _config(ending)
    states = STATES.with_settings(STATE.topic, _released(config, T))
    assert is_same(config, T, states.settings[STATE.topic])
    followed = apply_changed_settings(config, states, 8)
    assert not followed.pending
    assert followed.settings == {STATE.topic: settings_digest(config, T)}
    changed = apply_changed_settings(_config('[mask]\n"public.t.w" = "null"\n'), states, 8)
    assert list(changed.pending) == [STATE.topic]


def test_a_job_with_other_settings_gets_the_tables_name() -> None:
    """A mismatch with capture's record, the snapshot's record or a watermark names the table."""
    ours, theirs = _config(SALT + MASK), _config(MASK)
    states = record_settings(ours, STATES)
    assert recorded_settings_mismatch(ours, states, {"1": T}) is None
    assert "public.t" in (recorded_settings_mismatch(theirs, states, {"1": T}) or "")
    recorded = {"1": settings_digest(ours, T)}
    refuse_settings_mismatch(ours, recorded, {"1": T})
    refuse_settings_mismatch(theirs, {}, {"1": T})  # an older Tailrace has written none
    with pytest.raises(RefusedError, match=r"public\.t"):
        refuse_settings_mismatch(theirs, recorded, {"1": T})
    assert job_settings_mismatch(ours, recorded, {"1": T}) is None
    assert job_settings_mismatch(theirs, recorded, {"1": T}) is not None
    assert job_settings_mismatch(ours, {}, {"1": T}) is not None, "a job that does not say cannot be believed"


def _with_columns(*columns: CatalogColumn) -> TableState:
    return TableState(schema="public", table="t", topic="p.public.t", key=["id"], storage="1", columns=list(columns))


def _is_refused(config: Config, states: TableStates, now: TableState) -> bool:
    try:
        refuse_removed(config, states, {"1": now})
    except RefusedError:
        return True
    return False


@pytest.mark.parametrize(
    ("before", "now", "is_refused"),
    [
        (MASK, "", True),
        (MASK, LIST, False),  # not published at all
        (MASK, '[mask]\n"public.t.v" = "null"\n', False),
        (MASK, '[mask]\n"public.t.v" = "none"\n', False),
        (MASK, '[mask]\n"public.t.w" = "hash"\n', True),
        (LIST, "", True),
        (LIST, '[columns]\n"public.t" = ["id", "v"]\n', False),
        (LIST, '[columns]\n"public.t" = ["*"]\n', False),
        ("", MASK, False),
    ],
)
def test_what_was_kept_back_cannot_be_forgotten(before: str, now: str, is_refused: bool) -> None:
    """A withheld column is published only with an explicit setting; one that no longer exists needs none."""
    states = record_settings(_config(before), STATES)
    refuse_removed(_config(now), states, {})
    if is_refused:
        with pytest.raises(RefusedError, match=r"public\.t") as refusal:
            refuse_removed(_config(now), states, {"1": STATE})
        assert refusal.value.exit_code == 3
    else:
        refuse_removed(_config(now), states, {"1": STATE})
    after = apply_changed_settings(_config(now), states, 8)
    refuse_removed(_config(now), after, {"1": STATE})


def test_a_table_that_comes_back_has_the_settings_of_then() -> None:
    """A table that was removed and is added again is not bound by its earlier settings."""
    away = record_settings(_config(MASK), record_settings(_config(MASK), STATES).with_tables({}))
    assert (away.settings, away.protected) == ({}, {})
    back = record_settings(_config(LIST), away.with_tables(STATES.tables))
    assert recorded_settings_mismatch(_config(LIST), back, {"1": T}) is None


def test_a_masked_column_that_was_dropped_may_leave_the_config() -> None:
    """A dropped masked column may leave the config; an existing one may not."""
    states = record_settings(_config(MASK), STATES)
    assert not _is_refused(_config(), states, _with_columns(COLUMNS[0], COLUMNS[2]))
    assert _is_refused(_config(), states, _with_columns(COLUMNS[0], COLUMNS[1]))
    assert _is_refused(_config(), states, STATE)


def test_a_record_of_the_first_release_tells_only_that_there_was_something() -> None:
    """With a digest of release 0.1.0, removing all settings of a table is refused; removing some cannot be noticed."""
    old = STATES.with_settings(STATE.topic, _released(_config(MASK), T))
    with pytest.raises(RefusedError, match=r"public\.t"):
        refuse_removed(_config(), old, {"1": STATE})
    for ending in (MASK, LIST, '[mask]\n"public.t.v" = "none"\n'):
        refuse_removed(_config(ending), old, {"1": STATE})
    refuse_removed(_config(MASK), STATES.with_settings(STATE.topic, _released(_config(), T)), {"1": STATE})
