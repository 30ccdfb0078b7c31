"""The supervisor's decisions, without processes: what is started, when, and what never again."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc.backoff import LONG_LIFE_SECONDS, LONGEST_SECONDS, Backoff
from cdc.config import parse_config
from cdc.errors import TransientError
from cdc.supervisor.child import TakeLine
from cdc.supervisor.child_output import InFiles, OnStderr
from cdc.supervisor.parts.maintenance import MaintenancePart
from cdc.supervisor.parts.part import PipelinePart, ProcessCondition
from cdc.supervisor.parts.snapshots_due import SnapshotsDue, SnapshotWatch, snapshots_due
from cdc.supervisor.parts.sync import SyncPart
from tests.harness.pipeline.supervised_part import Bench, Life


def _started(bench: Bench, **settings: Any) -> PipelinePart:
    part = PipelinePart("capture", ["capture"], **bench.settings(), **settings)
    part.poll()
    return part


def test_pauses_double_up_to_a_limit_and_begin_again_after_a_long_life() -> None:
    """0.5 s, 1 s, 2 s … 30 s; whoever lived long is started again at once."""
    backoff = Backoff()
    pauses = [backoff.after(1.0) for _ in range(9)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_SECONDS
    assert backoff.after(LONG_LIFE_SECONDS) == 0.5


@pytest.mark.parametrize("code", [-signal.SIGKILL, 1, 0])
def test_what_dies_is_started_again_after_its_pause(code: int) -> None:
    """Killed, failed or ended for no reason: not before the pause is over, and then once."""
    bench = Bench()
    part = _started(bench)
    bench.end(part, code)
    part.poll()
    assert (len(bench.lives), part.state().condition) == (1, ProcessCondition.WAITING)
    bench.now += 0.6
    part.poll()
    part.poll()
    assert (len(bench.lives), part.state().condition, part.restarts) == (2, ProcessCondition.RUNNING, 1)


def test_upkeep_comes_due_every_so_often_and_a_death_does_not_use_up_its_turn() -> None:
    """Not at the start; again after as many hours; killed, it is tried again after a pause, and not in a loop."""
    bench = Bench()
    settings = bench.settings()
    del settings["is_due"]
    part = MaintenancePart("warehouse", 24, ["maintain"], **settings)
    part.poll()
    assert (len(bench.lives), part.state().condition) == (0, ProcessCondition.IDLE)
    bench.now = 24 * 3600
    part.poll()
    bench.end(part, -signal.SIGKILL)
    bench.now += 60
    part.poll()
    assert (len(bench.lives), part.state().condition) == (1, ProcessCondition.WAITING)
    bench.now += 900
    part.poll()
    assert len(bench.lives) == 2
    bench.end(part, 0)
    bench.now += 23 * 3600
    part.poll()
    assert (len(bench.lives), part.state().condition) == (2, ProcessCondition.IDLE)
    bench.now += 3600
    part.poll()
    assert len(bench.lives) == 3


@pytest.mark.parametrize("code", [2, 3])
def test_what_refused_stays_down_until_a_person_says_otherwise(code: int) -> None:
    """Exit codes 2 and 3: never started again by itself, shown with its reason; forgiven, it gets another try."""
    bench = Bench()
    part = _started(bench)
    bench.end(part, code)
    bench.now += 10_000
    part.poll()
    state = part.state()
    assert len(bench.lives) == 1
    assert (state.condition, state.note, state.remedy) == (ProcessCondition.REFUSED, "its reason", "its remedy")
    part.clear_refusal()
    part.poll()
    assert part.state().condition is ProcessCondition.RUNNING


def test_a_part_that_cannot_be_started_is_tried_again() -> None:
    """A machine without memory for another process: the supervisor itself goes on."""
    bench = Bench()

    def start(arguments: Sequence[str], take_line: TakeLine) -> Life:
        if bench.now == 0.0:
            raise OSError(12, "Cannot allocate memory")
        return bench.start(arguments, take_line)

    part = PipelinePart("capture", ["capture"], **{**bench.settings(), "start": start})
    part.poll()
    state = part.state()
    assert (state.condition, "Cannot allocate memory" in state.note) == (ProcessCondition.WAITING, True)
    bench.now += 0.6
    part.poll()
    assert part.state().condition is ProcessCondition.RUNNING


def test_nothing_is_started_while_stopping() -> None:
    """A part that dies of the signal, or that was waiting to be started again, stays down."""
    bench = Bench()
    part = _started(bench)
    part.terminate()
    bench.end(part, -signal.SIGTERM)
    bench.now += 10_000
    part.poll()
    assert (bench.lives[0].signals, len(bench.lives)) == (["terminate"], 1)
    assert part.state().condition is ProcessCondition.STOPPED


def test_an_occasional_part_runs_when_it_is_due_and_rests_when_it_is_done() -> None:
    """Not due: no process. Exit code 0: done. Exit code 1: not done, so it is tried again."""
    bench = Bench()
    ended: list[bool] = []
    bench.due = False
    part = _started(bench, ends_by_itself=True, when_ended=lambda: ended.append(True))
    assert (bench.lives, part.state().condition) == ([], ProcessCondition.IDLE)
    bench.due = True
    part.poll()
    bench.end(part, 1)
    assert part.state().condition is ProcessCondition.WAITING
    bench.now += 0.6
    part.poll()
    bench.due = False
    bench.end(part, 0)
    assert (part.state().condition, len(ended)) == (ProcessCondition.IDLE, 2)


def test_trouble_that_a_part_mends_itself_is_shown_while_it_lasts() -> None:
    """Its own `retrying` lines, by store, until it says that it is well again; every line is passed on."""
    bench = Bench()
    part = _started(bench)
    bench.lives[0].say(json.dumps({"event": "retrying", "store": "search", "reason": "no answer"}))
    bench.lives[0].say("spark 12:00:00 WARN something")
    assert part.state().note == "search: no answer"
    bench.lives[0].say(json.dumps({"event": "syncing", "store": "search"}))
    assert (part.state().note, len(bench.lines)) == ("", 3)


def test_a_store_that_refused_is_left_out_of_the_next_life() -> None:
    """The driver dies: it comes back with the other store alone. When the last one refuses, so has the part."""
    bench = Bench()
    part = SyncPart(["search", "cache"], ["sync"], **bench.settings())
    part.poll()
    refused = {"event": "refused", "reason": "topic gone", "remedy": "bootstrap"}
    bench.lives[0].say(json.dumps({**refused, "store": "search"}))
    assert part.state().condition is ProcessCondition.RUNNING
    bench.end(part, 3)
    bench.now += 0.6
    part.poll()
    assert bench.lives[1].arguments == ["sync", "cache"]
    bench.lives[1].say(json.dumps({**refused, "store": "cache"}))
    bench.end(part, 3)
    state = part.state()
    assert (state.condition, state.note) == (ProcessCondition.REFUSED, "search: topic gone; cache: topic gone")
    part.clear_refusal()
    part.poll()
    assert bench.lives[2].arguments == ["sync", "search", "cache"]


def test_forgiving_one_store_restarts_the_driver_with_all() -> None:
    """A driver that serves the others is asked to end, and begins again with everyone."""
    bench = Bench()
    part = SyncPart(["search", "cache"], ["sync"], **bench.settings())
    part.poll()
    bench.lives[0].say(json.dumps({"event": "refused", "store": "search", "reason": "r"}))
    part.clear_refusal()
    assert bench.lives[0].signals == ["terminate"]
    bench.end(part, 3)  # it had a store that refused
    bench.now += 0.6
    part.poll()
    assert bench.lives[1].arguments == ["sync", "search", "cache"]


_INCOMPLETE = {"table": "public.t", "complete": False, "reason": "rewritten"}


@pytest.mark.parametrize(
    ("status", "due"),
    [
        (None, SnapshotsDue()),
        ({"state": "creating", "tables": []}, SnapshotsDue()),
        ({"state": "copying", "tables": []}, SnapshotsDue(first=True)),
        ({"state": "streaming", "tables": [{"table": "public.t", "complete": True}]}, SnapshotsDue()),
        ({"state": "streaming", "tables": [_INCOMPLETE]}, SnapshotsDue(tables=(("public.t", "rewritten"),))),
    ],
)
def test_a_copy_is_due_when_capture_waits_or_a_table_is_incomplete(status: Any, due: SnapshotsDue) -> None:
    """Before capture has begun there is nothing to copy; after that its own record decides."""
    assert snapshots_due(status) == due


def test_rows_that_are_not_wanted_are_not_due() -> None:
    """`[snapshot] first = false`: incomplete until a person copies them, or wants a first copy after all."""
    status = {"state": "streaming", "tables": [{**_INCOMPLETE, "by_choice": True}]}
    assert not snapshots_due(status, first=False)
    assert snapshots_due(status, first=True)


def test_what_was_read_before_a_copy_ended_starts_no_other() -> None:
    """A slow answer that arrives after the end is old; while Kafka is away, what was known stands."""
    config = parse_config(
        '[source]\ndsn = "postgresql:///x"\n[kafka]\nbootstrap = "k:1"\nprefix = "p"\n',
        file=Path("tailrace.toml"),
        environment={},
    )
    answers: list[Any] = [{"state": "copying"}, "away", "slow", {"state": "copying"}]

    def read(_: object) -> Any:
        answer = answers.pop(0)
        if answer == "away":
            raise TransientError("no broker")
        if answer == "slow":
            watch.forget()
            return {"state": "copying"}
        return answer

    watch = SnapshotWatch(config, read)
    seen = []
    for _ in range(4):
        watch.poll()
        seen.append(bool(watch.due))
    assert seen == [True, True, False, True]


def test_lines_stay_json_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """A structured line gets the part's name; another becomes one, with what looks like a secret masked."""
    lines = OnStderr()
    lines.write("sync", '{"event": "batch_applied", "rows": 3}')
    lines.write("sync", "spark WARN jdbc password=hunter2")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {"part": "sync", "event": "batch_applied", "rows": 3}
    assert (second["part"], second["event"], "hunter2" in second["line"]) == ("sync", "output", False)


def test_log_files_do_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file per part; when it is full, it is put aside and the one before goes."""
    monkeypatch.setattr("cdc.supervisor.child_output._FILE_BYTES", 100)
    lines = InFiles(tmp_path / "logs")
    for number in range(40):
        lines.write("capture", json.dumps({"number": number}))
    lines.close()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["capture.log", "capture.log.1"]
    kept = [
        json.loads(line)["number"]
        for name in ("capture.log.1", "capture.log")
        for line in (tmp_path / "logs" / name).read_text().splitlines()
    ]
    assert kept == list(range(kept[0], 40))
