"""The comparing task of the audit: it gets all rows of its groups from every side and reports those that differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cdc.audit.row_blocks import Side, differing, found_at, joined
from cdc.lsn import Version
from spark_jobs.audit.side_tasks import FAILURE, MARKER, SOURCE, TOPIC
from spark_jobs.tasks.task_errors import unpacked_error

if TYPE_CHECKING:
    import pyarrow as pa


class Suspect(NamedTuple):
    """A row that differed between two sides when each was read.

    Most suspects are rows that changed between the two reads, so the audit checks each of them again.

    `side`: "topic" (compared with the source) or a store's name (compared with the topic). `key`: the key as in the
    source. If only the store has the row, it is the store's id of the row, and `is_id` is true. It is b"" if the key
    must be read from the topic's record. `place`: partition and offset of the topic's last record of the row, in one
    number; -1 if there is none. `disordered`: an earlier record of the row has a larger version than the last record.
    """

    side: str
    key: bytes
    is_id: bool
    place: int
    disordered: bool


@dataclass(frozen=True, slots=True)
class FoundDifferences:
    """The result of one task.

    `rows`: number of live rows by side. `differing`: number of differing rows by side; `suspects` lists at most
    `GroupComparison.most_suspects` of them for each side. `failures`: errors of the tasks that read a side. If there
    are any, nothing was compared. `marker`: the version of the table's last TRUNCATE, or "".
    """

    rows: dict[str, int]
    differing: dict[str, int]
    suspects: list[Suspect]
    failures: list[Exception]
    marker: str


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Compares the groups of one Spark partition; the function for `mapPartitions`.

    `stores`: the stores' names. `shaped`: the stores that hold rows in a shape of their own. Each of these is compared
    with a side that holds the topic's rows in that shape. `most_suspects`: limit of suspects for each side and task.
    """

    stores: Sequence[str]
    shaped: frozenset[str]
    most_suspects: int

    def __call__(self, records: Iterable[tuple[int, tuple[str, bytes]]]) -> Iterator[FoundDifferences]:
        packed: dict[str, list[bytes]] = {}
        failures: list[Exception] = []
        marker = ""
        for _, (side, data) in records:
            if side == FAILURE:
                failures.append(unpacked_error(data))
            elif side == MARKER:
                marker = max(marker, data.decode())
            else:
                packed.setdefault(side, []).append(data)
        found = FoundDifferences({}, {}, [], failures, marker)
        if not failures:
            self._compare(packed, marker, found)
        yield found

    def _compare(self, packed: dict[str, list[bytes]], marker: str, found: FoundDifferences) -> None:
        dead_below = (0, 0)
        if marker:
            version = Version.parse(marker)
            dead_below = (version.position, version.seq)
        source = Side(_rows(packed, SOURCE), distinct=True)
        topic = Side(_rows(packed, TOPIC), dead_below)
        self._note(TOPIC, source, topic, [topic, source], found)
        found.rows[SOURCE] = source.live_rows
        found.rows[TOPIC] = topic.live_rows
        for store in self.stores:
            held = Side(_rows(packed, store))
            expected = Side(_rows(packed, f"{TOPIC}:{store}"), dead_below) if store in self.shaped else topic
            self._note(store, expected, held, [topic, source, held], found)
            found.rows[store] = held.live_rows

    def _note(self, side: str, one: Side, other: Side, known: Sequence[Side], found: FoundDifferences) -> None:
        """Add the rows that differ between two sides to `found`.

        `known`: the sides in which the key of a suspect is looked up, the topic first. A third one is a store, which
        has ids instead of keys. The store's id is used only if the topic has no record of the row.
        """
        ids = differing(one, other, versions=side != TOPIC)
        found.differing[side] = len(ids)
        chosen = ids[: self.most_suspects]
        if not len(chosen):
            return
        answers = [list(found_at(each, chosen)) for each in known]
        disordered = set(known[0].last.ids[known[0].last.disordered].tolist())
        for number, wanted in enumerate(chosen.tolist()):
            key, is_id, place = b"", False, -1
            for order, answer in enumerate(answers):
                here = answer[number]
                if here is None:
                    continue
                place = here[1] if order == 0 else place
                if not key and (order < 2 or place < 0):
                    key, is_id = here[0], order == 2
            found.suspects.append(Suspect(side, key, is_id, place, wanted in disordered))


def _rows(packed: dict[str, list[bytes]], side: str) -> pa.Table | None:
    return joined(packed[side]) if side in packed else None
