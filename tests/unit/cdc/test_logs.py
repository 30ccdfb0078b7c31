"""Logs go to stderr, as JSON off a terminal, and never hold a password."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog

from cdc import logs
from cdc.lsn import LSN
from cdc.secrets import Dsn

URL = "postgresql://user:hunter2@host/db"


@pytest.fixture(autouse=True)
def _own_configuration() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_off_a_terminal_every_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Event, level, component and a UTC time in ISO form, and the facts as fields; stdout stays free for results."""
    logs.configure("info")
    logs.get_logger("capture").info("slot_created", slot="tailrace", lsn=LSN(16), rows=3)
    (line,) = lines(capsys)
    time = datetime.fromisoformat(line.pop("timestamp").replace("Z", "+00:00"))
    assert time.utcoffset() == timedelta(0)
    assert line == {
        "event": "slot_created",
        "level": "info",
        "component": "capture",
        "slot": "tailrace",
        "lsn": "0/10",
        "rows": 3,
    }


def test_on_a_terminal_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """`json=False` is what a terminal gets."""
    logs.configure("info", json=False)
    logs.get_logger("capture").info("slot_created", slot="tailrace")
    text = capsys.readouterr().err
    assert "slot_created" in text
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    """What is less important than asked for is not shown; libraries' chatter only when debugging."""
    logs.configure("warning", json=True)
    logger = logs.get_logger("x")
    logger.info("no")
    logger.warning("yes")
    logs.configure("info", json=True)
    logging.getLogger("library").info("no")
    logging.getLogger("library").warning("lib %s", "yes")
    logs.configure("debug", json=True)
    logging.getLogger("library").debug("debug yes")
    assert [line["event"] for line in lines(capsys)] == ["yes", "lib yes", "debug yes"]


@pytest.mark.parametrize("as_json", [True, False])
def test_no_password_in_any_line(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    """Not as a field, in nested facts, in a message, in a traceback, in its local variables, nor from a library."""
    logs.configure("info", json=as_json)
    logger = logs.get_logger("x")
    logger.info("a", dsn=Dsn(URL), url=URL, password="hunter2", nested={"options": [{"sasl.password": "hunter2"}]})
    logger.info("connecting_to_%s", URL)
    try:
        local = "hunter2"
        raise RuntimeError(f"cannot reach {URL}" + local[:0])
    except RuntimeError:
        logger.exception("b")
        logging.getLogger("lib").exception("c %s", URL)
    captured = capsys.readouterr().err
    assert "hunter2" not in captured
    assert captured.count("RuntimeError: cannot reach postgresql://user:***@host/db") == 2
