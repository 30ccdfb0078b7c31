"""The producer without a broker: trouble that another try can mend."""

from __future__ import annotations

import pytest

from cdc.errors import TransientError
from cdc.publishing.publisher import Publisher


def test_a_broker_that_is_away_is_worth_another_try() -> None:
    """Whichever of the client's calls is the one that waits in vain: capture must not end on it."""
    publisher = Publisher(
        {"bootstrap.servers": "127.0.0.1:1"},
        transactional_id="t",
        transaction_timeout_seconds=5,
        max_message_bytes=1_000_000,
        parked_topic="t.__parked",
    )
    with pytest.raises(TransientError, match="Kafka"):
        publisher.fence(0.5)
