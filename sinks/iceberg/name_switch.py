"""Switches readers to other tables by renaming tables in the catalog.

In a SQL catalog one transaction exchanges all names. So no reader finds a table missing, or sees tables of two
generations. Other catalogs rename one table after another, and a name is missing for a moment in between.

Several processes may exchange the same names at once, because each client that finds an unfinished switch completes it.
A process moves the table at the new name only while the replacing table still has its old name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

from cdc.errors import TransientError
from sinks.iceberg import library
from sinks.iceberg.catalog import iceberg_errors
from sinks.iceberg.naming import Identifier

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Aside = Callable[[str], str]


class TableMovedError(TransientError):
    """The table to be moved no longer has its old name, because another client has moved it."""


def exchange_tables(
    catalog: Catalog, pairs: Sequence[tuple[Identifier, Identifier]], *, aside: Aside | None = None
) -> None:
    """Rename each table from the first to the second name of its pair.

    A table that already has the second name moves to the namespace `aside(namespace)`. Without `aside` it is dropped.
    """
    names = {to[0] for _, to in pairs} | ({aside(to[0]) for _, to in pairs} if aside is not None else set())
    with iceberg_errors():
        for name in sorted(names):
            catalog.create_namespace_if_not_exists(name)
        engine = getattr(catalog, "engine", None)
        if engine is None:
            _rename(catalog, pairs, aside)
        else:
            _update(engine, catalog.name, pairs, aside)


def _update(
    engine: Any, catalog_name: str, pairs: Sequence[tuple[Identifier, Identifier]], aside: Aside | None
) -> None:
    names, delete, update = library.IcebergTables, library.delete, library.update

    def at(name: Identifier) -> Any:
        return (names.catalog_name == catalog_name) & (names.table_namespace == name[0]) & (names.table_name == name[1])

    with engine.begin() as connection:
        for source, target in pairs:
            # This update changes nothing. It locks the row, so that no other client moves the table.
            found = connection.execute(update(names).where(at(source)).values(table_namespace=source[0]))
            if found.rowcount != 1:
                raise _moved(source)
            if aside is None:
                connection.execute(delete(names).where(at(target)))
            else:
                connection.execute(update(names).where(at(target)).values(table_namespace=aside(target[0])))
            connection.execute(update(names).where(at(source)).values(table_namespace=target[0]))


def _rename(catalog: Catalog, pairs: Sequence[tuple[Identifier, Identifier]], aside: Aside | None) -> None:
    for source, target in pairs:
        try:
            if catalog.table_exists(target):
                _make_room(catalog, source, target, aside)
            catalog.rename_table(source, target)
        except (NoSuchTableError, TableAlreadyExistsError) as error:
            raise _moved(source) from error


def _make_room(catalog: Catalog, source: Identifier, target: Identifier, aside: Aside | None) -> None:
    if not catalog.table_exists(source):
        raise _moved(source)
    if aside is None:
        catalog.drop_table(target)
    else:
        catalog.rename_table(target, (aside(target[0]), target[1]))


def _moved(source: Identifier) -> TableMovedError:
    return TableMovedError(f"The warehouse's table {'.'.join(source)} is gone.")
