"""The recovery record: what has been published, and everything that must still be so before more may be.

One record under one key on `<prefix>.__progress`, written inside the same Kafka transaction as the events it covers:
both are there, or neither. The last committed one is the truth about capture.
"""

from __future__ import annotations

import time

import msgspec
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from cdc.errors import RefusedError, TransientError
from cdc.lsn import LSN, Version

replace = msgspec.structs.replace

FORMAT = 1
KEY = b"progress"

_FIRST_LOOK_BACK = 64


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`position`/`seq` is the version published up to; the slot may be confirmed up to `confirm_lsn`, no further."""

    format: int = FORMAT
    state: str  # "creating" until the slot exists, then "streaming"
    position: int
    seq: int
    base: int
    confirm_lsn: int
    commit_time_us: int = 0  # of the last published commit, microseconds since 1970
    inside_transaction: bool = False  # a source transaction too big for one Kafka transaction is half published
    system_identifier: str
    timeline: int
    publication: str  # its catalog row's oid and xmin: dropping, re-creating or altering it changes this
    publication_tables: dict[str, str]  # the same for each table's entry in it
    topic_ids: dict[str, str]
    end_offsets: dict[str, list[int]]
    schemas: dict[str, str] = {}  # topic -> digest of the last record on __schema
    written_ms: int = 0

    @property
    def version(self) -> Version:
        return Version(self.position, self.seq)

    @property
    def confirmable(self) -> LSN:
        return LSN(self.confirm_lsn)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def streaming_from(self, consistent_point: LSN) -> Progress:
        return replace(
            self, state="streaming", position=self.base + int(consistent_point), confirm_lsn=int(consistent_point)
        )

    def advanced(
        self,
        version: Version,
        *,
        confirm_lsn: LSN,
        commit_time_us: int | None = None,
        inside_transaction: bool = False,
    ) -> Progress:
        return replace(
            self,
            position=int(version.position),
            seq=version.seq,
            confirm_lsn=max(int(confirm_lsn), self.confirm_lsn),
            commit_time_us=self.commit_time_us if commit_time_us is None else commit_time_us,
            inside_transaction=inside_transaction,
            written_ms=time.time_ns() // 1_000_000,
        )

    def with_topic(self, name: str, topic_id: str, partitions: int) -> Progress:
        return replace(
            self,
            topic_ids={**self.topic_ids, name: topic_id},
            end_offsets={**self.end_offsets, name: [0] * partitions},
        )

    def with_end_offsets(self, ends: dict[str, list[int]]) -> Progress:
        return replace(self, end_offsets={**self.end_offsets, **ends}) if ends else self

    def with_schema(self, topic: str, digest: str) -> Progress:
        return replace(self, schemas={**self.schemas, topic: digest})


class _Format(msgspec.Struct):
    format: int


def decode(data: bytes) -> Progress:
    """Refuses a record of a newer Tailrace instead of guessing what it means."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > FORMAT:
            raise RefusedError(
                f"The progress record has format {found}; this Tailrace knows up to {FORMAT}.",
                remedy="Run the newer Tailrace that wrote it.",
            )
        return msgspec.json.decode(data, type=Progress)
    except msgspec.DecodeError as error:
        raise RefusedError(
            f"The progress record cannot be read: {error}.",
            remedy="Restore the topic, or start again under a new [kafka] prefix and [source] slot.",
        ) from error


def read_progress(options: dict[str, str], topic: str, *, timeout_seconds: float = 30) -> Progress | None:
    """The last committed record, or None where there is none. Call after fencing: an open transaction hides it."""
    consumer = Consumer(
        {
            "log_level": 0,  # as in publisher: it comes as an exception
            **options,
            "group.id": "tailrace-unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout_seconds)
        look_back = _FIRST_LOOK_BACK
        while True:
            start = max(low, high - look_back)
            data = _last_value(consumer, topic, start, timeout_seconds)
            if data is not None:
                return decode(data)
            if start <= low:
                return None
            look_back *= 8
    except KafkaException as error:
        raise TransientError(f"The progress record could not be read: {error.args[0]}") from error
    finally:
        consumer.close()


def _last_value(consumer: Consumer, topic: str, start: int, timeout_seconds: float) -> bytes | None:
    consumer.assign([TopicPartition(topic, 0, start if start >= 0 else OFFSET_END)])
    last: bytes | None = None
    while True:
        message = consumer.poll(timeout_seconds)
        if message is None:
            raise TransientError(f"Kafka gave nothing from {topic} for {timeout_seconds:.0f} seconds.")
        error = message.error()
        if error is None:
            if message.key() == KEY:
                last = message.value()
        elif error.code() == -191:  # _PARTITION_EOF
            return last
        else:
            raise KafkaException(error)
