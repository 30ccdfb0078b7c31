"""Signed messages in the log are told from forged ones without a query; messages make topics up to a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.capture.message_topics import MessageTopics
from cdc.config import Config, parse_config
from cdc.logical_messages import signed
from cdc.logical_messages.signed import OwnMessages
from cdc.logs import Seldom
from cdc.lsn import LSN
from cdc.pgoutput.messages import Begin, LogicalMessage
from cdc.positions.progress import Progress

SECRET = b"s" * 32
BODY = b'{"slot":"tailrace"}'
XID = (3 << 32) + 700


def _begin(xid: int) -> Begin:
    return Begin(final_lsn=LSN(8), commit_time_us=0, xid=xid % (1 << 32))


def _message(content: bytes, prefix: str = "tailrace.copy", *, transactional: bool = True) -> LogicalMessage:
    return LogicalMessage(transactional, LSN(8), prefix, content)


def _signed(secret: bytes = SECRET, prefix: str = "tailrace.copy", xid: int = XID, body: bytes = BODY) -> bytes:
    return signed._signature(secret, prefix, xid, body) + body


def test_a_message_counts_only_in_the_transaction_that_it_was_signed_for() -> None:
    """A message with another transaction, name, secret or body, or without signature or transaction, is invalid."""
    ours = OwnMessages(SECRET, "tailrace")
    assert ours.opened(_message(_signed()), _begin(XID)) == BODY
    for content in (_signed(b"other"), _signed(prefix="tailrace.x"), _signed()[:-1] + b" ", BODY, b"", _signed()[:64]):
        assert ours.opened(_message(content), _begin(XID)) is None
    assert ours.opened(_message(_signed()), _begin(XID + 1)) is None
    assert ours.opened(_message(_signed()), None) is None
    assert ours.opened(_message(_signed(), transactional=False), _begin(XID)) is None


class _Log:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def warning(self, event: str, **facts: Any) -> None:
        self.told.append({"event": event, **facts})


def test_forged_messages_give_one_log_line_a_minute() -> None:
    """A flood of forged messages gives one log line a minute with their number and a shortened name."""
    now, log = [100.0], _Log()
    seldom = Seldom(log, clock=lambda: now[0])  # type: ignore[arg-type]  # as much of a logger as it needs
    for _ in range(500):
        seldom.warning("message_ignored", name="x" * 1000)
    now[0] += 61
    seldom.warning("message_ignored", name="y")
    assert [(each["times"], len(each["name"])) for each in log.told] == [(1, 100), (500, 1)]


def _config(source: str = "") -> Config:
    text = f'[source]\ndsn = "postgresql://h/d"\n{source}[kafka]\nbootstrap = "h:1"\nprefix = "p"\n'
    return parse_config(text, file=Path("tailrace.toml"), environment={})


def _progress(*message_topics: str) -> Progress:
    return Progress(
        state="streaming",
        position=0,
        seq=0,
        base=0,
        confirm_lsn=0,
        system_identifier="1",
        timeline=1,
        publication="1",
        publication_tables={},
        topic_ids={"p.public.t": "1", **dict.fromkeys(message_topics, "2")},
        end_offsets={"p.public.t": [0]},
    )


@pytest.mark.parametrize(
    ("source", "name", "known", "topic"),
    [
        ("", "orders", (), "p.orders"),
        ("messages = false\n", "orders", (), None),
        ("message_topics = 1\n", "orders", (), "p.orders"),
        ("message_topics = 1\n", "orders", ("p.a",), "p.--other"),
        ("message_topics = 1\n", "a", ("p.a",), "p.a"),
        ("message_topics = 1\n", "b", ("p.a", "p.--other"), "p.--other"),
        ('message_topics = 1\nmessage_names = ["orders", "*"]\n', "orders", ("p.a",), "p.orders"),
        ('message_topics = 1\nmessage_names = ["orders", "*"]\n', "b", ("p.orders",), "p.b"),
        ('message_names = ["orders.*"]\n', "orders.paid", (), "p.orders-2epaid"),
        ('message_names = ["orders.*"]\n', "orders", (), None),
        ('message_names = ["orders.*"]\n', "ordersxpaid", (), None),
        ('message_topics = 0\nmessage_names = ["*"]\n', "other", (), "p.--other"),
    ],
)
def test_where_a_message_goes(source: str, name: str, known: tuple[str, ...], topic: str | None) -> None:
    """Names that the config lists literally do not count towards the limit; names of a pattern do."""
    assert MessageTopics(_config(source)).topic_for(name, _progress(*known)) == topic
