"""Keys, patterns and errors of Redis, without a server."""

from __future__ import annotations

import fnmatch

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import NoPermissionError

from cdc.errors import RefusedError, TransientError
from cdc.stores.contract import TableSchema
from sinks.redis.client import translate
from sinks.redis.naming import markers_key, name_key, row_pattern, row_prefix, state_key

identifiers = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=10)


@given(schema=identifiers, table=identifiers, row=st.text(max_size=10))
def test_no_row_has_a_key_of_ours(schema: str, table: str, row: str) -> None:
    """For any table name and row id, a row's key is none of ours."""
    key = row_prefix("shop", TableSchema(schema, table, "", (), ())) + row
    ours = (name_key("shop"), markers_key("shop"), state_key("shop", "cache"))
    assert not any(key == own or key.startswith(f"{own}:") for own in ours)


@given(schema=identifiers, table=identifiers)
def test_a_tables_pattern_is_its_own_prefix(schema: str, table: str) -> None:
    """Only the final star of a table's pattern is a wildcard."""
    what = TableSchema(schema, table, "", (), ())
    pattern = row_pattern("my-shop", what)
    plain = pattern.removesuffix("*").replace("\\", "")
    assert plain == row_prefix("my-shop", what)
    assert fnmatch.translate(plain).count(".*") == 0


SCRIPT = "Command # 3 (EVALSHA 1af7 101 shop:public.orders:SECRET) of pipeline caused error: "


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            redis.ResponseError(SCRIPT + "Error running script: @user_script: 11: -OOM command not allowed"),
            TransientError,
        ),
        (redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'. script: 1af7"), TransientError),
        (redis.ResponseError(SCRIPT + "@user_script: 2: -READONLY You can't write against a replica"), TransientError),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), TransientError),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), TransientError),
        (redis.ConnectionError("Error 111 connecting to localhost:6379"), TransientError),
        (redis.TimeoutError("Timeout reading from socket"), TransientError),
        (ConnectionResetError(104, "Connection reset by peer"), TransientError),
        (redis.AuthenticationError("invalid username-password pair"), RefusedError),
        (redis.ResponseError("NOAUTH Authentication required."), RefusedError),
        (NoPermissionError("this user has no permissions to run the 'hset' command"), RefusedError),
        (redis.ConnectionError("SSL: CERTIFICATE_VERIFY_FAILED"), RefusedError),
        (redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), RefusedError),
    ],
)
def test_errors_are_sorted_by_what_to_do(error: Exception, expected: type[Exception]) -> None:
    """Transient errors are retried, others are refused, and the command with the row's id is not quoted."""
    found = translate(error)
    assert type(found) is expected
    assert "SECRET" not in str(found)
