"""Groups the result rows of a bulk load's tasks by key group, and counts the keys when all tasks have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_jobs.tasks.apply_tasks import Answer
from spark_jobs.tasks.row_counts import live_rows

#: The key group that a result row goes to, and the row.
Grouped = tuple[int, Answer]


def grouped(groups: int, answer: Answer) -> Iterator[Grouped]:
    """Yields the row with its target groups: keys in their group, a marker in every group, any other row in group 0."""
    if answer["kind"] == "keys":
        yield answer["grp"], answer
    elif answer["kind"] == "marker":
        yield from ((group, answer) for group in range(max(1, groups)))
    else:
        yield 0, answer


def count_group_rows(group: Iterable[Grouped]) -> Iterator[Grouped]:
    """Replace keys by the number of live rows and pass other rows on. The function of `mapPartitions` over groups."""
    keys: dict[str, list[bytes]] = {}
    markers: dict[str, bytes] = {}
    for number, answer in group:
        if answer["kind"] == "keys":
            keys.setdefault(answer["topic"], []).append(answer["data"])
            continue
        if answer["kind"] == "marker":
            markers[answer["topic"]] = max(answer["stamp"].encode(), markers.get(answer["topic"], b""))
        yield number, answer
    for topic, states in keys.items():
        yield 0, {"kind": "rows", "topic": topic, "rows": live_rows(states, markers.get(topic, b""))}
