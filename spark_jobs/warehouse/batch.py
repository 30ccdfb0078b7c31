"""Transforms one table's part of a batch into typed versions. Functions from DataFrame to DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from sinks.iceberg import naming
from sinks.iceberg.schemas import WarehouseColumn
from sinks.iceberg.statements import Marker
from spark_jobs.shape.analysis import CompiledShape
from spark_jobs.shape.evaluation import typed_shape
from spark_jobs.shape.typed_rows import UNREAD, quoted, with_typed_columns

_MOST_RANGES: Final = 16

#: Columns for parking: the text of the row's key, its place in the topic, and the columns that did not fit.
PLACE: Final = {
    naming.KEY_TEXT: "key",
    naming.VERSION_TEXT: "version",
    naming.PARTITION: "partition",
    naming.OFFSET: "offset",
    naming.UNFIT: "unfit",
}
FIT: Final = f"size({naming.UNFIT}) = 0"
#: An entry of `UNFIT` besides names of columns: no value of the event could be read.
UNREADABLE: Final = "Spark could not read the event as JSON"
_END: Final = "_tailrace_end"
_OWN: Final = "_tailrace_own"
_RANK: Final = "_tailrace_rank"


def versions(events: DataFrame) -> DataFrame:
    """Return each version of each key once. A delete is kept instead of the tombstone that follows it.

    The column `records` is the number of topic records that a row stands for. Its sum is the number of records that
    are not TRUNCATE markers.
    """
    same = Window.partitionBy("key", "position", "seq").orderBy("is_tombstone", f.desc("offset"))
    whole = same.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    rows = events.where("op <> 't'").repartition("key")
    counted = rows.withColumns({"rank": f.row_number().over(same), "records": f.count("*").over(whole)})
    return counted.where("rank = 1").drop("rank")


def newest(events: DataFrame) -> DataFrame:
    """Return the last version of each key, with `records` as in `versions`."""
    fields = [name for name in events.columns if name not in ("key", "position", "seq")]
    ordered = f.struct("position", "seq", (~f.col("is_tombstone")).alias("told"), *fields)
    rows = events.where("op <> 't'").groupBy("key").agg(f.max(ordered).alias("last"), f.count("*").alias("records"))
    return rows.select("key", "records", *(f.col(f"last.{name}").alias(name) for name in ("position", "seq", *fields)))


def loaded(rows: DataFrame, columns: Sequence[WarehouseColumn]) -> DataFrame:
    """Return what `typed` returns, for a bulk load: from `newest` of `typed_events`, without the history's columns."""
    told = f.when(f.col("op") == UNREAD, f.array_append("unfit", f.lit(UNREADABLE))).otherwise(f.col("unfit"))
    return rows.withColumn("unfit", told).select(
        *(f.col(f"row.c{number}").alias(column.name) for number, column in enumerate(columns)),
        f.col("position").alias(naming.POSITION),
        f.col("seq").alias(naming.SEQ),
        f.when(f.col("is_there"), f.col("op")).otherwise("d").alias(naming.OP),
        f.timestamp_micros("at_us").alias(naming.AT),
        f.col("records").alias(naming.RECORDS),
        *_place(),
    )


def typed(
    rows: DataFrame,
    columns: Sequence[WarehouseColumn],
    types: Mapping[str, str],
    shape: CompiledShape | None = None,
) -> DataFrame:
    """Return the table's columns under their warehouse names, Tailrace's own columns, and `PLACE`.

    `rows` come from `versions` or `newest`. Of a deleted row, or one that the store's `where` excludes, only the
    columns of the key are known.
    """
    read, computed = _shaped(rows, shape)
    # Drop `after`: every step that keeps it copies the whole row.
    read = read.withColumns({"text": f.coalesce("after", "key"), "is_gone": f.col("after").isNull()}).drop("after")
    wanted = {column.source: types[column.name] for column in columns if column.source not in computed}
    parsed = with_typed_columns(read, wanted, after="text")
    places = {name: f"c{number}" for number, name in enumerate(wanted)}
    kinds = ", ".join(f"{places[name]}: {kind}" for name, kind in wanted.items())
    flat = parsed.withColumn("row", f.col("row").cast(f"struct<{kinds}>"))
    values = [
        f.col("shaped.computed").getField(column.source).cast(types[column.name])
        if column.source in computed
        else f.col(f"row.{places[column.source]}")
        for column in columns
    ]
    is_unread = f.col("op") == UNREAD
    failure = f.array_compact(f.array(f.col("failure"), f.when(is_unread, f.lit(UNREADABLE))))
    return flat.withColumn("unfit", f.concat("unfit", failure)).select(
        *(value.alias(column.name) for value, column in zip(values, columns, strict=True)),
        f.col("position").alias(naming.POSITION),
        f.col("seq").alias(naming.SEQ),
        f.when(f.col("is_gone") & ~is_unread, f.lit("d")).otherwise(f.col("op")).alias(naming.OP),
        f.col("transaction_id").alias(naming.TRANSACTION),
        f.timestamp_micros(f.coalesce("ts_us", "written_us")).alias(naming.VALID_FROM),
        f.timestamp_micros(f.coalesce("ts_us", "written_us")).alias(naming.AT),
        f.col("records").alias(naming.RECORDS),
        *_place(),
    )


