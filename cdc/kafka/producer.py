"""The producer, and the way by which the records of rows get into its queue.

Where there was a C compiler at installation, rows go a compiled way past confluent-kafka's `produce`: `native_outlet`.
Where there was none, and for every other record, the way is `Publisher.send`.
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
except ImportError:  # there was no compiler
    native_outlet = None

log = get_logger("publisher")

_PLUGINS = "plugin.library.paths"


class Outlet(Protocol):
    """`count` and `sent_bytes`: of the records since the last commit that `send` has not seen.

    `failure`: the error code of the first record of this producer that could not be delivered, or 0 as far as it knows.
    """

    count: int
    sent_bytes: int
    failure: int

    @property
    def emit(self) -> Emit: ...

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]], version: bytes) -> None:
        """A record for each (key, event) of rows of one version."""

    def begin_anew(self) -> None:
        """After a commit."""

    def watch(self, topics: frozenset[str]) -> None:
        """Every record of these topics goes by `send`, from the next one on."""


class PlainOutlet:
    """Everything is sent."""

    count = sent_bytes = failure = 0

    def __init__(self, send: Emit) -> None:
        self.emit = send

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]], version: bytes) -> None:
        headers = [("v", version)]
        for key, event in rows:
            self.emit(topic, key, event, headers, -1)

    def begin_anew(self) -> None:
        pass

    def watch(self, topics: frozenset[str]) -> None:
        """All of them do."""


def open_producer(
    settings: Mapping[str, Any], *, send: Emit, note_topic: Callable[[str], None], largest_record: int
) -> tuple[Producer, Outlet]:
    """`note_topic` is called before the first record of a topic that does not come by `send`."""

    def make_producer(plugin: str) -> Producer:
        paths = [path for path in (settings.get(_PLUGINS), plugin) if path]  # beside those that the user names
        return Producer({**settings, _PLUGINS: ";".join(paths)})

    if native_outlet is None:
        return Producer(dict(settings)), PlainOutlet(send)
    try:
        opened: tuple[Producer, Outlet] = native_outlet.make_outlet(make_producer, note_topic, send, largest_record)
    except (KafkaException, RuntimeError) as error:
        producer = Producer(dict(settings))  # raises again what is not for the plugin
        log.warning("rows_not_compiled", reason=str(error))
        return producer, PlainOutlet(send)
    return opened
