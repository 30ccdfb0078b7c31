"""Of two captures on one slot one streams and the other waits; they change roles without losing or duplicating a
row.
"""

from __future__ import annotations

from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually


def _standby(pipeline: Pipeline) -> Process:
    """A second capture that has logged that it waits."""
    process = pipeline.launch()
    process.wait_for_line('"standby"')
    return process


def test_second_capture_waits_and_takes_over_when_the_first_is_killed(make_pipeline: MakePipeline) -> None:
    """A standby publishes nothing while the first capture runs, and takes over under load when it is killed."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    first = pipeline.start()
    with Writer(pipeline.database) as writer:
        second = _standby(pipeline)
        writer.wait_for_more()
        pipeline.fence(while_running=first)
        assert pipeline.sessions(second) == 0
        assert pipeline.sessions(first) == 1, first.transcript()  # the standby has not disturbed it
        first.kill()
        pipeline.wait_for_session(second, 1)
        writer.wait_for_more()
    pipeline.assert_same("items", while_running=second)


def test_standby_takes_over_when_the_first_is_stopped_in_good_order(make_pipeline: MakePipeline) -> None:
    """SIGTERM to the first is a handover; SIGTERM to a standby that still waits ends it at once."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    first = pipeline.start()
    second = _standby(pipeline)
    third = _standby(pipeline)
    third.terminate()
    third.expect_exit(0)
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'a')")
    first.terminate()
    first.expect_exit(0)
    pipeline.wait_for_session(second, 1)
    pipeline.database.execute("UPDATE items SET note = 'b'")
    records = pipeline.assert_same("items", while_running=second)
    assert len(records["items"]) == 2


def test_frozen_capture_that_wakes_up_is_fenced(make_pipeline: MakePipeline) -> None:
    """A capture that was frozen with an open Kafka transaction and replaced cannot publish when it resumes."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    # How soon the server gives up a reader that has gone silent, and with it the slot.
    pipeline.database.execute(f"ALTER DATABASE {pipeline.database.name} SET wal_sender_timeout = '2s'")
    first = pipeline.start()
    second = _standby(pipeline)
    pipeline.database.execute("INSERT INTO items SELECT n, 0, 'x' FROM generate_series(1001, 30000) AS n")
    first.wait_for(lambda: pipeline.end_offsets("items") > 0, what="rows on their way")
    first.freeze()
    pipeline.wait_for_session(second, 1)
    with Writer(pipeline.database) as writer:
        writer.wait_for_more()
        pipeline.fence(while_running=second)
        published = pipeline.rows_published("items")
        assert published >= 29_000
        first.thaw()
        first.wait_for_line('"standby"')
        writer.wait_for_more()
        pipeline.fence(while_running=second)
        assert pipeline.sessions(second) == 1, second.transcript()  # the one that woke up has not disturbed it
        second.kill()
        pipeline.wait_for_session(first, 2)
        writer.wait_for_more()
    pipeline.assert_same("items", while_running=first)


def test_two_first_starts_at_once(make_pipeline: MakePipeline) -> None:
    """Of two first starts at once, before a slot exists to lock, one becomes the leader and one the standby."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    both = [pipeline.launch(), pipeline.launch()]
    eventually(lambda: sorted(_states(each) for each in both) == ["standby", "streaming"], 60, "one of each")
    leader = next(each for each in both if _states(each) == "streaming")
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'a')")
    pipeline.assert_same("items", while_running=leader)
    assert all(each.running for each in both), "\n".join(each.transcript() for each in both)
    assert "".join(each.errors for each in both).count('"slot_created"') == 1


def _states(process: Process) -> str:
    """The last of the two events that the process logged."""
    found = [(process.errors.rfind(f'"{event}"'), event) for event in ("standby", "streaming")]
    position, event = max(found)
    return event if position >= 0 else "starting"
