"""Names outside Postgres: topics, indices, row ids, Redis keys. Every name that leaves Tailrace is made here.

Two tables never share a name. Bytes of an identifier outside `[A-Za-z0-9_]` become `-hh`, so the dots between the parts
are the only dots; Elasticsearch, which has no capitals, gets those escaped too. A name that would be too long ends
in `--` and a hash: such a name (and only such) cannot be read back, the `__schema` topic knows what it stands for.

Kafka itself refuses a topic that differs from another only by `.` against `_` (schema `a_b`, table `c` against
schema `a`, table `b_c`): that is an error when the second one is created, never a mixed topic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from typing import NamedTuple

import orjson

TOPIC_BYTES = 249
INDEX_BYTES = 255 - 16  # the rest is for the suffix that tells an index's generations apart
ROW_ID_BYTES = 512

PREFIX_RULE = "a prefix is made of a-z, 0-9, _ and -, a letter or digit first, at most 64 of them"
PREFIX_PATTERN = r"[a-z0-9][a-z0-9_-]{0,63}"
_PREFIX = re.compile(PREFIX_PATTERN)
_TOPIC_ESCAPED = re.compile(rb"[^A-Za-z0-9_]")
_MESSAGE_ESCAPED = re.compile(rb"[^A-Za-z0-9]")
_INDEX_ESCAPED = re.compile(rb"[^a-z0-9_]")
_ESCAPE = re.compile(rb"-([0-9a-f]{2})")
_SHORTENED = "--"
_HASHED = "sha256:"


class Control(Enum):
    """The topics beside the tables' own; one dot in the name, so no table's topic (two dots) can be one."""

    PROGRESS = "__progress"
    SCHEMA = "__schema"
    #: Rows of later copies on their way to capture.
    COPY = "__copy"
    #: What is known of every copy: its chunks, how far it has come.
    COPIES = "__copies"
    PARKED = "__parked"
    #: Retained history of (LSN, time, end offsets), for lag and `wait`.
    POSITIONS = "__positions"
    #: What is said about stores: which are paused, which is being built.
    STORES = "__stores"
    #: What the last audit of each store and table found.
    AUDITS = "__audits"
    #: What people have asked of later copies: to pause, to leave tables alone.
    REQUESTS = "__requests"


class TopicName(NamedTuple):
    prefix: str
    schema: str
    table: str


def is_prefix(text: str) -> bool:
    return _PREFIX.fullmatch(text) is not None


def topic(prefix: str, schema: str, table: str) -> str:
    """`shop.public.orders`."""
    return _join(prefix, schema, table, _TOPIC_ESCAPED, TOPIC_BYTES)


def index_name(prefix: str, schema: str, table: str) -> str:
    """The Elasticsearch alias of a table; its indices append a generation to it."""
    return _join(prefix, schema, table, _INDEX_ESCAPED, INDEX_BYTES)


def control_topic(prefix: str, control: Control) -> str:
    return f"{_checked(prefix)}.{control.value}"


def message_topic(prefix: str, name: str) -> str:
    """Where logical messages of this name go: one dot, as control topics have.

    `_` is escaped as well: no name is a control topic's, and none differs from a table's topic only by `.` against `_`,
    which anybody who may send a message could otherwise use to stop us.
    """
    topic_name = f"{_checked(prefix)}.{_escape(name, _MESSAGE_ESCAPED) if name else '-'}"
    if len(topic_name) <= TOPIC_BYTES:
        return topic_name
    ending = _SHORTENED + sha256(topic_name.encode()).hexdigest()[:32]
    return topic_name[: TOPIC_BYTES - len(ending)].rstrip("-") + ending


def other_messages_topic(prefix: str) -> str:
    """For messages whose names have no topic of their own. No name is escaped to this: `-` becomes `-2d`."""
    return f"{_checked(prefix)}.{_SHORTENED}other"


def parse_topic(name: str) -> TopicName | None:
    """The table that a topic or index belongs to; None for a control topic, a shortened name, or one not of ours."""
    prefix, _, rest = name.partition(".")
    schema, dot, table = rest.partition(".")
    if not (is_prefix(prefix) and dot and schema and table):
        return None
    try:
        parsed = TopicName(prefix, _unescape(schema), _unescape(table))
    except ValueError:
        return None
    # Only what these functions would write counts: `a-2Eb` or an escaped letter is someone else's.
    return parsed if name in (topic(*parsed), index_name(*parsed)) else None


def is_shortened(name: str) -> bool:
    """Whether a topic or index of ours ends in a hash instead of its whole name."""
    return _SHORTENED in name.partition(".")[2]


def row_id(key_values: Sequence[str]) -> str:
    """A row's id in every store: its key's value, or several as a JSON array of strings; hashed when over-long.

    An empty value is hashed because Elasticsearch refuses an empty id, and one that looks like our hash is hashed so
    that it cannot pose as another row.
    """
    text = key_values[0] if len(key_values) == 1 else orjson.dumps(list(key_values)).decode()
    encoded = text.encode()
    if not encoded or len(encoded) > ROW_ID_BYTES or text.startswith(_HASHED):
        return _HASHED + sha256(encoded).hexdigest()
    return text


def redis_key(prefix: str, schema: str, table: str, row: str) -> str:
    """`shop:public.orders:42`; `row` is a `row_id`."""
    return f"{_checked(prefix)}:{_escape(schema, _TOPIC_ESCAPED)}.{_escape(table, _TOPIC_ESCAPED)}:{row}"


def _join(prefix: str, schema: str, table: str, escaped: re.Pattern[bytes], limit: int) -> str:
    name = f"{_checked(prefix)}.{_escape(schema, escaped)}.{_escape(table, escaped)}"
    if len(name) <= limit:
        return name
    ending = _SHORTENED + sha256(name.encode()).hexdigest()[:32]
    return name[: limit - len(ending)].rstrip("-") + ending


def _escape(identifier: str, escaped: re.Pattern[bytes]) -> str:
    if not identifier:
        raise ValueError("an identifier is never empty")
    return escaped.sub(lambda byte: b"-%02x" % ord(byte[0]), identifier.encode()).decode("ascii")


def _unescape(part: str) -> str:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), part.encode()).decode()


def _checked(prefix: str) -> str:
    if not is_prefix(prefix):
        raise ValueError(PREFIX_RULE)
    return prefix
