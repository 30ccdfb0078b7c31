"""Parts that refused get another try once the cause is gone, and only then."""

from __future__ import annotations

from cdc.supervisor.refusal_watch import RefusalWatch


class _Known:
    def __init__(self) -> None:
        self.recoveries: int | None = None
        self.noted: set[str] = set()

    def repairs(self) -> RefusalWatch:
        return RefusalWatch(lambda: self.recoveries, lambda name: name in self.noted)


def test_a_recovery_is_noticed_once() -> None:
    """Counted in the progress record, so it is seen wherever it was made."""
    known = _Known()
    repairs = known.repairs()
    assert not repairs.look(is_capture_refused=False, refused_stores=())
    known.recoveries = 3
    assert not repairs.look(is_capture_refused=True, refused_stores=())
    known.recoveries = None
    assert not repairs.look(is_capture_refused=True, refused_stores=())
    known.recoveries = 4
    assert repairs.look(is_capture_refused=True, refused_stores=())
    assert not repairs.look(is_capture_refused=True, refused_stores=())


def test_a_recovery_of_a_pipeline_that_runs_is_no_news() -> None:
    """Only what refused is tried again."""
    known = _Known()
    repairs = known.repairs()
    for known.recoveries in (0, 1):
        assert not repairs.look(is_capture_refused=False, refused_stores=())
    assert not repairs.look(is_capture_refused=True, refused_stores=())


def test_a_store_whose_refusal_is_over_is_tried_again() -> None:
    """A bootstrap ends the note; a note that has not been read yet says nothing."""
    known = _Known()
    repairs = known.repairs()
    assert not repairs.look(is_capture_refused=False, refused_stores=["cache"])
    known.noted = {"cache"}
    assert not repairs.look(is_capture_refused=False, refused_stores=["cache"])
    known.noted = set()
    assert repairs.look(is_capture_refused=False, refused_stores=["cache"])
    assert not repairs.look(is_capture_refused=False, refused_stores=["cache"])
