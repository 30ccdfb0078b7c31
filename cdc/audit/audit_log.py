"""Write audit records to `<prefix>.__audits` and read them back. The dashboard shows the last audit of each table."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from confluent_kafka import TopicPartition

from cdc.audit.audit_records import FORMAT, AuditRecord
from cdc.audit.topic_records import messages_to_end
from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.kafka.control_topics import committed_reader, write_records
from cdc.logs import get_logger
from cdc.names import Control, control_topic

log = get_logger("audit")
_FLUSH_SECONDS = 15.0


def keep(config: Config, records: Iterable[AuditRecord]) -> None:
    """Write the records to `__audits`.

    A failed write is logged as a warning and not raised, because the audit's result is valid without it.
    """
    topic = control_topic(config.kafka.prefix, Control.AUDITS)
    found = ((record.key, record.encode()) for record in records)
    try:
        write_records(config.kafka.client_options(), topic, found, timeout_seconds=_FLUSH_SECONDS)
    except TransientError as error:
        log.warning("audit_not_kept", topic=topic, reason=str(error))


def read_audits(config: Config) -> list[AuditRecord]:
    """Return the last record of each store and table, for full and for sampled audits.

    The list is empty before the first audit.
    """
    topic = control_topic(config.kafka.prefix, Control.AUDITS)
    consumer = committed_reader(config.kafka.client_options())
    last: dict[bytes, AuditRecord] = {}
    try:
        if topic not in consumer.list_topics(timeout=_FLUSH_SECONDS).topics:
            return []
        consumer.assign([TopicPartition(topic, 0, 0)])
        for message in messages_to_end(consumer, topic):
            key, value = message.key(), message.value()
            if key is not None and value is not None:
                last[key] = _decoded(topic, value)
    finally:
        consumer.close()
    return list(last.values())


def _decoded(topic: str, value: bytes) -> AuditRecord:
    if msgspec.json.decode(value).get("format", 0) > FORMAT:
        raise RefusedError(
            f"A record on {topic} has a newer format than {FORMAT}.", remedy="Run the newer Tailrace that wrote it."
        )
    return msgspec.json.decode(value, type=AuditRecord)
