"""Decisions of a recovery without a server: the base, the action for each topic, and changed settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config import Config, parse_config
from cdc.kafka.topics import Topic
from cdc.lsn import LSN, Version
from cdc.positions.progress import Progress
from cdc.publishing.published_versions import base_above
from cdc.recovery.topic_actions import DamagedTopic, TopicAction, action_for
from cdc.snapshot.requests import SnapshotRequests
from cdc.supervisor.parts.snapshots_due import snapshots_due
from cdc.tables.event_settings import apply_changed_settings, record_settings
from cdc.tables.recorded_state import TableState, TableStates

_POSITIONS = st.integers(0, 1 << 50)


@given(_POSITIONS, st.integers(0, 1 << 20), _POSITIONS, _POSITIONS)
def test_what_comes_after_a_recovery_is_above_everything_before(highest: int, seq: int, point: int, base: int) -> None:
    """Versions after a recovery are above all earlier ones for any new LSN; a sufficient base is kept."""
    base -= base % 8
    new = base_above(Version(highest, seq), LSN(point), base)
    assert Version(new + point, 0) > Version(highest, seq)
    assert new % 8 == 0
    assert (new == base) is (base + point > highest)


def _facts(*, topic_id: str = "id", ends: list[int] | None = None, **more: Any) -> DamagedTopic:
    ends = [5, 5] if ends is None else ends
    settings = {"starts": [0] * len(ends), "policy": "compact", **more}
    return DamagedTopic(topic=Topic(topic_id, len(ends)), ends=ends, **settings)


def _progress(**topics: list[int]) -> Progress:
    return Progress(
        state="streaming",
        position=8,
        seq=0,
        base=0,
        confirm_lsn=8,
        system_identifier="1",
        timeline=1,
        publication="1/1",
        publication_tables={},
        topic_ids=dict.fromkeys(topics, "id"),
        end_offsets=topics,
    )


@pytest.mark.parametrize(
    ("facts", "care"),
    [
        pytest.param(None, TopicAction.MAKE, id="gone"),
        pytest.param(_facts(), TopicAction.KEEP, id="well"),
        pytest.param(_facts(ends=[9, 5]), TopicAction.KEEP, id="grown"),
        pytest.param(_facts(topic_id="other", ends=[0, 0]), TopicAction.KEEP, id="made again in the right shape"),
        pytest.param(_facts(ends=[4, 5]), TopicAction.REMAKE, id="records lost at the end"),
        pytest.param(_facts(starts=[1, 0]), TopicAction.REMAKE, id="records lost at the beginning"),
        pytest.param(_facts(ends=[5, 5, 0]), TopicAction.REMAKE, id="more partitions"),
    ],
)
def test_what_is_done_to_a_topic(facts: DamagedTopic | None, care: TopicAction) -> None:
    """A topic is kept while its offsets are valid, and created again otherwise."""
    found = {} if facts is None else {"t": facts}
    assert action_for(_progress(t=[5, 5]), ["t"], found, 2).cares == {"t": care}


def test_a_policy_is_set_back_and_other_topics_are_guarded_on_if_they_are_well() -> None:
    """A changed policy is restored, and a removed table's topic stays in the record only if it is unchanged."""
    found = {"t": _facts(policy="delete"), "left": _facts(), "broken": _facts(policy="delete")}
    cares = action_for(_progress(t=[5, 5], left=[5, 5], broken=[5, 5], gone=[5, 5]), ["t"], found, 2)
    assert cares.policies == ("t",)
    assert cares.left == ("left",)


def _config(more: str = "") -> Config:
    text = f'[source]\ndsn = "postgresql://h/d"\n[kafka]\nbootstrap = "h:1"\nprefix = "p"\n{more}'
    return parse_config(text, file=Path("tailrace.toml"), environment={})


def test_settings_of_a_table_that_change_make_it_incomplete() -> None:
    """A changed mask, column list or used salt makes the table incomplete; other settings do not."""
    state = TableState(schema="public", table="t", topic="p.public.t", key=["id"], storage="1", columns=[])
    states = TableStates(tables={"1": state})
    variants = [
        "",
        '[mask]\n"public.t.v" = "hash"\n',
        '[mask]\n"public.t.v" = "null"\n',
        '[columns]\n"public.t" = ["id"]\n',
        '[capture]\nmask_salt = "s"\n[mask]\n"public.t.v" = "hash"\n',
    ]
    for before in variants:
        known = record_settings(_config(before), states)
        for now in variants:
            followed = apply_changed_settings(_config(now), known, 8)
            assert ("p.public.t" in followed.pending) is (before != now)
            assert apply_changed_settings(_config(now), followed, 9) == followed
    assert not apply_changed_settings(
        _config(variants[1]), states, 8
    ).pending  # an older record knows nothing: taken as it is
    elsewhere = '[capture]\nmask_salt = "s"\n[mask]\n"public.other.v" = "hash"\n'
    assert not apply_changed_settings(_config(elsewhere), record_settings(_config(), states), 8).pending


def test_paused_and_cancelled_snapshots_are_not_started() -> None:
    """`run` starts no paused or cancelled snapshot, and one that is requested again."""
    table = {"table": "public.t", "complete": False, "reason": "altered", "since": "0/8"}
    status = {"state": "streaming", "snapshots_paused": False, "tables": [table]}
    assert snapshots_due(status)
    assert not snapshots_due({**status, "snapshots_paused": True})
    assert not snapshots_due({**status, "tables": [{**table, "cancelled": True}]})
    assert not snapshots_due({**status, "state": "recovering"})
    asked = SnapshotRequests().pausing(True).cancelling(["a", "b"]).wanting(["a"])
    assert (asked.paused, list(asked.cancelled)) == (True, ["b"])
