"""The producer, and the way by which the records of rows get into its queue.

Where there was a C compiler at installation, rows go a compiled way past confluent-kafka's `produce`: `native_outlet`.
Where there was none, and for every other record, the way is `Publisher.send`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from confluent_kafka import Producer

from cdc.records import Emit

native_outlet: Any
try:
    from cdc import native_outlet  # type: ignore[attr-defined,no-redef]
except ImportError:  # there was no compiler
    native_outlet = None

_PLUGINS = "plugin.library.paths"


class Outlet(Protocol):
    """`count` and `sent_bytes`: of the records since the last commit that `send` has not seen."""

    count: int
    sent_bytes: int

    @property
    def emit(self) -> Emit: ...

    def begin_anew(self) -> None:
        """After a commit."""


class PlainOutlet:
    """Everything is sent."""

    count = sent_bytes = 0

    def __init__(self, send: Emit) -> None:
        self.emit = send

    def begin_anew(self) -> None:
        pass


def open_producer(
    settings: Mapping[str, Any], *, send: Emit, note_topic: Callable[[str], None], largest_record: int
) -> tuple[Producer, Outlet]:
    """`note_topic` is called before the first record of a topic that does not come by `send`."""
    if native_outlet is None or not native_outlet.is_available():
        return Producer(dict(settings)), PlainOutlet(send)

    def make_producer(plugin: str) -> Producer:
        paths = [path for path in (settings.get(_PLUGINS), plugin) if path]  # beside those that the user names
        return Producer({**settings, _PLUGINS: ";".join(paths)})

    opened: tuple[Producer, Outlet] = native_outlet.make_outlet(make_producer, note_topic, send, largest_record)
    return opened
