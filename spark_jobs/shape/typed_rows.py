"""Parses the JSON of events into typed Spark columns, one for each column of the table. All of it runs in the JVM.

    events = events_of(read_topic_frame(...))  # after: the row's JSON; op, version, times
    typed = with_typed_rows(events, table)      # row: struct of typed columns; unfit: names of columns that do not fit
    typed.where("size(unfit) = 0").select("row.*")

This module drops no record. An event that cannot be read as JSON has the op `UNREAD`, and all of its columns are
unfit. If a value does not fit its typed column, `unfit` holds the column's name, and the value in `row` is NULL. A
sink must not write such a row. `raw` holds the text of every value. No row passes through Python.

Spark's JSON reader may write a number with an exponent differently (`1e+20` as `1.0E20`). The number is the same, and
this is the only difference from the topic. A store that must keep the event's bytes cannot use these columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from cdc.stores.contract import SchemaColumn as TableColumn
from cdc.stores.contract import TableSchema
from sinks.typed_columns import STRING, element_type, spark_type

#: The fields of an event that are read. `after` is a string here: Spark gives the text of the JSON object.
_ENVELOPE: Final = (
    "op string, after string,"
    " source struct<ts_us: bigint, txId: bigint, commit_lsn: bigint, position: bigint, seq: int>"
)
# Only the years 0001 to 9999 are typed. Readers of date columns disagree on `-0043-…`, `+12024-…`, `infinity` and the
# year 0000 (1 BC).
_FIRST_YEAR: Final = "0001"
_AFTER_DIGITS: Final = ":"
#: The op of a record whose value Spark cannot read as an event. No event has this op.
UNREAD: Final = "?"
# The field in which `from_json` puts a text that it could not read. The name is longer than any identifier in Postgres,
# so no column has it.
_CORRUPT: Final = f"{'_' * 64}corrupt"
_THERE: Final = f"{'_' * 64}there"
# By default Jackson refuses strings of more than 20 million characters. Only Kafka's max.message.bytes may limit a row.
_ANY_LENGTH: Final = {"maxStringLen": str(2**31 - 1)}
_VERSION: Final = (
    "CAST(conv(substring(version, 1, 16), 16, 10) AS bigint)",
    "CAST(conv(substring(version, 18, 8), 16, 10) AS int)",
)


# A row event without `after` is UNREAD: Spark did not read it to its end.
_OP: Final = (
    f"CASE WHEN is_tombstone THEN 'd' WHEN event.`{_CORRUPT}` IS NOT NULL THEN '{UNREAD}'"
    f" WHEN event.op IN ('d', 't') OR event.after IS NOT NULL THEN coalesce(event.op, '{UNREAD}') ELSE '{UNREAD}' END"
)


def read_object(text: Column, fields: str) -> Column:
    """Parse a JSON object into a struct of `fields` (DDL). `is_unread` tests whether that failed."""
    schema = f"struct<{fields}{', ' if fields else ''}`{_CORRUPT}`: string>"
    return f.from_json(text, schema, {**_ANY_LENGTH, "columnNameOfCorruptRecord": _CORRUPT})


def is_unread(value: Column) -> Column:
    """Return whether `read_object` got a text that is no JSON object. `value`: the struct that it returned."""
    return value.getField(_CORRUPT).isNotNull()


def _read_texts(text: Column) -> Column:
    """Return the elements of a JSON array as texts; NULL if the text is no JSON array."""
    return f.from_json(text, "array<string>", _ANY_LENGTH)


def events_of(records: DataFrame) -> DataFrame:
    """Parse the records of table topics. The result has one row per record, markers and tombstones included.

    `records` has the columns of `read_topic_frame`. The result has topic, partition, offset, key (text), version
    (text), position, seq, op (never NULL; a tombstone has `d` and no times), after (JSON text, NULL if the row was
    deleted or could not be read), ts_us, transaction_id, is_tombstone and written_us (by the broker's clock).
    """
    parsed = records.select(
        "topic",
        "partition",
        "offset",
        f.expr("string(key) AS key"),
        f.expr("string(stamp) AS version"),
        read_object(f.col("value").cast("string"), _ENVELOPE).alias("event"),
        f.expr("value IS NULL AS is_tombstone"),
        f.expr("unix_micros(timestamp) AS written_us"),
    )
    return parsed.selectExpr(
        "topic",
        "partition",
        "offset",
        "key",
        "version",
        # A tombstone has its version only in the header.
        f"{_VERSION[0]} AS position",
        f"{_VERSION[1]} AS seq",
        f"{_OP} AS op",
        "event.after AS after",
        "event.source.ts_us AS ts_us",
        "event.source.txId AS transaction_id",
        "is_tombstone",
        "written_us",
    )


def typed_events(records: DataFrame, types: Mapping[str, str]) -> DataFrame:
    """Parse the records of one table's topic into typed columns in one step, for a bulk load.

    The result is that of `events_of` and `with_typed_columns`, but each event is parsed once. It has no `after` and
    no `raw`, but a column `is_there`, which is false if the row was deleted. Then `row` has only NULLs. An event that
    could not be read has `is_there` true, because its row may exist.
    """
    texts = ", ".join(f"{quoted(name)}: string" for name in types)
    envelope = _ENVELOPE.replace("after string", f"after struct<{texts}>")
    parsed = records.select(
        "partition",
        "offset",
        f.expr("string(key) AS key"),
        f.expr("string(stamp) AS version"),
        read_object(f.col("value").cast("string"), envelope).alias("event"),
        f.expr("value IS NULL AS is_tombstone"),
        f.expr("unix_micros(timestamp) AS written_us"),
    )
    places = ", ".join(f"c{number}: string" for number in range(len(types)))
    events = parsed.select(
        "partition",
        "offset",
        "key",
        "version",
        # The header has the version of every record, but takes longer to parse.
        f.expr(f"coalesce(event.source.position, {_VERSION[0]}) AS position"),
        f.expr(f"coalesce(event.source.seq, {_VERSION[1]}) AS seq"),
        f.expr(f"{_OP} AS op"),
        f.col("event.after").cast(f"struct<{places}>").alias("raw"),
        f.expr("coalesce(event.source.ts_us, written_us) AS at_us"),
        "is_tombstone",
    )
    unread = f.col("op") == UNREAD
    return _typed(events, types, unread).withColumn("is_there", unread | f.col("raw").isNotNull()).drop("raw")


def row_type(table: TableSchema, as_text: Collection[str] = ()) -> str:
    """Return the type of the struct `row` of `with_typed_rows`, as DDL. `as_text`: columns that are always `string`."""
    fields = ", ".join(f"{quoted(each.name)}: {column_type(each, as_text)}" for each in table.columns)
    return f"struct<{fields}>"


def column_type(column: TableColumn, as_text: Collection[str] = ()) -> str:
    """Return the Spark type of a column; `string` if its name is in `as_text`."""
    return STRING if column.name in as_text else spark_type(column)


def with_typed_rows(
    frame: DataFrame, table: TableSchema, as_text: Collection[str] = (), *, after: str = "after"
) -> DataFrame:
    """Add the columns `raw` (a struct of texts `c0`, `c1`, …; NULL for NULL values), `row` and `unfit`."""
    return with_typed_columns(frame, {each.name: column_type(each, as_text) for each in table.columns}, after=after)


def with_typed_columns(frame: DataFrame, types: Mapping[str, str], *, after: str = "after") -> DataFrame:
    """Add the columns of `with_typed_rows` for any fields of a JSON object. `types`: Spark type by field name."""
    texts = ", ".join(f"{quoted(name)}: string" for name in types)
    places = ", ".join(f"c{number}: string" for number in range(len(types)))
    named = ", ".join(f"{quoted(name)}: {kind}" for name, kind in types.items())
    # From here on columns are numbered, because Spark treats names that differ only in case as one name.
    parsed = read_object(f.col(after), texts).cast(f"struct<{places}{', ' if places else ''}`{_CORRUPT}`: string>")
    # Tested here, so that later steps need not carry the text.
    read = frame.withColumns({"raw": parsed, _THERE: f.col(after).isNotNull()})
    there = f.col(_THERE)
    unread = there & f.coalesce(is_unread(f.col("raw")), f.lit(True))
    return (
        _typed(read, types, unread)
        .withColumn("unfit", f.when(there, f.col("unfit")))
        .withColumn("row", f.when(there, f.col("row").cast(f"struct<{named}>")))
        .drop(_THERE)
    )


def _typed(read: DataFrame, types: Mapping[str, str], unread: Column) -> DataFrame:
    """Add `row`, with the fields `c0`, `c1`, …, and `unfit`, which lists all columns if `unread`.

    `row` is computed without a condition. With one, Spark would convert each value twice, for `row` and for `unfit`.
    """
    values = [value_of(f.col(f"raw.c{number}"), kind).alias(f"c{number}") for number, kind in enumerate(types.values())]
    typed = read.withColumn("row", f.struct(*values))
    judged = {name: _is_unfit(number, kind) for number, (name, kind) in enumerate(types.items()) if kind != STRING}
    unfit = f.array().cast("array<string>")
    if judged:
        named = f.array_compact(f.array(*(f.when(each, f.lit(name)) for name, each in judged.items())))
        # The names are collected only if a column is unfit, because nearly every row fits.
        unfit = f.when(reduce(or_, judged.values()), named).otherwise(unfit)
    every = f.array(*map(f.lit, types)).cast("array<string>")
    return typed.withColumn("unfit", f.when(unread, every).otherwise(unfit))


def value_of(text: Column, type_name: str) -> Column:
    """Convert a value's exact text to a type; NULL if the text is NULL or does not fit."""
    element = element_type(type_name)
    if element is not None:
        # A JSON array of arrays begins with two brackets, because capture writes no blanks. (If the first element is a
        # text that begins with a bracket, a quote comes between the two.)
        elements = f.when(~text.startswith("[["), _read_texts(text))
        return f.transform(elements, lambda each: _scalar_of(each, element))
    return _scalar_of(text, type_name)


def quoted(name: str) -> str:
    """Quote an identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _scalar_of(text: Column, type_name: str) -> Column:
    if type_name == STRING:
        return text
    if type_name == "binary":
        return f.try_to_binary(text, f.lit("base64"))
    if type_name in ("date", "timestamp", "timestamp_ntz"):
        four_digits = (text.substr(5, 1) == "-") & (text >= _FIRST_YEAR) & (text < _AFTER_DIGITS)
        ordinary = f.when(four_digits, text)
        zoneless = f.replace(ordinary, f.lit("Z"), f.lit(""))
        return (ordinary if type_name == "timestamp" else zoneless).try_cast(type_name)
    return text.try_cast(type_name)


def _is_unfit(number: int, type_name: str) -> Column:
    text, value = f.col(f"raw.c{number}"), f.col(f"row.c{number}")
    element = element_type(type_name)
    if element is None:
        return text.isNotNull() & value.isNull()
    texts = _read_texts(text)
    held = f.size(f.filter(texts, lambda each: each.isNotNull()))
    kept = f.size(f.filter(value, lambda each: each.isNotNull()))
    lost = f.lit(False) if element == STRING else held != kept
    # An array whose subscripts do not start at 1 is no JSON array: its event holds a text.
    return text.isNotNull() & (value.isNull() | texts.isNull() | lost)
