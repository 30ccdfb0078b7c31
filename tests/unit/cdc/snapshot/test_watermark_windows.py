"""Rows of a chunk between its watermarks: which are published, which give way, when the chunk is read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.postgres.visibility import Snapshot
from cdc.snapshot.incremental import window as windows_module
from cdc.snapshot.incremental.window import ChunkWindows

CHUNK = ("copy", 1)
TOPIC = "p.public.t"
LSN = 1000  # of LOW marks


def shows(*, below: int, in_progress: frozenset[int] = frozenset()) -> Snapshot:
    """A snapshot that shows every transaction below this one except those in progress."""
    return Snapshot(min(in_progress, default=below), below, in_progress)


def test_undisturbed_rows_hold() -> None:
    """Without a change between the watermarks every row is published."""
    windows = ChunkWindows()
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    verdict = windows.high(CHUNK, (1, ""), shows(below=100))
    assert verdict.repeat is None
    assert not verdict.overtaken


def test_newer_change_overtakes() -> None:
    """A key changed meanwhile by an invisible transaction gives way, and one changed by a visible one does not."""
    windows = ChunkWindows()
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    windows.touch(TOPIC, b"visible", 99)
    windows.touch(TOPIC, b"invisible", 100)
    windows.touch(TOPIC, b"both", 99)
    windows.touch(TOPIC, b"both", 100)
    windows.touch("p.public.other", b"elsewhere", 100)
    verdict = windows.high(CHUNK, (1, ""), shows(below=100))
    assert verdict.repeat is None
    assert verdict.overtaken == {(TOPIC, b"invisible"), (TOPIC, b"both")}


def test_commit_that_was_streamed_before_it_was_visible() -> None:
    """A chunk is read again when a published transaction was not visible to its snapshot."""
    windows = ChunkWindows()
    windows.streamed(50)
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (1, ""), shows(below=100, in_progress=frozenset({50}))).repeat is not None
    windows.low(CHUNK, (2, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (2, ""), shows(below=100)).repeat is None


def test_commit_that_an_earlier_session_has_streamed_before_it_was_visible() -> None:
    """A chunk is read again until transactions that locked its table when this session began are visible.

    Other transactions that stay open long do not delay a snapshot.
    """
    windows = ChunkWindows()
    windows.start({50, 60, (1 << 32) + 70}, LSN - 1)
    windows.streamed(70)  # so no earlier session has published it
    hidden = shows(below=100, in_progress=frozenset({50, 60}))
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (1, ""), hidden, [50, 999]).repeat is not None
    windows.low(CHUNK, (2, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (2, ""), hidden, [70, 999]).repeat is None
    windows.low(CHUNK, (3, ""), [TOPIC], LSN)
    windows.forget_visible(shows(below=100))  # a look after the chunk was read says nothing about the chunk
    assert windows.high(CHUNK, (3, ""), hidden, [50]).repeat is not None
    windows.low(CHUNK, (4, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (4, ""), shows(below=100), [50]).repeat is None


def test_chunk_that_was_begun_before_this_session() -> None:
    """A chunk from before this session is read again, since an earlier session may have published newer rows."""
    windows = ChunkWindows()
    windows.start((), LSN + 1)
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (1, ""), shows(below=100)).repeat is not None


def test_visible_transactions_are_forgotten() -> None:
    """Only transactions that may be invisible to a session are remembered."""
    windows = ChunkWindows()
    for xid in range(1, 100):
        windows.streamed(xid)
    windows.forget_visible(shows(below=100, in_progress=frozenset({7})))
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (1, ""), shows(below=100, in_progress=frozenset({6}))).repeat is None
    windows.low(CHUNK, (2, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (2, ""), shows(below=100, in_progress=frozenset({7}))).repeat is not None


def test_truncate_and_new_columns_repeat() -> None:
    """A TRUNCATE or a column change discards the rows of its table's chunks, and of no other table's."""
    windows = ChunkWindows()
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    windows.low(("copy", 2), 1, ["p.public.other"], LSN)
    windows.disturb([TOPIC], "it was truncated")
    assert windows.high(CHUNK, (1, ""), shows(below=100)).repeat == "it was truncated"
    assert windows.high(("copy", 2), 1, shows(below=100)).repeat is None


def test_capture_that_restarted_in_between() -> None:
    """A chunk without its low watermark, or with another reading's, is read again."""
    windows = ChunkWindows()
    assert windows.high(CHUNK, (1, ""), shows(below=100)).repeat is not None
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    assert windows.high(CHUNK, (2, ""), shows(below=100)).repeat is not None


