"""Parts that refused are started again only once the cause is gone."""

from __future__ import annotations

from cdc.supervisor.refusal_watch import RefusalWatch


class _Known:
    def __init__(self) -> None:
        self.recoveries: int | None = None
        self.noted: set[str] = set()

    def repairs(self) -> RefusalWatch:
        return RefusalWatch(lambda: self.recoveries, lambda name: name in self.noted)


def test_a_recovery_is_noticed_once() -> None:
    """A recovery, counted in the progress record, is noticed once on any host."""
    known = _Known()
    repairs = known.repairs()
    assert not repairs.poll(is_capture_refused=False, refused_stores=())
    known.recoveries = 3
    assert not repairs.poll(is_capture_refused=True, refused_stores=())
    known.recoveries = None
    assert not repairs.poll(is_capture_refused=True, refused_stores=())
    known.recoveries = 4
    assert repairs.poll(is_capture_refused=True, refused_stores=())
    assert not repairs.poll(is_capture_refused=True, refused_stores=())


def test_a_recovery_of_a_pipeline_that_runs_is_no_news() -> None:
    """A recovery restarts only parts that refused."""
    known = _Known()
    repairs = known.repairs()
    for known.recoveries in (0, 1):
        assert not repairs.poll(is_capture_refused=False, refused_stores=())
    assert not repairs.poll(is_capture_refused=True, refused_stores=())


def test_a_store_whose_refusal_is_over_is_tried_again() -> None:
    """A store is started again when its refusal note ends, and not while the notes are unread."""
    known = _Known()
    repairs = known.repairs()
    assert not repairs.poll(is_capture_refused=False, refused_stores=["cache"])
    known.noted = {"cache"}
    assert not repairs.poll(is_capture_refused=False, refused_stores=["cache"])
    known.noted = set()
    assert repairs.poll(is_capture_refused=False, refused_stores=["cache"])
    assert not repairs.poll(is_capture_refused=False, refused_stores=["cache"])
