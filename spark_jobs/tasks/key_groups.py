"""What the tasks of a bulk load give: keys by group, which are counted when all tasks have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_jobs.tasks.apply_tasks import Answer

#: An answer, and the group of keys that it is wanted in.
Grouped = tuple[int, Answer]


def grouped(groups: int, answer: Answer) -> Iterator[Grouped]:
    """Where an answer is wanted: keys in their group, a marker wherever keys are counted, the rest anywhere."""
    if answer["kind"] == "keys":
        yield answer["grp"], answer
    elif answer["kind"] == "marker":
        yield from ((group, answer) for group in range(max(1, groups)))
    else:
        yield 0, answer


def count_group_rows(group: Iterable[Grouped]) -> Iterator[Grouped]:
    """For `mapPartitions` over groups: keys become the number of live rows, the rest goes through."""
    from spark_jobs.tasks.row_counts import live_rows  # noqa: PLC0415 - numpy: only a task needs it

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
