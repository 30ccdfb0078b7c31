"""The producer without a broker: transient errors."""

from __future__ import annotations

import pytest

from cdc.errors import TransientError
from cdc.publishing.publisher import Publisher


def test_an_unreachable_broker_is_a_transient_error() -> None:
    """Each call of the client that times out on an unreachable broker raises a transient error."""
    publisher = Publisher(
        {"bootstrap.servers": "127.0.0.1:1"},
        transactional_id="t",
        transaction_timeout_seconds=5,
        max_message_bytes=1_000_000,
        parked_topic="t.__parked",
    )
    with pytest.raises(TransientError, match="Kafka"):
        publisher.fence(0.5)
