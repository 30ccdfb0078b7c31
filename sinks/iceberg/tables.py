"""Creates, alters and drops the warehouse's tables. This module reads and writes no rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

from cdc.config import IcebergConfig
from cdc.errors import TransientError
from cdc.stores.contract import Fit, TableSchema
from sinks.iceberg import library, naming
from sinks.iceberg.catalog import iceberg_errors, location
from sinks.iceberg.naming import Identifier
from sinks.iceberg.schemas import (
    CURRENT_OWN,
    HISTORY_OWN,
    WarehouseColumn,
    iceberg_schema,
    iceberg_type,
    key_columns,
    spark_name,
    warehouse_columns,
    widens,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

#: The table property that holds the key's columns as a JSON list. `maintain` sorts by them.
KEY_PROPERTY: Final = "tailrace.key"
#: The property of a history that holds the id of the pipeline that writes it. Release 0.1.0 did not set it.
PIPELINE_PROPERTY: Final = "tailrace.pipeline"

_COMMON: Final = {
    # Version 2 has position deletes, which every reader supports. Not all readers support version 3's deletion vectors.
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.merge.isolation-level": "serializable",
    "write.update.isolation-level": "serializable",
    "write.delete.isolation-level": "serializable",
    # A batch is small: another shuffle to sort it costs more than it saves. `maintain` sorts the files.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.delete.granularity": "file",
    "write.parquet.compression-codec": "zstd",
    # Small row groups: a MERGE then reads only those parts of a sorted file that can hold the batch's keys.
    "write.parquet.row-group-size-bytes": str(16 << 20),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.retry.num-retries": "20",
    "commit.retry.max-wait-ms": "5000",
    "history.expire.min-snapshots-to-keep": "1",
}


class IcebergTables:
    """Creates, alters and drops tables of one warehouse."""

    def __init__(self, catalog: Catalog, warehouse: IcebergConfig) -> None:
        self._catalog = catalog
        self._warehouse = warehouse

    def as_text(self, table: TableSchema) -> frozenset[str]:
        """Return the table's columns that the config lists in `string_columns`."""
        return frozenset(
            each.column
            for each in self._warehouse.string_columns
            if (each.schema, each.table) == (table.schema, table.table)
        )

    def columns(self, table: TableSchema) -> list[WarehouseColumn]:
        """Return the table's columns in the warehouse."""
        return warehouse_columns(table, self.as_text(table))

    def create_generation_table(self, table: TableSchema, number: int) -> None:
        """Create the table for current rows in a generation that does not serve. No effect if it exists."""
        self._create(naming.generation_table(table, number), table, CURRENT_OWN, f"-g{number}")

    def ensure_history(self, table: TableSchema, pipeline_id: str) -> None:
        """Create the table's history, or add new columns to it.

        Old columns stay with their types, because old versions have values in them. A history of another pipeline
        stays unchanged until `IcebergStore.set_histories_aside` renames it.
        """
        name, columns = naming.history_table(table), self.columns(table)
        found = self.load(name)
        if found is None:
            # The location contains the pipeline's id. A renamed history keeps its location, and `maintain` deletes
            # files that the table at a location does not use. So two histories must not share a location.
            place = f"-history-{pipeline_id[:8]}" if pipeline_id else "-history"
            self._create(name, table, HISTORY_OWN, place, {PIPELINE_PROPERTY: pipeline_id} if pipeline_id else {})
        elif found.properties.get(PIPELINE_PROPERTY, pipeline_id) == pipeline_id:
            self._evolve(name, columns, HISTORY_OWN, keep_dropped=True)

    def ensure(self, name: Identifier, table: TableSchema) -> Fit:
        """Add, widen and drop columns of a current table, as far as Iceberg can do so in place."""
        return self._evolve(name, self.columns(table), CURRENT_OWN, keep_dropped=False)

    def load(self, name: Identifier) -> Table | None:
        """Return the table, or None if it does not exist."""
        with iceberg_errors():
            try:
                return self._catalog.load_table(name)
            except NoSuchTableError:
                return None

    def drop(self, name: Identifier) -> None:
        """Drop the table and delete its files. No effect if it does not exist."""
        with iceberg_errors(), contextlib.suppress(NoSuchTableError):
            self._catalog.purge_table(name)

    def _create(
        self,
        name: Identifier,
        table: TableSchema,
        own: dict[str, str],
        suffix: str,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        columns = self.columns(table)
        schema = iceberg_schema(columns, own)
        spec = library.PartitionSpec()
        if naming.OPEN in own:
            # Partition by `open`, so that closing a version does not read the closed versions.
            field = schema.find_field(naming.OPEN)
            spec = library.PartitionSpec(
                library.PartitionField(field.field_id, 1000, library.IdentityTransform(), naming.OPEN)
            )
        properties = {
            **_COMMON,
            "write.target-file-size-bytes": str(self._warehouse.target_file_bytes),
            KEY_PROPERTY: json.dumps([column.name for column in key_columns(table, columns)]),
            **more,
        }
        properties |= {f"write.metadata.metrics.column.{column}": "full" for column in own}
        base = name[0].removesuffix("__history")
        base = base.rpartition("__g")[0] if naming.generation_of(base) is not None else base
        place = f"{location(self._warehouse)}/{base}/{name[1]}{suffix}"
        with iceberg_errors(), contextlib.suppress(TableAlreadyExistsError):
            self._catalog.create_namespace_if_not_exists(name[0])
            self._catalog.create_table(name, schema, location=place, partition_spec=spec, properties=properties)

    def _evolve(
        self, name: Identifier, columns: list[WarehouseColumn], own: dict[str, str], *, keep_dropped: bool
    ) -> Fit:
        table = self.load(name)
        if table is None:
            raise TransientError(f"The warehouse's table {'.'.join(name)} is gone.")
        known = {field.name: spark_name(field.field_type) for field in table.schema().fields}
        wanted = {column.name: column.type for column in columns}
        added = [each for each in wanted if each not in known]
        widened = [each for each in wanted if each in known and widens(known[each], wanted[each])]
        dropped = [] if keep_dropped else [each for each in known if each not in wanted and each not in own]
        unfit = [each for each in wanted if each in known and known[each] != wanted[each] and each not in widened]
        aside = {each: _aside(each, known) for each in unfit} if keep_dropped else {}
        if added or widened or dropped or aside:
            with iceberg_errors():
                try:
                    with table.update_schema(allow_incompatible_changes=False) as update:
                        for each in dropped:
                            update.delete_column((each,))
                        for each, other in aside.items():
                            update.rename_column((each,), other)
                        for each in widened:
                            update.update_column((each,), iceberg_type(wanted[each]))
                    with table.update_schema() as update:
                        for each in [*added, *aside]:
                            update.add_column((each,), iceberg_type(wanted[each]), required=False)
                except CommitFailedException as error:
                    raise TransientError(f"{'.'.join(name)}: another process has altered the table.") from error
        return Fit.NEEDS_GENERATION if unfit and not aside else Fit.READY


def _aside(name: str, known: Collection[str]) -> str:
    """Return the new name for a history column whose type has changed: `total__1`, and so on."""
    return next(other for number in range(1, 10_000) if (other := f"{name}__{number}") not in known)


def types_of(table: Table, columns: Collection[WarehouseColumn]) -> dict[str, str]:
    """Return the Spark SQL types of the columns in the existing Iceberg table. Values are written as these types."""
    known = {field.name: spark_name(field.field_type) for field in table.schema().fields}
    return {column.name: known.get(column.name, column.type) for column in columns}


def key_of(table: Table) -> list[str]:
    """Return the key's columns that the table still has. Empty for a table of an older release without the property."""
    there = {field.name for field in table.schema().fields}
    named: list[str] = json.loads(table.properties.get(KEY_PROPERTY, "[]"))
    return [name for name in named if name in there]
