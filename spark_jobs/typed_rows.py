"""Rows of the topics as typed Spark columns: from an event's JSON to one column per column of the table, in the JVM.

    events = events_of(read_topics(...))                  # after: the row's JSON; op, version, times
    typed = with_typed_rows(events, table)                # row: struct of the typed columns; unfit: who did not parse
    typed.where("size(unfit) = 0").select("row.*")

A value that does not fit its typed column is named in `unfit`, and NULL in `row`: whoever writes the row must not take
it then. The text of every value is in `raw`. No row passes through Python.

Spark's JSON reader may spell a number that has an exponent otherwise (`1e+20` as `1.0E20`): the same number, and the
only difference from the topic. A store that keeps the event's bytes does not get them from here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from sinks.contract import Column as TableColumn
from sinks.contract import TableSchema
from sinks.typed_columns import STRING, element_type, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is read of an event. `after` is a string here: what is no JSON string is given as its JSON text.
_ENVELOPE: Final = (
    "op string, after string,"
    " source struct<ts_us: bigint, txId: bigint, commit_lsn: bigint, position: bigint, seq: int>"
)
# `-0043-…` and `+12024-…`, `infinity`, and the year 0000 (1 BC): no reader of a date column agrees on them.
_FIRST_YEAR: Final = "0001"
_AFTER_DIGITS: Final = ":"
_VERSION: Final = (
    "CAST(conv(substring(version, 1, 16), 16, 10) AS bigint)",
    "CAST(conv(substring(version, 18, 8), 16, 10) AS int)",
)


def events_of(records: DataFrame) -> DataFrame:
    """One row per record of a table's topic, markers and tombstones among them.

    Takes `read_topics`'s columns. Gives topic, partition, offset, key (text), version (text), position, seq, op (a bare
    tombstone is a `d` without times), after (JSON text, NULL when the row is gone), ts_us, transaction_id,
    is_tombstone, written_us (by the broker's clock).
    """
    parsed = records.selectExpr(
        "topic",
        "partition",
        "offset",
        "string(key) AS key",
        "string(stamp) AS version",
        f"from_json(string(value), '{_ENVELOPE}') AS event",
        "value IS NULL AS is_tombstone",
        "unix_micros(timestamp) AS written_us",
    )
    return parsed.selectExpr(
        "topic",
        "partition",
        "offset",
        "key",
        "version",
        # Versions of tombstones stand in the header alone.
        f"{_VERSION[0]} AS position",
        f"{_VERSION[1]} AS seq",
        "CASE WHEN is_tombstone THEN 'd' ELSE event.op END AS op",
        "event.after AS after",
        "event.source.ts_us AS ts_us",
        "event.source.txId AS transaction_id",
        "is_tombstone",
        "written_us",
    )


def typed_events(records: DataFrame, types: Mapping[str, str]) -> DataFrame:
    """As `events_of` followed by `with_typed_columns`, of one table, for a bulk load: each event is parsed once.

    Without `after` and `raw`, with `is_there`: of a row that is gone, `row` has only NULLs.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes half a second: only a job needs it

    texts = ", ".join(f"{quoted(name)}: string" for name in types)
    envelope = _ENVELOPE.replace("after string", f"after struct<{texts}>")
    parsed = records.select(
        "partition",
        "offset",
        f.expr("string(key) AS key"),
        f.expr("string(stamp) AS version"),
        f.from_json(f.col("value").cast("string"), envelope).alias("event"),
        f.expr("value IS NULL AS is_tombstone"),
        f.expr("unix_micros(timestamp) AS written_us"),
    )
    places = ", ".join(f"c{number}: string" for number in range(len(types)))
    events = parsed.select(
        "partition",
        "offset",
        "key",
        "version",
        # The header says it of every record, but takes longer to read.
        f.expr(f"coalesce(event.source.position, {_VERSION[0]}) AS position"),
        f.expr(f"coalesce(event.source.seq, {_VERSION[1]}) AS seq"),
        f.expr("CASE WHEN is_tombstone THEN 'd' ELSE event.op END AS op"),
        f.col("event.after").cast(f"struct<{places}>").alias("raw"),
        f.expr("coalesce(event.source.ts_us, written_us) AS at_us"),
        "is_tombstone",
    )
    return _typed(events, types).withColumn("is_there", f.col("raw").isNotNull()).drop("raw")


def row_type(table: TableSchema, as_text: Collection[str] = ()) -> str:
    """The struct that `with_typed_rows` makes, as DDL. `as_text`: columns that are `string`, whatever their type."""
    fields = ", ".join(f"{quoted(each.name)}: {column_type(each, as_text)}" for each in table.columns)
    return f"struct<{fields}>"


def column_type(column: TableColumn, as_text: Collection[str] = ()) -> str:
    return STRING if column.name in as_text else spark_type(column)


def with_typed_rows(
    frame: DataFrame, table: TableSchema, as_text: Collection[str] = (), *, after: str = "after"
) -> DataFrame:
    """The frame with three more columns: `raw` (texts `c0`, `c1`, …, NULL where the value is), `row`, `unfit`."""
    return with_typed_columns(frame, {each.name: column_type(each, as_text) for each in table.columns}, after=after)


def with_typed_columns(frame: DataFrame, types: Mapping[str, str], *, after: str = "after") -> DataFrame:
    """The same for any fields of a JSON object: name -> type."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes half a second: only a job needs it

    texts = ", ".join(f"{quoted(name)}: string" for name in types)
    places = ", ".join(f"c{number}: string" for number in range(len(types)))
    named = ", ".join(f"{quoted(name)}: {kind}" for name, kind in types.items())
    # By place from here on: names that differ only in case are one name to Spark.
    read = frame.withColumn("raw", f.from_json(f.col(after), f"struct<{texts}>").cast(f"struct<{places}>"))
    there = f.col(after).isNotNull()
    return (
        _typed(read, types)
        .withColumn("unfit", f.when(there, f.col("unfit")))
        .withColumn("row", f.when(there, f.col("row").cast(f"struct<{named}>")))
    )


def _typed(read: DataFrame, types: Mapping[str, str]) -> DataFrame:
    """Adds `row`, whose fields are `c0`, `c1`, …, and `unfit`. Without conditions: Spark would then type each value for
    the one and once more for the other."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    values = [value_of(f.col(f"raw.c{number}"), kind).alias(f"c{number}") for number, kind in enumerate(types.values())]
    typed = read.withColumn("row", f.struct(*values))
    judged = {name: _is_unfit(number, kind) for number, (name, kind) in enumerate(types.items()) if kind != STRING}
    unfit = f.array().cast("array<string>")
    if judged:
        named = f.array_compact(f.array(*(f.when(each, f.lit(name)) for name, each in judged.items())))
        # Names are looked for only where there is one: nearly every row fits.
        unfit = f.when(reduce(or_, judged.values()), named).otherwise(unfit)
    return typed.withColumn("unfit", unfit)


def value_of(text: Column, type_name: str) -> Column:
    """The typed value of an exact text; NULL where it is NULL, or does not fit."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    element = element_type(type_name)
    if element is not None:
        # A JSON array of arrays begins with two brackets: capture writes no blanks. (A text that looks so has a quote.)
        elements = f.when(~text.startswith("[["), f.from_json(text, "array<string>"))
        return f.transform(elements, lambda each: _scalar_of(each, element))
    return _scalar_of(text, type_name)


def quoted(name: str) -> str:
    """An identifier in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _scalar_of(text: Column, type_name: str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

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
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    text, value = f.col(f"raw.c{number}"), f.col(f"row.c{number}")
    element = element_type(type_name)
    if element is None:
        return text.isNotNull() & value.isNull()
    texts = f.from_json(text, "array<string>")
    held = f.size(f.filter(texts, lambda each: each.isNotNull()))
    kept = f.size(f.filter(value, lambda each: each.isNotNull()))
    lost = f.lit(False) if element == STRING else held != kept
    # An array that is no JSON array (its subscripts do not start at 1) is a text here.
    return text.isNotNull() & (value.isNull() | texts.isNull() | lost)
