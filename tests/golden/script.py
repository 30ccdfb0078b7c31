"""Reads script.sql: what runs before capture, and the steps, each of which is one transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import psycopg

GOLDEN = Path(__file__).parent
_STEP = re.compile(r"^-- step: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`steps` are (name, SQL) in order."""

    setup: str
    steps: tuple[tuple[str, str], ...]


def read_script(path: Path = GOLDEN / "script.sql") -> Script:
    setup, *parts = _STEP.split(path.read_text())
    return Script(setup=setup, steps=tuple(zip(parts[0::2], parts[1::2], strict=True)))


def run_setup(connection: psycopg.Connection[tuple[object, ...]], script: Script) -> None:
    with connection.transaction():
        connection.execute(script.setup.encode())


def run_steps(connection: psycopg.Connection[tuple[object, ...]], script: Script) -> None:
    for _, sql in script.steps:
        with connection.transaction():
            connection.execute(sql.encode())
