"""What the audit asks of a store: all rows of a table in slices, some rows by their ids, and force. Beside `contract`.

A kind of store that can be audited has a `StoreScan` in the registry. Reading must see what readers see, and shows
rows that nobody of ours wrote as well: what cannot be understood is a row with version 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from cdc.stores.contract import Change, Generation, StoredRow, TableSchema

#: A slice of a table's live rows, some hundred at a time. Picklable; it holds the store's secrets.
ReadSlice = Callable[[], Iterator[list[StoredRow]]]


class Forced(NamedTuple):
    """`held`: the row as it was found, which a larger version protects; `change`: what must stand there instead.

    `held` is None where the store has no such row and has not taken the change either: it remembers a delete.
    """

    held: StoredRow | None
    change: Change


class StoreScan(Protocol):
    def slices(self, table: TableSchema, count: int) -> AbstractContextManager[list[ReadSlice]]:
        """At most so many, which together give every live row; of about one moment, as long as the block lasts."""

    def rows(self, table: TableSchema, ids: Sequence[str]) -> dict[str, StoredRow]:
        """As they are now, tombstones too; an id that the store does not know is not in it.

        The version is the one that decides what may replace the row, however the store keeps it.
        """

    def sample(self, table: TableSchema, count: int) -> list[StoredRow]:
        """About so many live rows, others each time."""

    def is_cheap(self, table: TableSchema, ids: Sequence[str]) -> bool:
        """Whether `rows` of these reads little else; a sampled audit leaves them out otherwise."""

    def spelled(self, table: TableSchema) -> frozenset[str]:
        """Columns of which the store holds a text that stands for the value, such as `7` for 7."""

    def force(self, table: TableSchema, forced: Sequence[Forced]) -> None:
        """Replace or remove rows whatever their version, each only if it is still the one that was found.

        A row that comes meanwhile with a larger version than the change stays.

        For repair: a row whose version is larger than all that will ever come would stay for ever. Refused by the
        kinds of `BY_SPARK`.
        """

    def close(self) -> None:
        """Give connections back."""


class ScanKind(Protocol):
    def __call__(self, name: str, settings: Any, prefix: str, generation: Generation) -> StoreScan: ...


#: Kinds whose rows Spark writes, typed and in bulk. Spark repairs them too; they have no `force`.
BY_SPARK: Final = frozenset({"iceberg"})
