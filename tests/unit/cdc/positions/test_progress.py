"""The progress record: what it preserves over a restart, how it advances, and which records are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc.errors import RefusedError
from cdc.lsn import LSN, Version
from cdc.positions.progress import FORMAT, LastCommit, Progress, decode_progress
from tests.harness.docs.events_page import example


@pytest.fixture
def progress() -> Progress:
    return Progress(
        state="streaming",
        position=0x5000,
        seq=7,
        base=0,
        confirm_lsn=0x5030,
        commit_time_us=1_790_000_000_000_000,
        system_identifier="7551234567890123456",
        timeline=1,
        publication="16500/901",
        publication_tables={"16384": "16501/901"},
        topic_ids={"shop.public.orders": "AAAA"},
        end_offsets={"shop.public.orders": [10, 0, 3, 4]},
        schemas={"shop.public.orders": "c0ffee"},
    )


def _with(progress: Progress, **changes: Any) -> bytes:
    return json.dumps({**json.loads(progress.encode()), **changes}).encode()


def test_a_record_survives_the_topic(progress: Progress) -> None:
    """A record read back equals the one written, in every field."""
    assert decode_progress(progress.encode()) == progress


def test_the_record_is_plain_json_with_its_format(progress: Progress) -> None:
    """The record is readable JSON with a format number for later versions."""
    record = json.loads(progress.encode())
    assert record["format"] == FORMAT
    assert (record["position"], record["seq"]) == (0x5000, 7)
    assert record["end_offsets"] == {"shop.public.orders": [10, 0, 3, 4]}


def test_the_documented_record_is_a_record(progress: Progress) -> None:
    """The record in docs/reference/events.md has exactly the fields of a real one."""
    documented = example("`<prefix>.__progress`")
    assert list(documented) == list(json.loads(progress.encode()))
    assert decode_progress(json.dumps(documented).encode()).confirmable == LSN(33715840)


def test_a_newer_format_is_refused(progress: Progress) -> None:
    """A record of a newer format is refused, since its meaning may have changed."""
    with pytest.raises(RefusedError, match=f"format {FORMAT + 1}") as refusal:
        decode_progress(_with(progress, format=FORMAT + 1))
    assert refusal.value.exit_code == 3
    assert refusal.value.remedy


def test_a_newer_format_is_refused_before_its_fields_are_read() -> None:
    """The reason is the format, also if other fields have changed."""
    with pytest.raises(RefusedError, match="format 99"):
        decode_progress(b'{"format": 99, "position": "no longer a number"}')


def test_an_unknown_field_is_ignored(progress: Progress) -> None:
    """An unknown field is ignored, since fields may be added without a new format."""
    assert decode_progress(_with(progress, note="added later")) == progress


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"[]", id="not an object"),
        pytest.param(b"{}", id="no format"),
        pytest.param(b'{"format": 1}', id="fields missing"),
        pytest.param(b'{"format": "1"}', id="format is text"),
        pytest.param(b"\xff\xfe", id="not text"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(data: bytes) -> None:
    """An unreadable record is refused, since a guess would lose or duplicate changes."""
    with pytest.raises(RefusedError) as refusal:
        decode_progress(data)
    assert refusal.value.remedy


@pytest.mark.parametrize("field", ["position", "seq", "base", "confirm_lsn", "timeline"])
def test_a_field_of_the_wrong_type_is_refused(progress: Progress, field: str) -> None:
    """Each number that recovery depends on is checked for its type."""
    with pytest.raises(RefusedError, match="cannot be read"):
        decode_progress(_with(progress, **{field: "x"}))


def test_streaming_starts_at_the_consistent_point(progress: Progress) -> None:
    """Rows of the initial snapshot have the version (consistent point, 0), and every later commit a larger one."""
    raised = decode_progress(_with(progress, state="creating", base=0x8000, position=0, seq=0, confirm_lsn=0))
    started = raised.streaming_from(LSN(0x6000))
    assert started.state == "streaming"
    assert started.version == Version(0x8000 + 0x6000, 0)
    assert started.confirmable == LSN(0x6000)


def test_advancing_moves_the_version_and_what_may_be_confirmed(progress: Progress) -> None:
    """Advancing changes the version, the confirmed LSN and the time, and nothing else."""
    moved = progress.advanced(Version(0x7000, 3), confirm_lsn=LSN(0x7030), commit=LastCommit(0x7000, 5))
    assert (moved.version, moved.confirmable, moved.commit_time_us) == (Version(0x7000, 3), LSN(0x7030), 5)
    assert moved.topic_ids == progress.topic_ids
    assert moved.written_ms > 0
    assert not moved.inside_transaction


def test_what_may_be_confirmed_never_goes_back(progress: Progress) -> None:
    """The LSN to confirm never decreases, since the slot cannot go back."""
    moved = progress.advanced(Version(0x5000, 9), confirm_lsn=LSN(0x100), inside_transaction=True)
    assert moved.confirm_lsn == progress.confirm_lsn
    assert moved.inside_transaction
    assert moved.commit_time_us == progress.commit_time_us


def test_topics_offsets_and_schemas_are_added_without_touching_the_old_record(progress: Progress) -> None:
    """Adding to a record leaves the earlier one, which another thread may have, unchanged."""
    before = progress.encode()
    moved = (
        progress.with_topic("shop.public.items", "BBBB", 2)
        .with_end_offsets({"shop.public.orders": [11, 0, 3, 5]})
        .with_schema("shop.public.items", "beef")
    )
    assert moved.topic_ids == {"shop.public.orders": "AAAA", "shop.public.items": "BBBB"}
    assert moved.end_offsets == {"shop.public.orders": [11, 0, 3, 5], "shop.public.items": [0, 0]}
    assert moved.schemas == {"shop.public.orders": "c0ffee", "shop.public.items": "beef"}
    assert progress.encode() == before
