"""Rows of the topics as typed Spark columns: from an event's JSON to one column per column of the table, in the JVM.

    events = events_of(read_topics(...))                  # after: the row's JSON; op, version, times
    typed = with_typed_rows(events, table)                # row: struct of the typed columns; unfit: who did not parse
    typed.where("size(unfit) = 0").select("row.*")

No record is dropped here: an event that cannot be read as JSON has the op `UNREAD`, and every column of it is unfit.
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

from sinks.contract import SchemaColumn as TableColumn
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
#: The op of a record whose value is no event that Spark can read. No event has it.
UNREAD: Final = "?"
# Where `from_json` puts a text that it could not read. Longer than any identifier of Postgres: no column has this name.
_CORRUPT: Final = f"{'_' * 64}corrupt"
_THERE: Final = f"{'_' * 64}there"
# Jackson refuses a string of more than 20 million characters. Kafka's max.message.bytes is our limit, and no other.
_ANY_LENGTH: Final = {"maxStringLen": str(2**31 - 1)}
_VERSION: Final = (
    "CAST(conv(substring(version, 1, 16), 16, 10) AS bigint)",
    "CAST(conv(substring(version, 18, 8), 16, 10) AS int)",
)


# A row event without a row was not read to its end.
_OP: Final = (
    f"CASE WHEN is_tombstone THEN 'd' WHEN event.`{_CORRUPT}` IS NOT NULL THEN '{UNREAD}'"
    f" WHEN event.op IN ('d', 't') OR event.after IS NOT NULL THEN coalesce(event.op, '{UNREAD}') ELSE '{UNREAD}' END"
)


def read_object(text: Column, fields: str) -> Column:
    """A JSON object as a struct of `fields` (DDL); `is_unread` says whether it could be read."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    schema = f"struct<{fields}{', ' if fields else ''}`{_CORRUPT}`: string>"
    return f.from_json(text, schema, {**_ANY_LENGTH, "columnNameOfCorruptRecord": _CORRUPT})


def is_unread(value: Column) -> Column:
    """Of a struct that `read_object` made: whether there was a text, and it was no JSON object."""
    return value.getField(_CORRUPT).isNotNull()


def _read_texts(text: Column) -> Column:
    """The elements of a JSON array, as texts; NULL where it is none."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    return f.from_json(text, "array<string>", _ANY_LENGTH)


def events_of(records: DataFrame) -> DataFrame:
    """One row per record of a table's topic, markers and tombstones among them.

    Takes `read_topics`'s columns. Gives topic, partition, offset, key (text), version (text), position, seq, op (a bare
    tombstone is a `d` without times; never NULL), after (JSON text, NULL when the row is gone or was not read), ts_us,
    transaction_id, is_tombstone, written_us (by the broker's clock).
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes half a second: only a job needs it

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
        # Versions of tombstones stand in the header alone.
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
    """As `events_of` followed by `with_typed_columns`, of one table, for a bulk load: each event is parsed once.

    Without `after` and `raw`, with `is_there`: of a row that is gone, `row` has only NULLs. An event that was not read
    counts as there: nothing says that its row is gone.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes half a second: only a job needs it

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
        # The header says it of every record, but takes longer to read.
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
    parsed = read_object(f.col(after), texts).cast(f"struct<{places}{', ' if places else ''}`{_CORRUPT}`: string>")
    # Whether there is a text is asked here, so that no later step has to carry it.
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
    """Adds `row`, whose fields are `c0`, `c1`, …, and `unfit`: all columns where `unread`. Without conditions: Spark
    would then type each value for the one and once more for the other."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    values = [value_of(f.col(f"raw.c{number}"), kind).alias(f"c{number}") for number, kind in enumerate(types.values())]
    typed = read.withColumn("row", f.struct(*values))
    judged = {name: _is_unfit(number, kind) for number, (name, kind) in enumerate(types.items()) if kind != STRING}
    unfit = f.array().cast("array<string>")
    if judged:
        named = f.array_compact(f.array(*(f.when(each, f.lit(name)) for name, each in judged.items())))
        # Names are looked for only where there is one: nearly every row fits.
        unfit = f.when(reduce(or_, judged.values()), named).otherwise(unfit)
    every = f.array(*map(f.lit, types)).cast("array<string>")
    return typed.withColumn("unfit", f.when(unread, every).otherwise(unfit))


def value_of(text: Column, type_name: str) -> Column:
    """The typed value of an exact text; NULL where it is NULL, or does not fit."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    element = element_type(type_name)
    if element is not None:
        # A JSON array of arrays begins with two brackets: capture writes no blanks. (A text that looks so has a quote.)
        elements = f.when(~text.startswith("[["), _read_texts(text))
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
    texts = _read_texts(text)
    held = f.size(f.filter(texts, lambda each: each.isNotNull()))
    kept = f.size(f.filter(value, lambda each: each.isNotNull()))
    lost = f.lit(False) if element == STRING else held != kept
    # An array that is no JSON array (its subscripts do not start at 1) is a text here.
    return text.isNotNull() & (value.isNull() | texts.isNull() | lost)
