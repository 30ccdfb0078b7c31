"""The contract between the audit and a store: read a table in slices, read rows by id, and overwrite rows by force.

Each kind of store that can be audited implements a scan and is in the registry: a `RowStore` has a `RowScan`, and a
`TableStore` has a `StoreScan`, because Spark repairs its rows. See `cdc.stores.contract` too.
A scan must return what readers of the store see, including rows that Tailrace did not write. A row that cannot be
decoded has version 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from cdc.stores.contract import Change, Generation, StoredRow, TableSchema

#: Reads one slice of a table's live rows, in lists of rows. Picklable. Contains the store's secrets.
ReadSlice = Callable[[], Iterator[list[StoredRow]]]


class Forced(NamedTuple):
    """A forced replacement of one row, for repair.

    `held` is the row as the audit found it, whose larger version blocks normal writes. `change` is the correct state.
    `held` is None if the store has no such row but did not accept the change either, because it remembers a delete.
    """

    held: StoredRow | None
    change: Change


class StoreScan(ABC):
    """Reads the tables of one generation for the audit."""

    @abstractmethod
    def slices(self, table: TableSchema, count: int) -> AbstractContextManager[list[ReadSlice]]:
        """Open at most `count` slices that together cover every live row.

        They show the table at about one point in time, and stay valid inside the `with` block.
        """

    @abstractmethod
    def rows(self, table: TableSchema, ids: Sequence[str]) -> dict[str, StoredRow]:
        """Return the current rows, tombstones included. Ids that the store does not hold are absent from the result.

        The version is the one by which the store decides what may replace the row, however the store keeps it.
        """

    @abstractmethod
    def sample(self, table: TableSchema, count: int) -> list[StoredRow]:
        """Return about `count` random live rows, different ones on each call."""

    def is_cheap(self, table: TableSchema, ids: Sequence[str]) -> bool:  # noqa: ARG002
        """Whether `rows` reads little more than these rows. If not, a sampled audit skips them. By default, it does."""
        return True

    def spelled(self, table: TableSchema) -> frozenset[str]:  # noqa: ARG002
        """Return the columns that the store holds as the text of the value, such as `"7"` for 7. By default none."""
        return frozenset()

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class RowScan(StoreScan):
    """Also repairs rows by force."""

    @abstractmethod
    def force(self, table: TableSchema, forced: Sequence[Forced]) -> None:
        """Replace or remove rows whatever their version, each only if it is still the row that the audit found.

        A row that arrives in the meantime with a larger version than the change stays. Repair needs this for a row
        whose version is larger than any future version, because such a row would otherwise stay for ever.
        """


class ScanKind(Protocol):
    """Opens a scan of one generation. `name` is the store's, `settings` its section of the config."""

    def __call__(self, name: str, settings: Any, prefix: str, generation: Generation) -> StoreScan: ...
