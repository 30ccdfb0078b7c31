"""Which errors of Postgres begin another life of capture, and which end it with exit code 3."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from cdc.capture.loop import is_transient

PASSING = ["08006", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P03", "58030", "XX000"]
LASTING = ["0A000", "25006", "42501", "42601", "42P01", "XX001", "XX002"]


@pytest.mark.parametrize("state", PASSING)
def test_what_passes_by_itself_is_tried_again(state: str) -> None:
    """A deadlock, a lock, a full server, a stopping one, DDL beside a look at the catalog: nobody need be woken."""
    assert is_transient(errors.lookup(state)("trouble"))


@pytest.mark.parametrize("state", LASTING)
def test_what_a_person_must_mend_is_refused(state: str) -> None:
    """Missing rights, damaged data, a server that lacks something: trying again would only hide it."""
    assert not is_transient(errors.lookup(state)("trouble"))


def test_a_broken_connection_has_no_sqlstate() -> None:
    """And is tried again all the same."""
    assert is_transient(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert is_transient(psycopg.InterfaceError("the connection is closed"))
