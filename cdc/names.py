"""Names outside Postgres: topics, indices, row ids, Redis keys. Only this module builds names that leave Tailrace.

Two tables never share a name. A byte of an identifier outside `[A-Za-z0-9_]` becomes `-hh`, so the dots between the
parts are the only dots. Elasticsearch allows no capitals in index names, so there capitals are escaped too. A name that
would be too long ends in `--` and a hash. Only such a shortened name cannot be parsed; the `__schema` topic maps it to
its table.

Kafka itself rejects a topic that differs from another one only by `.` instead of `_` (schema `a_b`, table `c` and
schema `a`, table `b_c`). Creating the second topic then fails, so two tables never share a topic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from typing import NamedTuple

import orjson

TOPIC_BYTES = 249
INDEX_BYTES = 255 - 16  # 16 bytes are reserved for the suffix that names an index's generation
ROW_ID_BYTES = 512

PREFIX_RULE = "a prefix has at most 64 characters out of a-z, 0-9, _ and -, and starts with a letter or digit"
PREFIX_PATTERN = r"[a-z0-9][a-z0-9_-]{0,63}"
_PREFIX = re.compile(PREFIX_PATTERN)
_TOPIC_ESCAPED = re.compile(rb"[^A-Za-z0-9_]")
_MESSAGE_ESCAPED = re.compile(rb"[^A-Za-z0-9]")
_INDEX_ESCAPED = re.compile(rb"[^a-z0-9_]")
_ESCAPE = re.compile(rb"-([0-9a-f]{2})")
_SHORTENED = "--"
_HASHED = "sha256:"


class Control(Enum):
    """The control topics. Their names have one dot and table topics have two, so the two never collide."""

    PROGRESS = "__progress"
    SCHEMA = "__schema"
    #: Rows of incremental snapshots, from the snapshot job to capture.
    COPY = "__copy"
    #: The state of every snapshot: its chunks and its progress.
    COPIES = "__copies"
    PARKED = "__parked"
    #: History of (LSN, time, end offsets), kept for lag and `wait`.
    POSITIONS = "__positions"
    #: Notes about stores: which are paused, which is being built.
    STORES = "__stores"
    #: The latest audit result of each store and table.
    AUDITS = "__audits"
    #: The operators' requests about incremental snapshots: to pause, to cancel tables.
    REQUESTS = "__requests"


class TopicName(NamedTuple):
    """The parts of a table topic's name, unescaped."""

    prefix: str
    schema: str
    table: str


def is_prefix(text: str) -> bool:
    """Return whether `text` is a valid prefix, as PREFIX_RULE describes it."""
    return _PREFIX.fullmatch(text) is not None


def topic(prefix: str, schema: str, table: str) -> str:
    """Return the name of a table topic, for example `shop.public.orders`."""
    return _join(prefix, schema, table, _TOPIC_ESCAPED, TOPIC_BYTES)


def index_name(prefix: str, schema: str, table: str) -> str:
    """Return the Elasticsearch alias of a table. Its indices append a generation to this name."""
    return _join(prefix, schema, table, _INDEX_ESCAPED, INDEX_BYTES)


def control_topic(prefix: str, control: Control) -> str:
    """Return the name of a control topic, for example `shop.__progress`."""
    return f"{_checked(prefix)}.{control.value}"


def message_topic(prefix: str, name: str) -> str:
    """Return the topic of the logical messages called `name`. It has one dot, as control topics do.

    `_` is escaped as well. So the topic is never a control topic, and never differs from a table topic only by `.`
    instead of `_`. Kafka rejects such a topic, so any client that can send a message could otherwise stop capture.
    """
    topic_name = f"{_checked(prefix)}.{_escape(name, _MESSAGE_ESCAPED) if name else '-'}"
    if len(topic_name) <= TOPIC_BYTES:
        return topic_name
    ending = _SHORTENED + sha256(topic_name.encode()).hexdigest()[:32]
    return topic_name[: TOPIC_BYTES - len(ending)].rstrip("-") + ending


def other_messages_topic(prefix: str) -> str:
    """Return the topic of messages without a topic of their own. No name is escaped to it: `-` becomes `-2d`."""
    return f"{_checked(prefix)}.{_SHORTENED}other"


def parse_topic(name: str) -> TopicName | None:
    """Return the table of a topic or index; None for a control topic, a shortened name or a foreign name."""
    prefix, _, rest = name.partition(".")
    schema, dot, table = rest.partition(".")
    if not (is_prefix(prefix) and dot and schema and table):
        return None
    try:
        parsed = TopicName(prefix, _unescape(schema), _unescape(table))
    except ValueError:
        return None
    # A name that `topic` and `index_name` would not build (`a-2Eb`, or an escaped letter) is not from Tailrace.
    return parsed if name in (topic(*parsed), index_name(*parsed)) else None


def is_shortened(name: str) -> bool:
    """Return whether the name of a Tailrace topic or index was too long and ends in a hash."""
    return _SHORTENED in name.partition(".")[2]


def row_id(key_values: Sequence[str]) -> str:
    """Return a row's id in every store: the value of its key, or a JSON array of strings for several key columns.

    An id that is too long is hashed. An empty value is hashed because Elasticsearch rejects an empty id. A value that
    looks like such a hash is hashed too, so that two rows never get the same id.
    """
    text = key_values[0] if len(key_values) == 1 else orjson.dumps(list(key_values)).decode()
    encoded = text.encode()
    if not encoded or len(encoded) > ROW_ID_BYTES or text.startswith(_HASHED):
        return _HASHED + sha256(encoded).hexdigest()
    return text


def redis_key(prefix: str, schema: str, table: str, row: str) -> str:
    """Return the Redis key of a row, for example `shop:public.orders:42`. `row` is a `row_id`."""
    return f"{_checked(prefix)}:{_escape(schema, _TOPIC_ESCAPED)}.{_escape(table, _TOPIC_ESCAPED)}:{row}"


def _join(prefix: str, schema: str, table: str, escaped: re.Pattern[bytes], limit: int) -> str:
    name = f"{_checked(prefix)}.{_escape(schema, escaped)}.{_escape(table, escaped)}"
    if len(name) <= limit:
        return name
    ending = _SHORTENED + sha256(name.encode()).hexdigest()[:32]
    return name[: limit - len(ending)].rstrip("-") + ending


def _escape(identifier: str, escaped: re.Pattern[bytes]) -> str:
    if not identifier:
        raise ValueError("an identifier must not be empty")
    return escaped.sub(lambda byte: b"-%02x" % ord(byte[0]), identifier.encode()).decode("ascii")


def _unescape(part: str) -> str:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), part.encode()).decode()


def _checked(prefix: str) -> str:
    if not is_prefix(prefix):
        raise ValueError(PREFIX_RULE)
    return prefix
