"""Charts and journal survive a restart, stay small, and start empty when their file is damaged."""

from __future__ import annotations

from pathlib import Path

from cdc.monitoring.alerts.conditions import AlertCondition
from cdc.monitoring.alerts.journal import Journal
from cdc.monitoring.status_record import HealthLevel
from cdc.monitoring.web.history import History

DOWN = {
    "store cache": AlertCondition(
        where="store cache", state=HealthLevel.DOWN, reason="No answer.", remedy="Bring it back."
    )
}


def test_what_was_added_is_there_after_a_restart(tmp_path: Path) -> None:
    """Readings survive a restart; a peak of lag is kept, and a speed is averaged."""
    path = tmp_path / "deep" / "history.db"
    history = History(path)
    for second in range(600):
        history.add(
            1000.0 + second, {"topics_seconds": 9.0 if second == 300 else 1.0, "x_per_second": float(second % 2)}
        )
    history.close()
    again = History(path)
    found = again.read(1000.0, 1600.0, points=10)
    again.close()
    assert len(found["times"]) == 10
    assert max(found["figures"]["topics_seconds"]) == 9.0
    assert set(found["figures"]["x_per_second"]) == {0.5}


def test_days_are_kept_by_the_minute_and_the_file_stays_small(tmp_path: Path) -> None:
    """Two days of readings take a few hundred kilobytes."""
    path = tmp_path / "history.db"
    history = History(path)
    for minute in range(2 * 24 * 60):
        history.add(minute * 60.0, {"topics_seconds": float(minute)})
        history.add(minute * 60.0 + 30, {"topics_seconds": 0.0})
    found = history.read(0.0, 2 * 86_400.0, points=48)
    history.close()
    assert len(found["times"]) == 48
    assert found["figures"]["topics_seconds"][0] == 59.0
    assert path.stat().st_size < 1_000_000


def test_a_gap_is_a_gap(tmp_path: Path) -> None:
    """A figure that was unknown at a time has no value there."""
    history = History(tmp_path / "history.db")
    history.add(100.0, {"a": 1.0})
    history.add(200.0, {"b": 2.0})
    found = history.read(0.0, 300.0, points=3)
    history.close()
    assert found["figures"] == {"a": [1.0, None], "b": [None, 2.0]}


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    """A damaged file is set aside, and the dashboard starts."""
    path = tmp_path / "history.db"
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    history = History(path)
    history.add(1.0, {"a": 1.0})
    history.close()
    assert path.with_name("history.db.unreadable").exists()


def test_the_journal_knows_what_lasts_and_what_is_over(tmp_path: Path) -> None:
    """The journal keeps open and closed entries across a restart; a condition that returns at once is the same
    entry.
    """
    path = tmp_path / "journal.json"
    journal = Journal(path)
    journal.note(DOWN, 100.0)
    journal.note({}, 110.0)
    journal.note(DOWN, 120.0)
    assert [(each.began, each.ended) for each in journal.entries] == [(100.0, None)]
    journal.note({}, 130.0)
    again = Journal(path)
    again.note(DOWN, 1000.0)
    assert [(each["began"], each["ended"]) for each in again.as_json()] == [(1000.0, None), (100.0, 130.0)]
    assert again.as_json()[0]["remedy"] == "Bring it back."