def test_memory_is_bounded() -> None:
    """Too many changed keys make the chunk be read again, and chunks that never end are dropped."""
    windows = ChunkWindows()
    windows.low(CHUNK, (1, ""), [TOPIC], LSN)
    for key in range(windows_module.MOST_KEYS + 1):
        windows.touch(TOPIC, b"%d" % key, 1)
    assert windows.high(CHUNK, (1, ""), shows(below=100)).repeat is not None
    for number in range(windows_module.MOST_WINDOWS + 5):
        windows.low(("dead", number), 1, [TOPIC], LSN)
    assert windows.high(("dead", 0), 1, shows(below=100)).repeat is not None
    assert windows.high(("dead", windows_module.MOST_WINDOWS + 4), 1, shows(below=100)).repeat is None


@given(st.data())
def test_topic_never_ends_with_an_older_row(data: st.DataObject) -> None:
    """For any order of commits and visibility, the last version of a key has its newest value.

    A model: transactions write a key in commit order and become visible some time after; a chunk is read at a random
    moment. The topic is the stream with the chunk's row at the high watermark, if it is valid.
    """
    commits = data.draw(st.integers(1, 6))
    order = data.draw(st.permutations(["low", "read", "high"] + [f"c{i}" for i in range(commits)]).filter(_in_order))
    windows, streamed_value, visible = ChunkWindows(), 0, 0
    snapshot_at_read, read_value = shows(below=1), 0
    last_version_value = 0
    for step in order:
        if step == "low":
            windows.low(CHUNK, (1, ""), [TOPIC], LSN)
        elif step == "read":
            # Any prefix of the commits may be visible by now: they become visible in some order after being streamed.
            visible = data.draw(st.integers(0, streamed_value))
            snapshot_at_read, read_value = shows(below=visible + 1), visible
        elif step == "high":
            verdict = windows.high(CHUNK, (1, ""), snapshot_at_read)
            if verdict.repeat is None and (TOPIC, b"k") not in verdict.overtaken:
                last_version_value = read_value
        else:
            streamed_value += 1  # transaction n writes the value n
            windows.streamed(streamed_value)
            windows.touch(TOPIC, b"k", streamed_value)
            last_version_value = streamed_value
    assert last_version_value == streamed_value


def _in_order(steps: list[str]) -> bool:
    commits = [step for step in steps if step.startswith("c")]
    return steps.index("low") < steps.index("read") < steps.index("high") and commits == sorted(commits)


def test_chunks_are_read_again_after_the_memory_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """When more transactions are open than fit, tracking starts again and earlier chunks are read again."""
    monkeypatch.setattr(windows_module, "_TOO_MANY_STREAMED", 3)
    windows = ChunkWindows()
    for xid in range(4):
        windows.streamed(xid)
    assert windows.is_overfull
    windows.start({50}, LSN)
    assert not windows.is_overfull
    windows.low(CHUNK, (1, ""), ["t"], LSN - 1)
    assert windows.high(CHUNK, (1, ""), shows(below=100)).repeat is not None
    windows.low(CHUNK, (2, ""), ["t"], LSN + 1)
    assert windows.high(CHUNK, (2, ""), shows(below=100, in_progress=frozenset({50})), writers=[50]).repeat is not None
    windows.low(CHUNK, (3, ""), ["t"], LSN + 2)
    assert windows.high(CHUNK, (3, ""), shows(below=100)).repeat is None
