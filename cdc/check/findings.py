"""The findings of `tailrace check`: one per checked item, with a remedy if the item is not OK."""

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
    """How serious a finding is."""

    OK = "OK"
    WARN = "WARN"  # capture runs, but this can cause a failure later
    FAIL = "FAIL"  # capture would refuse to run, or could lose data


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `place` is the checked object: server, role, table …, publication …, slot …, topic …"""

    place: str
    level: Level
    what: str
    remedy: str | None = None

    def as_plain(self) -> dict[str, str | None]:
        """Return the finding as a dictionary for JSON output."""
        return {"place": self.place, "level": self.level.value, "what": self.what, "remedy": self.remedy}


def ok(place: str, what: str) -> Finding:
    """Return a finding of level OK."""
    return Finding(place, Level.OK, redact(what))


def warn(place: str, what: str, remedy: str) -> Finding:
    """Return a finding of level WARN."""
    return Finding(place, Level.WARN, redact(what), redact(remedy))


def fail(place: str, what: str, remedy: str) -> Finding:
    """Return a finding of level FAIL."""
    return Finding(place, Level.FAIL, redact(what), redact(remedy))


def refusal(place: str, error: TailraceError, remedy: str) -> Finding:
    """Return an error that would stop capture as a finding of level FAIL. `remedy`: for an error without a remedy."""
    return fail(place, error.message, error.remedy or remedy)


def gather(place: str, section: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return a section's findings. An error in the section becomes a last finding, so the other sections still run."""
    found: list[Finding] = []
    try:
        for finding in section():
            found.append(finding)  # one at a time, to keep the findings before an error
    except TailraceError as error:
        found.append(refusal(place, error, "Run `tailrace check` again when the server answers."))
    except psycopg.Error as error:
        found.append(fail(place, f"A query to Postgres failed: {explain(error)}", "Run this check again."))
    except KafkaError as error:
        found.append(fail(place, f"A request to Kafka failed: {error}", "Run this check again."))
    return found


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most serious level among the findings, or OK if there are none."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)
