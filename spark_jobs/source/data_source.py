"""The Spark data source `tailrace` (docs/guides/spark-source.md). Register it once in each session:

spark.dataSource.register(TailraceDataSource)
"""

from __future__ import annotations

from pyspark.sql import types
from pyspark.sql.datasource import DataSource

from cdc.errors import UsageError
from cdc.stores.contract import TableSchema
from sinks.typed_columns import element_type
from spark_jobs.source.batch_reader import PresentStateReader
from spark_jobs.source.columns import SourceColumn, requested_columns, source_columns
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.stream_reader import ChangesReader
from spark_jobs.source.table_topic import find_table, read_published

_PLAIN: dict[str, type[types.DataType]] = {
    "int": types.IntegerType,
    "bigint": types.LongType,
    "float": types.FloatType,
    "double": types.DoubleType,
    "boolean": types.BooleanType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "binary": types.BinaryType,
    "string": types.StringType,
}


class TailraceDataSource(DataSource):
    """Reads one table's topic. `spark.read`: the table's present state; `spark.readStream`: its changes."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._settings = SourceOptions.read(options)
        self._table: TableSchema | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "tailrace"

    def schema(self) -> types.StructType:
        """Return the table's columns, and `_key`, `_version` and `_op`."""
        return types.StructType(
            [types.StructField(column.name, spark_data_type(column.type)) for column in self._columns()]
        )

    def reader(self, schema: types.StructType) -> PresentStateReader:
        """Return the batch reader."""
        return PresentStateReader(self._settings, self._requested(schema))

    def streamReader(self, schema: types.StructType) -> ChangesReader:  # noqa: N802 - Spark's name
        """Return the stream reader."""
        return ChangesReader(self._settings, self._topic(), self._requested(schema))

    def writer(self, schema: types.StructType, overwrite: bool) -> None:  # type: ignore[override]  # noqa: ARG002
        """Refuse: only capture writes to the topics."""
        raise UsageError("tailrace is a source only. Write to the tables in Postgres.")

    def _found(self) -> TableSchema:
        if self._table is None:
            self._table = find_table(self._settings, read_published(self._settings))
        return self._table

    def _topic(self) -> str:
        return self._found().topic

    def _columns(self) -> list[SourceColumn]:
        return source_columns(self._found(), as_text=self._settings.as_text)

    def _requested(self, schema: types.StructType) -> list[SourceColumn]:
        return requested_columns(self._columns(), [(each.name, each.dataType.simpleString()) for each in schema.fields])


def spark_data_type(kind: str) -> types.DataType:
    """Return Spark's object for a type of `sinks.typed_columns`."""
    element = element_type(kind)
    if element is not None:
        return types.ArrayType(spark_data_type(element))
    if kind.startswith("decimal("):
        precision, scale = kind[8:-1].split(",")
        return types.DecimalType(int(precision), int(scale))
    return _PLAIN[kind]()
