"""Two `tailrace run` of one config: who feeds the stores, decided without processes."""

from __future__ import annotations

import pytest

from cdc.supervisor.parts.capture import CapturePart
from cdc.supervisor.parts.part import ProcessCondition
from cdc.supervisor.parts.sync import SyncPart
from tests.harness.pipeline.supervised_part import Bench


@pytest.mark.parametrize("word", ["streaming", "waiting_for_initial_snapshot", "retrying"])
def test_the_stores_are_fed_once_capture_has_said_that_it_does_not_stand_by(word: str) -> None:
    """Also where the source does not answer: what is in the topics reaches the stores all the same."""
    bench = Bench()
    capture = CapturePart(["capture"], **bench.settings())
    capture.poll()
    assert not capture.may_lead()
    bench.said(capture, word)
    assert (capture.may_lead(), capture.leads()) == (True, word != "retrying")


def test_who_stands_by_does_so_until_it_leads() -> None:
    """Interruptions while it stands by changes nothing, and is over when it stands by again."""
    bench = Bench()
    capture = CapturePart(["capture"], **bench.settings())
    capture.poll()
    bench.said(capture, "retrying", reason="no route")
    bench.said(capture, "standby")
    assert "another capture" in capture.state().note
    bench.said(capture, "retrying", reason="no route")
    assert (capture.may_lead(), capture.state().note) == (False, "no route")
    bench.said(capture, "streaming")
    assert (capture.leads(), capture.state().note) == (True, "")


@pytest.mark.parametrize("led", [True, False])
def test_a_capture_that_has_ended_holds_no_store_back_and_is_not_sure(led: bool) -> None:
    """The stores are fed while it is down or has refused; another pipeline's capture may have the slot by now."""
    bench = Bench()
    capture = CapturePart(["capture"], **bench.settings())
    capture.poll()
    if led:
        bench.said(capture, "streaming")
    bench.end(capture, 3)
    assert (capture.may_lead(), capture.leads()) == (True, False)


class _Lead:
    """What a capture says of its place, as the test likes."""

    may = True
    sure = True


def _sync(bench: Bench, lead: _Lead, *stores: str) -> SyncPart:
    part = SyncPart(stores, ["sync"], leads=lambda: lead.sure, may_run=lambda: lead.may, **bench.settings())
    part.poll()
    return part


def test_a_sync_ends_when_another_pipeline_leads_and_begins_when_this_one_does() -> None:
    """That is no refusal, and nothing is counted as a death."""
    bench, lead = Bench(), _Lead()
    part = _sync(bench, lead, "cache")
    lead.may = lead.sure = False
    part.poll()
    part.poll()
    assert bench.lives[0].signals == ["terminate"]
    bench.end(part, 3)
    bench.now += 100
    part.poll()
    assert (len(bench.lives), part.state().condition, part.restarts) == (1, ProcessCondition.IDLE, 0)
    lead.may = True
    part.poll()
    assert (len(bench.lives), part.state().condition) == (2, ProcessCondition.RUNNING)


def test_a_store_that_another_sync_has_taken_is_taken_back_once_this_pipeline_leads() -> None:
    """Not before, unless a person says so; and what was refused for another reason stays so."""
    bench, lead = Bench(), _Lead()
    lead.sure = False
    part = _sync(bench, lead, "search", "cache")
    bench.said(part, "refused", store="search", reason="topic gone", taken_over=False)
    bench.said(part, "refused", store="cache", reason="taken over", taken_over=True)
    bench.end(part, 3)
    bench.now += 1000
    part.poll()
    state = part.state()
    assert (len(bench.lives), state.condition, state.note) == (1, ProcessCondition.IDLE, "another sync has taken cache")
    lead.sure = True
    part.poll()
    assert [life.arguments for life in bench.lives[1:]] == [["sync", "cache"]]
    lead.sure = False
    bench.said(part, "refused", store="cache", reason="taken over", taken_over=True)
    bench.end(part, 3)
    part.clear_refusal()
    bench.now += 1000
    part.poll()
    assert [life.arguments for life in bench.lives[2:]] == [["sync", "search", "cache"]]


def test_who_leads_takes_a_store_back_at_growing_intervals() -> None:
    """Whoever takes it again and again does not make it start Spark without end; the other stores pause for it."""
    bench, lead = Bench(), _Lead()
    part = _sync(bench, lead, "search", "cache")
    for pause_seconds in (0.5, 1.0, 2.0):
        bench.said(part, "refused", store="cache", reason="taken over", taken_over=True)
        assert bench.lives[-1].signals == ["terminate"]
        lives = len(bench.lives)
        bench.end(part, 3)
        bench.now += pause_seconds - 0.1
        part.poll()
        assert len(bench.lives) == lives
        bench.now += 0.2
        part.poll()
        assert [life.arguments for life in bench.lives[lives:]] == [["sync", "search", "cache"]]
