"""`tailrace check` under test: a config, roles to log in as, and the finding that a test is about."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from cdc.check import Finding, Level
from cdc.config import Config, parse_config

Section = Mapping[str, Any]


def config_text(
    dsn: str,
    bootstrap: str,
    prefix: str,
    *,
    source: Section | None = None,
    kafka: Section | None = None,
    capture: Section | None = None,
) -> str:
    sections = {
        "source": {"dsn": dsn, "slot": slot_name(prefix), **(source or {})},
        "kafka": {"bootstrap": bootstrap, "prefix": prefix, "partitions": 2, **(kafka or {})},
        "capture": dict(capture or {}),
    }
    lines = [
        line
        for name, keys in sections.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()))
    ]
    return "\n".join(lines) + "\n"


def make_config(dsn: str, bootstrap: str, prefix: str, **sections: Section) -> Config:
    text = config_text(dsn, bootstrap, prefix, **sections)
    return parse_config(text, file=Path("tailrace.toml"), environment={})


def slot_name(prefix: str) -> str:
    return f"tailrace_{prefix}"


def assert_found(findings: Iterable[Finding], level: Level, place: str, *words: str) -> Finding:
    """One finding of this level and place has these words, and a remedy unless it is OK."""
    listed = list(findings)
    for finding in listed:
        text = f"{finding.what} {finding.remedy or ''}"
        if finding.level is level and finding.place == place and all(word in text for word in words):
            assert (finding.remedy is None) is (level is Level.OK)
            return finding
    shown = "\n".join(f"{each.level.value} {each.place}: {each.what} -> {each.remedy}" for each in listed)
    raise AssertionError(f"no {level.value} at {place!r} with {words}:\n{shown}")


def assert_no_fail(findings: Iterable[Finding]) -> None:
    failures = [finding for finding in findings if finding.level is Level.FAIL]
    assert failures == []


def from_json(document: str) -> list[Finding]:
    """The findings that `tailrace check --json` printed."""
    return [
        Finding(each["place"], Level(each["level"]), each["what"], each["remedy"])
        for each in json.loads(document)["findings"]
    ]


@contextmanager
def role(server_url: str, *options: str, name: str | None = None) -> Iterator[str]:
    """A role for the test, dropped afterwards; use it while the test's database exists."""
    own = name or f"role_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} ").format(sql.Identifier(own)) + sql.SQL(" ".join(options)))
        try:
            yield own
        finally:
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(own)))


def as_role(dsn: str, name: str) -> str:
    """The same connection string with another user."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{name}@{host}").geturl()


def forget_role(dsn: str, name: str) -> None:
    """Revoke the role's rights in the database, so that it can be dropped."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
