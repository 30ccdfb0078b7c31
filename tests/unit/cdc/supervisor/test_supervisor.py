"""The supervisor's decisions without processes: what it starts, when, and what it leaves stopped."""

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
from tests.harness.pipeline.supervised_part import Bench, ScriptedProcess


def _started(bench: Bench, **settings: Any) -> PipelinePart:
    part = PipelinePart("capture", ["capture"], **bench.settings(), **settings)
    part.poll()
    return part


def test_pauses_double_up_to_a_limit_and_reset_after_a_long_run() -> None:
    """Pauses are 0.5 s, 1 s, 2 s … 30 s; a part that ran long is restarted at once."""
    backoff = Backoff()
    pauses = [backoff.after(1.0) for _ in range(9)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_SECONDS
    assert backoff.after(LONG_LIFE_SECONDS) == 0.5


@pytest.mark.parametrize("code", [-signal.SIGKILL, 1, 0])
def test_what_dies_is_started_again_after_its_pause(code: int) -> None:
    """A part that ended for any reason is started once, after the pause."""
    bench = Bench()
    part = _started(bench)
    bench.end(part, code)
    part.poll()
    assert (len(bench.processes), part.state().condition) == (1, ProcessCondition.WAITING)
    bench.now += 0.6
    part.poll()
    part.poll()
    assert (len(bench.processes), part.state().condition, part.restarts) == (2, ProcessCondition.RUNNING, 1)


def test_maintenance_is_due_every_interval_and_is_retried_after_a_failure() -> None:
    """Maintenance does not run at the start, runs after each interval, and is retried with a pause when killed."""
    bench = Bench()
    settings = bench.settings()
    del settings["is_due"]
    part = MaintenancePart("warehouse", 24, ["maintain"], **settings)
    part.poll()
    assert (len(bench.processes), part.state().condition) == (0, ProcessCondition.IDLE)
    bench.now = 24 * 3600
    part.poll()
    bench.end(part, -signal.SIGKILL)
    bench.now += 60
    part.poll()
    assert (len(bench.processes), part.state().condition) == (1, ProcessCondition.WAITING)
    bench.now += 900
    part.poll()
    assert len(bench.processes) == 2
    bench.end(part, 0)
    bench.now += 23 * 3600
    part.poll()
    assert (len(bench.processes), part.state().condition) == (2, ProcessCondition.IDLE)
    bench.now += 3600
    part.poll()
    assert len(bench.processes) == 3


@pytest.mark.parametrize("code", [2, 3])
def test_what_refused_stays_down_until_a_person_says_otherwise(code: int) -> None:
    """After exit code 2 or 3 a part stays down with its reason until its refusal is cleared."""
    bench = Bench()
    part = _started(bench)
    bench.end(part, code)
    bench.now += 10_000
    part.poll()
    state = part.state()
    assert len(bench.processes) == 1
    assert (state.condition, state.note, state.remedy) == (ProcessCondition.REFUSED, "its reason", "its remedy")
    part.clear_refusal()
    part.poll()
    assert part.state().condition is ProcessCondition.RUNNING


def test_a_part_that_cannot_be_started_is_tried_again() -> None:
    """The supervisor continues and retries when a process cannot be started, as without memory."""
    bench = Bench()

    def start(arguments: Sequence[str], take_line: TakeLine) -> ScriptedProcess:
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
    """While stopping, no part that ends or waits is started again."""
    bench = Bench()
    part = _started(bench)
    part.terminate()
    bench.end(part, -signal.SIGTERM)
    bench.now += 10_000
    part.poll()
    assert (bench.processes[0].signals, len(bench.processes)) == (["terminate"], 1)
    assert part.state().condition is ProcessCondition.STOPPED


def test_an_occasional_part_runs_when_it_is_due_and_rests_when_it_is_done() -> None:
    """An occasional part starts when due, rests after exit code 0, and is retried after exit code 1."""
    bench = Bench()
    ended: list[bool] = []
    bench.due = False
    part = _started(bench, ends_by_itself=True, when_ended=lambda: ended.append(True))
    assert (bench.processes, part.state().condition) == ([], ProcessCondition.IDLE)
    bench.due = True
    part.poll()
    bench.end(part, 1)
    assert part.state().condition is ProcessCondition.WAITING
    bench.now += 0.6
    part.poll()
    bench.due = False
    bench.end(part, 0)
    assert (part.state().condition, len(ended)) == (ProcessCondition.IDLE, 2)


def test_errors_that_a_part_retries_are_shown_while_they_last() -> None:
    """A part's `retrying` lines are shown by store until it recovers, and every line is passed on."""
    bench = Bench()
    part = _started(bench)
    bench.processes[0].say(json.dumps({"event": "retrying", "store": "search", "reason": "no answer"}))
    bench.processes[0].say("spark 12:00:00 WARN something")
    assert part.state().note == "search: no answer"
    bench.processes[0].say(json.dumps({"event": "syncing", "store": "search"}))
    assert (part.state().note, len(bench.lines)) == ("", 3)


def test_a_store_that_refused_is_left_out_of_the_next_process() -> None:
    """The next sync process has the other store alone; when the last store refuses, so does the part."""
    bench = Bench()
    part = SyncPart(["search", "cache"], ["sync"], **bench.settings())
    part.poll()
    refused = {"event": "refused", "reason": "topic gone", "remedy": "bootstrap"}
    bench.processes[0].say(json.dumps({**refused, "store": "search"}))
    assert part.state().condition is ProcessCondition.RUNNING
    bench.end(part, 3)
    bench.now += 0.6
    part.poll()
    assert bench.processes[1].arguments == ["sync", "cache"]
    bench.processes[1].say(json.dumps({**refused, "store": "cache"}))
    bench.end(part, 3)
    state = part.state()
    assert (state.condition, state.note) == (ProcessCondition.REFUSED, "search: topic gone; cache: topic gone")
    part.clear_refusal()
    part.poll()
    assert bench.processes[2].arguments == ["sync", "search", "cache"]


def test_forgiving_one_store_restarts_the_driver_with_all() -> None:
    """When a store's refusal is cleared, the sync is ended and started with all stores."""
    bench = Bench()
    part = SyncPart(["search", "cache"], ["sync"], **bench.settings())
    part.poll()
    bench.processes[0].say(json.dumps({"event": "refused", "store": "search", "reason": "r"}))
    part.clear_refusal()
    assert bench.processes[0].signals == ["terminate"]
    bench.end(part, 3)  # it had a store that refused
    bench.now += 0.6
    part.poll()
    assert bench.processes[1].arguments == ["sync", "search", "cache"]


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
def test_a_snapshot_is_due_when_capture_waits_or_a_table_is_incomplete(status: Any, due: SnapshotsDue) -> None:
    """Before capture's first start no snapshot is due; afterwards capture's record decides."""
    assert snapshots_due(status) == due


def test_rows_that_are_not_wanted_are_not_due() -> None:
    """With `[snapshot] initial = false` tables stay incomplete until a snapshot is requested."""
    status = {"state": "streaming", "tables": [{**_INCOMPLETE, "by_choice": True}]}
    assert not snapshots_due(status, first=False)
    assert snapshots_due(status, first=True)


def test_a_stale_reading_starts_no_second_snapshot() -> None:
    """A reading that began before a snapshot ended is ignored; without Kafka the last reading counts."""
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
    """A JSON line gets the part's name, another line becomes JSON, and secrets are masked."""
    lines = OnStderr()
    lines.write("sync", '{"event": "batch_applied", "rows": 3}')
    lines.write("sync", "spark WARN jdbc password=hunter2")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {"part": "sync", "event": "batch_applied", "rows": 3}
    assert (second["part"], second["event"], "hunter2" in second["line"]) == ("sync", "output", False)


def test_log_files_do_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part's log file is rotated when full, and the one before is deleted."""
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
