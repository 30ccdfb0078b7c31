"""Fetches the raw record batches of one partition, for the compiled decoder.

The compiled decoder is faster than a client that makes an object per record. This module uses kafka-python's
connections, its authentication and its protocol classes, but not its consumer.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer.fetch import FetchRequest

from cdc.audit.record_batches import AbortedTransactions, UnreadableError

_ANSWER_MS: Final = 30_000
_WAIT_MS: Final = 500
_FETCH_BYTES: Final = 4 << 20
# A fetch response holds at least one whole batch, however large that batch is.
_MOST_BYTES: Final = (1 << 31) - 1
_READ_COMMITTED: Final = 1
# Versions of the fetch request: 4 is the first with transactions, 12 the last that identifies topics by name.
_LEAST_VERSION, _LAST_VERSION = 4, 12
_NO_SESSION: Final = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}


class Fetched(NamedTuple):
    """A fetch response. `stable_end`: the last stable offset; no transaction is open below it."""

    data: bytes
    aborted: list[AbortedTransactions]
    stable_end: int


class PartitionFetch:
    """Reads one partition by fetch requests to its leader.

    Every error is raised as UnreadableError. The caller then reads the partition with a regular client.
    """

    def __init__(self, options: dict[str, Any], topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._net = NetworkSelector()
        self._brokers = KafkaConnectionManager(self._net, **(options | {"receive_message_max_bytes": _MOST_BYTES}))
        self._leader: int | None = None

    def fetch(self, offset: int) -> Fetched:
        """Fetch the batches from `offset` on; the first batch may begin before it."""
        try:
            if self._leader is None:
                self._leader = self._find_leader()
            answer = self._net.run(self._ask, self._request(offset))
            (found,) = answer.responses[0].partitions
        except (KafkaError, OSError, RuntimeError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnreadableError(f"the fetch request failed: {type(error).__name__}") from error
        if found.error_code:
            raise UnreadableError(f"the broker returned error code {found.error_code}")
        aborted = [
            AbortedTransactions(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()
        ]
        return Fetched(bytes(found.records or b""), aborted, found.last_stable_offset)

    def close(self) -> None:
        """Close the connections."""
        self._brokers.close()
        self._net.close()

    def _find_leader(self) -> int:
        self._brokers.bootstrap(_ANSWER_MS)
        self._brokers.cluster.set_topics([self._topic])
        self._net.run(self._refresh)
        leader = self._brokers.cluster.leader_for_partition(TopicPartition(self._topic, self._partition))
        if leader is None or leader < 0:
            raise UnreadableError("the partition has no leader")
        return int(leader)

    async def _refresh(self) -> None:
        await self._brokers.wait_for(self._brokers.cluster.request_update(), _ANSWER_MS)

    async def _ask(self, request: Any) -> Any:
        return await self._brokers.wait_for(self._brokers.send(request, node_id=self._leader), _ANSWER_MS)

    def _request(self, offset: int) -> Any:
        topic = FetchRequest.FetchTopic
        partition = topic.FetchPartition(
            partition=self._partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            partition_max_bytes=_FETCH_BYTES,
        )
        return FetchRequest(
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=_READ_COMMITTED,
            topics=[topic(topic=self._topic, partitions=[partition])],
            min_version=_LEAST_VERSION,
            max_version=_LAST_VERSION,
            **_NO_SESSION,
        )
