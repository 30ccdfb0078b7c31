"""Which Postgres errors make capture retry, and which end it with exit code 3."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from cdc.capture.loop import is_transient

PASSING = ["08006", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P03", "58030", "XX000"]
LASTING = ["0A000", "25006", "42501", "42601", "42P01", "XX001", "XX002"]


@pytest.mark.parametrize("state", PASSING)
def test_transient_errors_are_retried(state: str) -> None:
    """A deadlock, a lock timeout, a full or stopping server and concurrent DDL are retried."""
    assert is_transient(errors.lookup(state)("an error"))


@pytest.mark.parametrize("state", LASTING)
def test_errors_that_need_an_operator_are_refused(state: str) -> None:
    """Missing rights, damaged data and missing features are refused, since retries would hide them."""
    assert not is_transient(errors.lookup(state)("an error"))


def test_a_broken_connection_without_sqlstate_is_retried() -> None:
    """An error without SQLSTATE is a broken connection and is retried."""
    assert is_transient(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert is_transient(psycopg.InterfaceError("the connection is closed"))
