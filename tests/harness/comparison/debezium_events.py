"""Compares our events with those recorded from Debezium: every difference must have a name and a reason.

What differs at every run (LSNs, transaction ids, clocks) is checked by its shape and then replaced by its rank, so that
its *order* is compared; everything else is compared as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.golden.documented import read_examples

ABSENT: Final = "(absent)"


@dataclass(frozen=True, slots=True)
class Event:
    """A record of either side; `headers` in order, `value` None for a tombstone."""

    key: Any
    value: dict[str, Any] | None
    headers: tuple[tuple[str, str | None], ...]

    @property
    def op(self) -> str | None:
        return None if self.value is None else self.value["op"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`path` like `value.source.lsn`; ABSENT on the side that has nothing there. `ours` is the whole event, if any."""

    path: str
    theirs: Any
    ours: Any
    event: Event | None = None

    def __str__(self) -> str:
        return f"{self.path}: Debezium {str(self.theirs)[:80]!r}, ours {str(self.ours)[:80]!r}"


# -- the differences that are meant; docs/reference/events.md lists the same ones --------------------------------------


def _is(path: str) -> Callable[[Mismatch], bool]:
    return lambda found: found.path == path


def _only_ours(*paths: str) -> Callable[[Mismatch], bool]:
    return lambda found: found.path in paths and found.theirs == ABSENT


def _is_context_header(found: Mismatch) -> bool:
    return found.path.startswith("headers.__debezium.context.") and found.ours == ABSENT


def _is_version_header(found: Mismatch) -> bool:
    return found.path == "headers.v" and found.theirs == ABSENT


def _is_truncate_marker(found: Mismatch) -> bool:
    return found.path == "record" and found.theirs == ABSENT and found.event is not None and found.event.op == "t"


def _is_invented_old_value(found: Mismatch) -> bool:
    """NOT NULL columns outside the key: Debezium fills them with the type's empty value, which was never there."""
    return found.path.startswith("value.before.") and found.ours is None and found.theirs in ("", 0, False)


def _is_filled_toast(found: Mismatch) -> bool:
    return found.path.startswith("value.after.") and found.theirs == "__debezium_unavailable_value"


def _is_documented_form(found: Mismatch) -> bool:
    """docs/reference/types.md shows exactly this pair; or an array whose shape Debezium cannot tell."""
    if not found.path.startswith(("value.after.", "value.before.")):
        return False
    if (_compact(found.ours), _compact(found.theirs)) in _DOCUMENTED_FORMS:
        return True
    nested = isinstance(found.ours, list) and any(isinstance(element, list) for element in found.ours)
    own_subscripts = isinstance(found.ours, str) and found.ours.startswith("[")
    return isinstance(found.theirs, list) and (nested or own_subscripts)


DIFFERENCES: Final[dict[str, Callable[[Mismatch], bool]]] = {
    "topic name": _is("topic"),
    "topic `<prefix>.transaction`": _is("topic.transaction"),
    "header `v`": _is_version_header,
    "headers `__debezium.context.*`": _is_context_header,
    "`source.version`": _is("value.source.version"),
    "`source.commit_lsn`, `position`, `seq`": _only_ours(
        "value.source.commit_lsn", "value.source.position", "value.source.seq"
    ),
    "`source.reselected`": _only_ours("value.source.reselected"),
    "`transaction.id`": _is("value.transaction.id"),
    "`before` without the whole row": _is_invented_old_value,
    "unchanged TOAST": _is_filled_toast,
    "TRUNCATE": _is_truncate_marker,
    "values": _is_documented_form,
}


def explain(found: Mismatch) -> str | None:
    """The name of the documented difference that this mismatch is, if any."""
    return next((name for name, applies in DIFFERENCES.items() if applies(found)), None)


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare(theirs: dict[str, list[Event]], ours: dict[str, list[Event]]) -> Iterator[Mismatch]:
    """Compare both sides by table; records are paired in order, except TRUNCATE markers, which the recording has
    not.
    """
    their_ranks, our_ranks = _ranks(theirs), _ranks(ours)
    for table in sorted(theirs.keys() | ours.keys()):
        markers = [event for event in ours.get(table, []) if event.op == "t"]
        yield from (Mismatch("record", ABSENT, event.key, event) for event in markers)
        mine = [event for event in ours.get(table, []) if event.op != "t"]
        yours = theirs.get(table, [])
        if len(mine) != len(yours):
            yield Mismatch(f"number of records of {table}", len(yours), len(mine))
        for their, our in zip(yours, mine, strict=False):
            yield from _compare_events(_ranked(their, their_ranks), _ranked(our, our_ranks))


def check_shape(event: Event) -> None:
    """Check that the values that differ at every run are consistent on each side."""
    value = event.value
    if value is None:
        return
    source, transaction = value["source"], value["transaction"]
    assert source["ts_ms"] == source["ts_us"] // 1000 == source["ts_ns"] // 1_000_000
    assert value["ts_ms"] == value["ts_us"] // 1000 == value["ts_ns"] // 1_000_000
    assert value["ts_us"] >= source["ts_us"], "an event cannot be older than its commit"
    last_commit, own = json.loads(source["sequence"])
    assert own == str(source["lsn"])
    # A row's own LSN may lie before the end of another transaction that commits earlier.
    assert last_commit is None or int(last_commit) <= source.get("commit_lsn", source["lsn"])
    xid, lsn = transaction["id"].split(":")
    assert int(xid) == source["txId"]
    assert int(lsn) >= source["lsn"]


def _compare_events(their: Event, our: Event) -> Iterator[Mismatch]:
    if _compact(their.key) != _compact(our.key):
        yield Mismatch("key", their.key, our.key, our)
    yield from _walk("value", their.value, our.value, our)
    yield from _walk("headers", dict(their.headers), dict(our.headers), our, ordered=False)


def _walk(path: str, their: Any, our: Any, event: Event, *, ordered: bool = True) -> Iterator[Mismatch]:
    if not (isinstance(their, dict) and isinstance(our, dict)):
        if type(their) is not type(our) or their != our:
            yield Mismatch(path, their, our, event)
        return
    for name in [*their, *(name for name in our if name not in their)]:
        if name in their and name in our:
            yield from _walk(f"{path}.{name}", their[name], our[name], event)
        else:
            yield Mismatch(f"{path}.{name}", their.get(name, ABSENT), our.get(name, ABSENT), event)
    order = [name for name in our if name in their]
    if ordered and order != [name for name in their if name in our]:
        yield Mismatch(f"order of {path}", list(their), list(our), event)


def _ranks(tables: dict[str, list[Event]]) -> dict[str, dict[int, int]]:
    """The rank of each transaction id and LSN over all tables."""
    values = [event.value for events in tables.values() for event in events if event.value and event.op != "t"]
    return {name: _ranked_set(value["source"][name] for value in values) for name in ("txId", "lsn")}


def _ranked_set(values: Iterable[int]) -> dict[int, int]:
    return {value: rank for rank, value in enumerate(sorted(set(values)), start=1)}


def _ranked(event: Event, ranks: dict[str, dict[int, int]]) -> Event:
    value = event.value
    if value is None:
        return event
    source = {
        **value["source"],
        **{name: ranks[name][value["source"][name]] for name in ("txId", "lsn")},
        **dict.fromkeys(("name", "db", "sequence", "ts_ms", "ts_us", "ts_ns"), "checked by shape"),
    }
    clocks = dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), "checked by shape")
    return Event(event.key, {**value, "source": source, **clocks}, event.headers)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_DOCUMENTED_FORMS: Final = {(example.json, example.debezium) for example in read_examples()}
