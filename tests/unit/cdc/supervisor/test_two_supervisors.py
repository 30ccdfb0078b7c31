"""Two `tailrace run` of one config: which of them syncs the stores, decided without processes."""

from __future__ import annotations

import pytest

from cdc.supervisor.parts.capture import CapturePart
from cdc.supervisor.parts.part import ProcessCondition
from cdc.supervisor.parts.sync import SyncPart
from tests.harness.pipeline.supervised_part import Bench


@pytest.mark.parametrize("word", ["streaming", "waiting_for_initial_snapshot", "retrying"])
def test_the_stores_are_synced_once_capture_is_not_a_standby(word: str) -> None:
    """Stores are synced once capture is not a standby, also while the source does not answer."""
    bench = Bench()
    capture = CapturePart(["capture"], **bench.settings())
    capture.poll()
    assert not capture.may_lead()
    bench.said(capture, word)
    assert (capture.may_lead(), capture.leads()) == (True, word != "retrying")


def test_a_standby_stays_one_until_it_leads() -> None:
    """Errors while it is a standby change nothing, and end when it is a standby again."""
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
    """Stores are synced while capture is down or has refused, although another pipeline may have the slot."""
    bench = Bench()
    capture = CapturePart(["capture"], **bench.settings())
    capture.poll()
    if led:
        bench.said(capture, "streaming")
    bench.end(capture, 3)
    assert (capture.may_lead(), capture.leads()) == (True, False)


class _Lead:
    """A capture's role, as the test sets it."""

    may = True
    sure = True


def _sync(bench: Bench, lead: _Lead, *stores: str) -> SyncPart:
    part = SyncPart(stores, ["sync"], leads=lambda: lead.sure, may_run=lambda: lead.may, **bench.settings())
    part.poll()
    return part


def test_a_sync_ends_when_another_pipeline_leads_and_begins_when_this_one_does() -> None:
    """A sync ends when another run leads and starts when this one does, without a refusal or a restart count."""
    bench, lead = Bench(), _Lead()
    part = _sync(bench, lead, "cache")
    lead.may = lead.sure = False
    part.poll()
    part.poll()
    assert bench.processes[0].signals == ["terminate"]
    bench.end(part, 3)
    bench.now += 100
    part.poll()
    assert (len(bench.processes), part.state().condition, part.restarts) == (1, ProcessCondition.IDLE, 0)
    lead.may = True
    part.poll()
    assert (len(bench.processes), part.state().condition) == (2, ProcessCondition.RUNNING)


def test_a_store_that_another_sync_has_taken_is_taken_back_once_this_pipeline_leads() -> None:
    """A store is taken back only when this run leads or an operator asks; other refusals stay."""
    bench, lead = Bench(), _Lead()
    lead.sure = False
    part = _sync(bench, lead, "search", "cache")
    bench.said(part, "refused", store="search", reason="topic gone", taken_over=False)
    bench.said(part, "refused", store="cache", reason="taken over", taken_over=True)
    bench.end(part, 3)
    bench.now += 1000
    part.poll()
    state = part.state()
    assert (len(bench.processes), state.condition, state.note) == (
        1,
        ProcessCondition.IDLE,
        "another sync has taken cache",
    )
    lead.sure = True
    part.poll()
    assert [process.arguments for process in bench.processes[1:]] == [["sync", "cache"]]
    lead.sure = False
    bench.said(part, "refused", store="cache", reason="taken over", taken_over=True)
    bench.end(part, 3)
    part.clear_refusal()
    bench.now += 1000
    part.poll()
    assert [process.arguments for process in bench.processes[2:]] == [["sync", "search", "cache"]]


def test_who_leads_takes_a_store_back_at_growing_intervals() -> None:
    """Repeated takeovers make the intervals grow, so that Spark is not restarted without end."""
    bench, lead = Bench(), _Lead()
    part = _sync(bench, lead, "search", "cache")
    for pause_seconds in (0.5, 1.0, 2.0):
        bench.said(part, "refused", store="cache", reason="taken over", taken_over=True)
        assert bench.processes[-1].signals == ["terminate"]
        processes = len(bench.processes)
        bench.end(part, 3)
        bench.now += pause_seconds - 0.1
        part.poll()
        assert len(bench.processes) == processes
        bench.now += 0.2
        part.poll()
        assert [process.arguments for process in bench.processes[processes:]] == [["sync", "search", "cache"]]
