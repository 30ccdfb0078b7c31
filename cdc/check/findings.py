"""What an inspection says: one finding per thing looked at, good or bad, with the remedy where it is not good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import psycopg
from kafka.errors import KafkaError

from cdc.errors import TailraceError
from cdc.postgres.connection import explain
from cdc.secrets import redact


class Level(Enum):
    OK = "OK"
    WARN = "WARN"  # capture runs, but something will hurt one day
    FAIL = "FAIL"  # capture would refuse to run, or could lose data


@dataclass(frozen=True, slots=True)
class Finding:
    """`place` is where it was found: server, role, table …, publication …, slot …, broker, topic …"""

    place: str
    level: Level
    what: str
    remedy: str | None = None

    def as_plain(self) -> dict[str, str | None]:
        """For JSON."""
        return {"place": self.place, "level": self.level.value, "what": self.what, "remedy": self.remedy}


def ok(place: str, what: str) -> Finding:
    return Finding(place, Level.OK, redact(what))


def warn(place: str, what: str, remedy: str) -> Finding:
    return Finding(place, Level.WARN, redact(what), redact(remedy))


def fail(place: str, what: str, remedy: str) -> Finding:
    return Finding(place, Level.FAIL, redact(what), redact(remedy))


def refusal(place: str, error: TailraceError, remedy: str) -> Finding:
    """What capture would stop with; `remedy` where the error has none of its own."""
    return fail(place, error.message, error.remedy or remedy)


def gather(place: str, section: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """A section's findings. One that breaks off ends in a failure of its own, and the other sections still run."""
    found: list[Finding] = []
    try:
        for finding in section():
            found.append(finding)  # one by one: what was found before an error stays
    except TailraceError as error:
        found.append(refusal(place, error, "Run `tailrace check` again once it answers."))
    except psycopg.Error as error:
        found.append(fail(place, f"Postgres did not answer a question: {explain(error)}", "Run this check again."))
    except KafkaError as error:
        found.append(fail(place, f"Kafka did not answer a question: {error}", "Run this check again."))
    return found


def worst(findings: Sequence[Finding]) -> Level:
    """The level of the whole."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)
