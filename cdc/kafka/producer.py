"""Opens the producer, and the outlet through which records of rows enter its queue.

If a C compiler was available at installation, a compiled fast path (`direct_produce`) puts rows into librdkafka's queue
without confluent-kafka's `produce`. Otherwise, and for all other records, `Publisher.send` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import KafkaException, Producer

from cdc.kafka.record import Emit
from cdc.logs import get_logger

native_outlet: Any
try:
    from cdc.kafka import direct_produce as native_outlet  # type: ignore[attr-defined,no-redef]
except ImportError:  # not compiled at installation
    native_outlet = None

log = get_logger("publisher")

_PLUGINS = "plugin.library.paths"


class RowSender(Protocol):
    """Puts the records of rows into the producer's queue.

    `count` and `sent_bytes`: number and size of the records since the last commit that did not go through `send`.
    `failure`: the error code of the first record of this producer whose delivery failed, or 0 if none is known.
    """

    count: int
    sent_bytes: int
    failure: int

    @property
    def emit(self) -> Emit: ...

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]], version: bytes) -> None:
        """Send one record for each (key, event). All have the same version."""

    def reset_counts(self) -> None:
        """Reset the counters after a commit."""

    def watch(self, topics: frozenset[str]) -> None:
        """Send all further records of these topics through `send`."""


class PlainRowSender:
    """The fallback without the compiled fast path: every record goes through `send`."""

    count = sent_bytes = failure = 0

    def __init__(self, send: Emit) -> None:
        self.emit = send

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]], version: bytes) -> None:
        headers = [("v", version)]
        for key, event in rows:
            self.emit(topic, key, event, headers, -1)

    def reset_counts(self) -> None:
        pass

    def watch(self, topics: frozenset[str]) -> None:
        """Do nothing: all records go through `send` anyway."""


def open_producer(
    settings: Mapping[str, Any], *, send: Emit, note_topic: Callable[[str], None], largest_record: int
) -> tuple[Producer, RowSender]:
    """Open a producer and its outlet.

    The outlet calls `note_topic` before the first record of a topic that does not go through `send`.
    """

    def make_producer(plugin: str) -> Producer:
        paths = [path for path in (settings.get(_PLUGINS), plugin) if path]  # the user may have plugins too
        return Producer({**settings, _PLUGINS: ";".join(paths)})

    if native_outlet is None:
        return Producer(dict(settings)), PlainRowSender(send)
    try:
        opened: tuple[Producer, RowSender] = native_outlet.make_outlet(make_producer, note_topic, send, largest_record)
    except (KafkaException, RuntimeError) as error:
        producer = Producer(dict(settings))  # raises again if the error is not the plugin's
        log.warning("rows_not_compiled", reason=str(error))
        return producer, PlainRowSender(send)
    return opened
