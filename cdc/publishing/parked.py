"""The records on `<prefix>.__parked`: rows that capture or a store could not deliver, and the entries that settle them.

The topic is a log. An entry parks a row under its topic, key and version. A later entry of the same row with `settled`
settles it. An entry with `every` settles all rows of a table with a smaller version (after a TRUNCATE or a snapshot of
the whole table). Capture writes its entries in the same Kafka transaction as the events that they belong to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec
import orjson

from cdc.errors import RefusedError
from cdc.kafka.control_topics import read_to_end
from cdc.kafka.record import Headers, Record

FORMAT = 1
#: On the delete and the tombstone that replace a parked row in its topic: the size that its record would have.
HEADER = "parked"
#: The first bytes of the key of a TRUNCATE's marker, and of the marker that ends a snapshot.
MARKER_KEY = b'{"__truncate":'
# Record keys on `__parked`, and keys that would make an entry too large, are truncated to this length.
_KEY_BYTES = 512
_SOURCE = b',"source":{"version":"'
_NO_BEFORE = b'{"before":null,"after":'
_NO_AFTER = b',"after":null'


class _After(msgspec.Struct):
    after: msgspec.Raw


class RowName(NamedTuple):
    """Identifies a parked row: the store that parked it ("" for capture), its topic and its key."""

    store: str
    topic: str
    key: bytes


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """An entry on `__parked`.

    `place`: the entry's own offset on `__parked`. Commands use it to name the entry.
    `store`: the store that parked the row, empty for capture.
    `key_bytes`: the length of the whole key if `key` is truncated to 512 bytes, otherwise 0.
    `key_digest`: the digest of the whole key, if it is longer than 512 bytes and capture wrote the entry.
    """

    topic: str
    key: str
    version: str
    reason: str = ""
    store: str = ""
    partition: int = -1
    offset: int = -1
    parked_ms: int = 0
    key_bytes: int = 0
    key_digest: str = ""
    settled: bool = False
    every: bool = False
    place: int = -1

    @property
    def name(self) -> RowName:
        if self.key_digest:
            return RowName(self.store, self.topic, self.key_digest.encode())
        key = self.key.encode()
        return RowName(self.store, self.topic, key if self.key_bytes else short_key(key))


def names_of(store: str, topic: str, key: bytes) -> set[RowName]:
    """Return the names under which the row may be parked. A store's entry has only the first bytes of a long key."""
    return {RowName(store, topic, short_key(key)), RowName(store, topic, kept_key(key).encode())}


def short_key(key: bytes) -> bytes:
    """Return a key of bounded length that identifies the row: the key itself, or the digest of a long key."""
    return key if len(key) <= _KEY_BYTES else _digest(key).encode()


def kept_key(key: bytes) -> str:
    """Return the part of a key that a store's entry contains."""
    return key[:_KEY_BYTES].decode(errors="replace")


def _digest(key: bytes) -> str:
    return f"sha256:{sha256(key).hexdigest()}"


def decode_parked(value: bytes, place: int, topic: str) -> Parked:
    """Decode an entry. Raises RefusedError for an entry of a newer format."""
    found = msgspec.json.decode(value).get("format", FORMAT)
    if found > FORMAT:
        raise RefusedError(
            f"A record on {topic} has format {found}. This release reads formats up to {FORMAT}.",
            remedy="Run the newer Tailrace that wrote it.",
        )
    return msgspec.structs.replace(msgspec.json.decode(value, type=Parked), place=place)


class ParkedRows:
    """The rows that are parked and not settled, according to the entries read so far."""

    def __init__(self) -> None:
        self._last: dict[RowName, Parked] = {}

    def take(self, entry: Parked) -> None:
        """Apply an entry. Call this in the topic's order.

        Stores may write an entry more than once, so an entry with an older version than the last one has no effect.
        """
        if entry.every:
            self._settle_every(entry)
            return
        before = self._last.pop(entry.name, None)
        if before is not None and entry.version < before.version:
            entry = before
        if entry.store or not entry.settled:
            self._last[entry.name] = entry

    def _settle_every(self, entry: Parked) -> None:
        for name, row in list(self._last.items()):
            if (name.store, name.topic) == (entry.store, entry.topic) and row.version < entry.version:
                del self._last[name]

    def __iter__(self) -> Iterator[Parked]:
        """Yields the rows, the oldest first."""
        return (row for row in self._last.values() if not row.settled)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return the number of rows by store and topic."""
        return Counter((row.store, row.topic) for row in self)


def read_parked_rows(options: dict[str, str], topic: str) -> list[Parked]:
    """Return all rows that are parked now, the oldest first. Waits for open transactions before the topic's end."""
    rows = ParkedRows()
    for message in read_to_end(options, topic):
        value = message.value()
        if value is not None:
            rows.take(decode_parked(value, message.offset() or 0, topic))
    return list(rows)


