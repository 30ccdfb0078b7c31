"""The replication connection to a real server, in states that are hard to reach from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.postgres import replication
from cdc.postgres.replication import ReplicationStream
from tests.harness.postgres.database import Database


@pytest.fixture
def stream(database: Database) -> Iterator[ReplicationStream]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    made = ReplicationStream(database.dsn, slot=database.name, publication="p", stop=lambda: False)
    made.create_slot()
    made.start()
    yield made
    made.close()


class Full:
    """The connection, with a send buffer that is full most of the time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.has_room = False
        self.refused = 0

    def put_copy_data(self, data: bytes) -> int:
        if self.has_room:
            return int(self._connection.put_copy_data(data))
        self.refused += 1
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_status_update_that_was_not_sent_is_still_due(
    database: Database, stream: ReplicationStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status update that the send buffer refused is not counted as sent, so that the server does not time out."""
    full = Full(stream._pgconn)
    monkeypatch.setattr(stream, "_pgconn", full)
    monkeypatch.setattr(stream, "_sent_at", time.monotonic() - replication.STATUS_SECONDS)
    stream.send_status_if_due()
    stream.send_status_if_due()
    assert full.refused == 2, "the second look tries again at once"
    full.has_room = True
    stream.send_status_if_due()
    full.has_room = False
    stream.send_status_if_due()
    assert full.refused == 2, "sent: nothing is due any more"
