"""Tailrace's own logical messages, which are signed: heartbeats and the watermarks of incremental snapshots.

Any role of the database may write a logical message with any prefix. So Tailrace signs its messages with a secret that
only processes with read access to the pipeline's topics have. The signature covers the id of the transaction that
writes the message. So capture ignores a copy of the message, since another transaction wrote it.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from typing import Any

import msgspec
import psycopg

from cdc.config import KafkaConfig
from cdc.errors import RefusedError, TransientError
from cdc.kafka.control_topics import read_last, write_records
from cdc.logs import Seldom, get_logger
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.pgoutput.messages import Begin, LogicalMessage

log = get_logger("capture")

OWN_PREFIX = "tailrace."  # the first part of the prefix of all Tailrace's own messages

FORMAT = 1
# The secret's key on __requests. Older releases read only records with another key there.
KEY = b'{"secret":"messages"}'
_SECRET_BYTES = 32
_SIGNATURE_BYTES = 64  # in hexadecimal
_XIDS = 1 << 32  # the stream has the lower 32 bits of a transaction id
_ANSWER_SECONDS = 10.0


class _Secret(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    secret: str


def ensure_secret(kafka: KafkaConfig) -> bytes:
    """Return the pipeline's secret, or create it. Blocks. Only the capture that holds the slot may call this."""
    found = _read(kafka)
    if found is None:
        found = secrets.token_bytes(_SECRET_BYTES)
        record = KEY, msgspec.json.encode(_Secret(secret=found.hex()))
        write_records(kafka.client_options(), _topic(kafka), [record], timeout_seconds=_ANSWER_SECONDS)
    return found


def read_secret(kafka: KafkaConfig) -> bytes:
    """Return the pipeline's secret, for jobs. Raises TransientError if there is none. Blocks."""
    found = _read(kafka)
    if found is None:
        raise TransientError(
            f"{_topic(kafka)} has no secret for messages: no capture of this release has run yet.",
            remedy="Start (or restart) tailrace capture of this release.",
        )
    return found


def _read(kafka: KafkaConfig) -> bytes | None:
    data = read_last(kafka.client_options(), _topic(kafka), KEY, timeout_seconds=_ANSWER_SECONDS)
    if data is None:
        return None
    found = msgspec.json.decode(data, type=_Secret)
    if found.format > FORMAT:
        raise RefusedError(
            f"The secret on {_topic(kafka)} has format {found.format}. This release reads formats up to {FORMAT}.",
            remedy="Run the newer Tailrace that wrote it.",
        )
    return bytes.fromhex(found.secret)


def _topic(kafka: KafkaConfig) -> str:
    return control_topic(kafka.prefix, Control.REQUESTS)


def emit_signed(connection: psycopg.Connection[Any], secret: bytes, prefix: str, body: bytes) -> LSN:
    """Write a signed logical message in its own transaction.

    `body` is ASCII, because the server would convert other characters to its encoding. Returns an LSN that is at or
    before the message's commit, and after all earlier WAL.
    """
    with connection.transaction():
        row = connection.execute("select pg_current_xact_id()::text::int8").fetchone()
        assert row is not None  # noqa: S101  # a select without FROM has one row
        content = (_signature(secret, prefix, row[0], body) + body).decode("ascii")
        row = connection.execute(
            "select pg_logical_emit_message(true, %s, %s::text)::text", [prefix, content]
        ).fetchone()
        assert row is not None  # noqa: S101  # as above
    return LSN.parse(row[0])


class OwnMessages:
    """Verifies the signatures of Tailrace's own messages, without a query: a forged one costs a hash and a log line."""

    def __init__(self, secret: bytes, slot: str) -> None:
        self._secret = secret
        self._slot = slot.encode()
        self._seldom = Seldom(log)

    def opened(self, message: LogicalMessage, begin: Begin | None) -> bytes | None:
        """Return the message's body. None: it is not signed with this pipeline's secret for this transaction."""
        signature, body = message.content[:_SIGNATURE_BYTES], message.content[_SIGNATURE_BYTES:]
        if begin is not None and message.transactional:
            expected = _signature(self._secret, message.prefix, begin.xid, body)
            if hmac.compare_digest(signature, expected):
                return body
        if self._slot in message.content:  # other pipelines on this database use the same prefixes
            reason = "it names this pipeline, but its signature is wrong for this pipeline or this transaction"
            self._seldom.warning("message_ignored", name=message.prefix, reason=reason, lsn=str(message.lsn))
        return None


def _signature(secret: bytes, prefix: str, xid: int, body: bytes) -> bytes:
    signed = b"%b\0%d\0%b" % (prefix.encode(), xid % _XIDS, body)
    return hmac.new(secret, signed, sha256).hexdigest().encode()