# -- capture's entries -----------------------------------------------------------------------------------------------


def parked_entry(
    parked_topic: str, topic: str, key: bytes, version: bytes, size: int | bytes, largest_record: int
) -> Record:
    """Return the entry that parks a row whose record is too large."""
    number = size.decode() if isinstance(size, bytes) else size
    reason = f"record of {number} bytes is over max_message_bytes"
    return _entry(parked_topic, topic, key, version, {"reason": reason}, largest_record)


def settled_entry(parked_topic: str, topic: str, key: bytes, version: bytes, largest_record: int) -> Record:
    """Return the entry that settles a row."""
    return _entry(parked_topic, topic, key, version, {"settled": True}, largest_record)


def every_settled_entry(parked_topic: str, topic: str, version: bytes) -> Record:
    """Return the entry that settles every row of the table with a smaller version."""
    more = {"settled": True, "every": True}
    return _entry(parked_topic, topic, b"", version, more, _KEY_BYTES)


def _entry(
    parked_topic: str, topic: str, key: bytes, version: bytes, more: Mapping[str, object], largest_record: int
) -> Record:
    entry: dict[str, object] = {
        "format": FORMAT,
        "topic": topic,
        "key": key.decode(),
        "version": version.decode(),
        **more,
        **({"key_digest": _digest(key)} if len(key) > _KEY_BYTES else {}),
    }
    data = orjson.dumps(entry)
    if key and len(data) > largest_record - _KEY_BYTES:
        data = orjson.dumps(entry | {"key": kept_key(key), "key_bytes": len(key)})
    return Record(parked_topic, key[:_KEY_BYTES], data, [("v", version)])


def parked_headers(version: bytes, size: int) -> Headers:
    """Return the headers of the delete and the tombstone that replace a parked row."""
    return [("v", version), (HEADER, b"%d" % size)]


def is_delete(event: bytes) -> bool:
    """Whether an event of a table topic is a delete or a truncate marker."""
    return event[: event.rfind(_SOURCE)].endswith(_NO_AFTER)


def without_before(event: bytes) -> bytes:
    """Return the event without `before`: an update may be too large although the new row alone is not."""
    if event.startswith(_NO_BEFORE):
        return event
    after = bytes(msgspec.json.decode(event, type=_After).after)
    return b"".join((_NO_BEFORE, after, event[event.rfind(_SOURCE) :]))


def without_rows(event: bytes, *, parked: bool) -> bytes:
    """Return a delete to replace an event that is too large: the event without its rows. `parked`: the row exists."""
    # Keep the part after the rows. No JSON string can contain _SOURCE, since quotes in strings are escaped.
    plain = orjson.loads(b'{"before":null,"after":null' + event[event.rfind(_SOURCE) :])
    plain["op"] = "d"
    if parked:
        plain["source"]["parked"] = True
    return orjson.dumps(plain)


class ParkedKeys:
    """The rows that capture has parked and not settled, by topic and short key, with their versions. In memory only."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[bytes, bytes]] = {}

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._topics)

    @property
    def counts(self) -> dict[str, int]:
        return {topic: len(keys) for topic, keys in self._topics.items()}

    def add(self, topic: str, key: bytes, version: bytes) -> None:
        self._topics.setdefault(topic, {})[short_key(key)] = version

    def load(self, rows: Iterable[Parked]) -> None:
        for row in rows:
            self._topics.setdefault(row.topic, {})[row.name.key] = row.version.encode()

    def settle(self, topic: str, key: bytes) -> bool:
        """Remove the row. Returns whether it was parked."""
        keys = self._topics.get(topic, {})
        was_parked = keys.pop(short_key(key), None) is not None
        self._forget_empty(topic)
        return was_parked

    def settle_below(self, topic: str, version: bytes) -> bool:
        """Remove all rows of the table with a smaller version. Returns whether there were any."""
        keys = self._topics.get(topic, {})
        kept = {key: parked for key, parked in keys.items() if parked >= version}
        if len(kept) == len(keys):
            return False
        self._topics[topic] = kept
        self._forget_empty(topic)
        return True

    def _forget_empty(self, topic: str) -> None:
        if not self._topics.get(topic, True):
            del self._topics[topic]
