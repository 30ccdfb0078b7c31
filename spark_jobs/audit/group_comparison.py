"""Where the sides meet: one task has all rows of some groups, of every side, and says which of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cdc.audit.row_blocks import Side, differing, found_at, joined
from cdc.lsn import Version
from spark_jobs.audit.side_tasks import MARKER, SOURCE, TOPIC, TROUBLE, SideError

if TYPE_CHECKING:
    import pyarrow as pa


class Suspect(NamedTuple):
    """A row that was not the same on two sides when each was read; much of it has just moved.

    `side`: "topic" (against the source) or a store (against the topic). `key`: as the source has it; or where only the
    store has such a row, its id there (`is_id`); or b"", and the topic's record says it. `place`: of the topic's last
    record of it, -1 where there is none.
    `disordered`: an earlier record of it has a larger version than the last one.
    """

    side: str
    key: bytes
    is_id: bool
    place: int
    disordered: bool


@dataclass(frozen=True, slots=True)
class FoundDifferences:
    """Of one task. `rows`: live rows by side; `differing`: how many by side, of which some are in `suspects`."""

    rows: dict[str, int]
    differing: dict[str, int]
    suspects: list[Suspect]
    troubles: list[SideError]
    marker: str


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """For `mapPartitions`. `stores`: names; a store with rows of its own shape has a side of the topic for itself."""

    stores: Sequence[str]
    shaped: frozenset[str]
    most_suspects: int

    def __call__(self, records: Iterable[tuple[int, tuple[str, bytes]]]) -> Iterator[FoundDifferences]:
        packed: dict[str, list[bytes]] = {}
        troubles: list[SideError] = []
        marker = ""
        for _, (side, data) in records:
            if side == TROUBLE:
                troubles.append(msgspec.json.decode(data, type=SideError))
            elif side == MARKER:
                marker = max(marker, data.decode())
            else:
                packed.setdefault(side, []).append(data)
        found = FoundDifferences({}, {}, [], troubles, marker)
        if not troubles:
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
        """`known`: where keys are looked for; the last one knows only ids, if it is a store's."""
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