def _shaped(rows: DataFrame, shape: CompiledShape | None) -> tuple[DataFrame, frozenset[str]]:
    """Return the rows with their shape applied, and the names of the computed columns.

    `after` is NULL in rows that the shape excludes. The column `failure` is the error of the shape's expressions.
    """
    if shape is None or not shape.row.evaluated:
        return rows.withColumn("failure", f.lit(None).cast("string")), frozenset()
    judged = typed_shape(rows, shape)
    kept = f.when(f.col("shaped.kept") | f.col("shaped.failure").isNotNull(), f.col("after"))
    named = frozenset(field.name for field in shape.fields)
    return judged.withColumn("after", kept).withColumn("failure", f.col("shaped.failure")), named


def key_ranges(keys: Sequence[int], most: int = _MOST_RANGES) -> list[tuple[int, int]]:
    """Return at most `most` ranges that hold all keys, divided at the widest gaps. Spark skips files inside a gap."""
    ordered = sorted(set(keys))
    gaps = sorted(range(1, len(ordered)), key=lambda place: ordered[place - 1] - ordered[place])[: most - 1]
    starts = [0, *sorted(gaps), len(ordered)]
    return [(ordered[start], ordered[end - 1]) for start, end in pairwise(starts) if end > start]


def _place() -> list[Column]:
    """Return the columns of `PLACE` under names that no user column has, since user columns are in the same frame."""
    return [f.col(known).alias(name) for name, known in PLACE.items()]


def identity(key: Sequence[str], types: Mapping[str, str]) -> list[str]:
    """Return the columns that identify a row in a batch: the key's text, or the key's columns if it has a float column.

    In Postgres and in Spark -0 equals 0, but the texts differ. An update from one to the other is a delete and an
    insert of the same row.
    """
    return list(key) if any(types[name] in ("float", "double") for name in key) else [naming.KEY_TEXT]


def one_of_each_version(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Keep the insert where one version has a delete and an insert of the same row. `by` comes from `identity`."""
    return _first(rows, [*by, naming.POSITION, naming.SEQ], f.col(naming.OP) == "d")


def last_of_each_key(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the last version of each row. `by` comes from `identity`."""
    return _first(rows, by, f.desc(naming.POSITION), f.desc(naming.SEQ))


def _first(rows: DataFrame, by: Sequence[str], *order: Column) -> DataFrame:
    ordered = Window.partitionBy(*map(quoted, by)).orderBy(*order)
    return rows.withColumn(_RANK, f.row_number().over(ordered)).where(f"{_RANK} = 1").drop(_RANK)


def history_rows(rows: DataFrame, markers: Sequence[Marker], by: Sequence[str]) -> DataFrame:
    """Return each version with its end: the key's next version, or an earlier TRUNCATE. `rows` are typed and fit."""
    along = Window.partitionBy(*map(quoted, by)).orderBy(naming.POSITION, naming.SEQ)
    following = f.lead(_own_version()).over(along)
    truncated = f.array_min(f.filter(_ends(markers), lambda end: end > _own_version()))
    ended = rows.withColumn(_END, f.least(following, truncated))
    return ended.select(
        "*",
        f.col(f"{_END}.at").alias(naming.VALID_TO),
        f.col(f"{_END}.position").alias(naming.TO_POSITION),
        f.col(f"{_END}.seq").alias(naming.TO_SEQ),
        f.col(_END).isNull().alias(naming.OPEN),
        f.array(f.col(_END)).alias(naming.ENDS),
    )


def closings(rows: DataFrame, key: Sequence[str], markers: Sequence[Marker]) -> DataFrame:
    """Return one row per key with the versions that may end the version that is open in the history.

    `rows` are typed and fit.
    """
    of_key = rows.groupBy(*(f.col(quoted(name)) for name in key)).agg(
        f.collect_list(_own_version()).alias(_OWN), f.max(_own_version()).alias(_END)
    )
    return of_key.select(
        *(f.col(quoted(name)) for name in key),
        f.concat(_OWN, _ends(markers)).alias(naming.ENDS),
        f.col(f"{_END}.position").alias(naming.LAST_POSITION),
        f.col(f"{_END}.seq").alias(naming.LAST_SEQ),
    )


def _own_version() -> Column:
    return f.struct(
        f.col(naming.POSITION).alias("position"),
        f.col(naming.SEQ).alias("seq"),
        f.col(naming.VALID_FROM).alias("at"),
    )


def _ends(markers: Sequence[Marker]) -> Column:
    """Return the TRUNCATEs as an array of versions, without the markers of snapshots.

    A snapshot's marker does not end the rows that the snapshot has published again. Only rows that it did not find are
    deleted by its marker.
    """
    made = ", ".join(marker.as_end() for marker in markers if not marker.by_copy)
    kind = "array<struct<position: bigint, seq: int, at: timestamp>>"
    return f.expr(f"CAST(array({made}) AS {kind})")
