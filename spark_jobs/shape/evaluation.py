"""Evaluates shapes in the JVM: adds a column with each row's computed fields, and whether the store gets the row.

An expression that fails for a row (a cast, an overflow, a division by zero) must neither end the job nor count as NULL.
So each expression is put into a struct and wrapped in Catalyst's `TryEval`: the struct is NULL only if the expression
raised an error. No SQL function applies `TryEval` to any expression. `shape_session` sets the options that this needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from sinks.typed_columns import spark_type
from spark_jobs.session.spark_private import active_session, cloned_session, try_eval
from spark_jobs.shape.analysis import CompiledShape, Expression
from spark_jobs.shape.computed_types import json_form
from spark_jobs.shape.typed_rows import is_unread, read_object, with_typed_rows

#: The type of the column that `with_shapes` adds. It is NULL if there is no row, or no expression for the topic.
SHAPED: Final = "struct<kept: boolean, computed: string, failure: string>"
SETTINGS: Final = {
    # Failed casts and overflows raise errors instead of giving NULL.
    "spark.sql.ansi.enabled": "true",
    # A Postgres table can have both "Total" and total.
    "spark.sql.caseSensitive": "true",
    # Spark would evaluate a common part of two expressions before either of them, outside of `TryEval`.
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark must not replace `${env:PASSWORD}` in an expression.
    "spark.sql.variable.substitute": "false",
}
# Prefix of internal columns, so that they do not clash with a table's columns.
_OWN: Final = "__tailrace_"


def shape_session(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of `spark`, catalogs included, and with those that shapes need."""
    session = cloned_session(spark)
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


def with_shapes(frame: DataFrame, shapes: Mapping[str, CompiledShape]) -> DataFrame:
    """Add the column `shaped` to a frame of `read_topic_frame`. `shapes`: by topic, those that have expressions."""
    # If the event cannot be read as JSON, `shaped` is NULL although there is a row. The sink then parks the row.
    event = read_object(f.col("value").cast("string"), "after string")
    after = f.when(f.col("topic").isin(list(shapes)) & ~is_unread(event), event["after"])
    return shaped_after(frame.withColumn("after", after), shapes).drop("after")


def shaped_after(frame: DataFrame, shapes: Mapping[str, CompiledShape]) -> DataFrame:
    """Add the column `shaped` to a frame with the columns `topic` and `after`.

    `after`: the row's JSON as text, NULL if the row was deleted.
    """
    names = frame.columns
    own = frame.toDF(*(_OWN + name for name in names))
    results = []
    for number, (topic, shape) in enumerate(shapes.items()):
        results.append(f"{_OWN}shaped{number}")
        mine = f.when(f.col(f"{_OWN}topic") == topic, f.col(f"{_OWN}after"))
        with active_session(frame.sparkSession):
            own = _with_shape(own.withColumn(f"{_OWN}mine", mine), shape, results[-1])
    found = f.coalesce(*map(f.col, results)) if results else f.lit(None).cast(SHAPED)
    return own.select(*(f.col(_OWN + name).alias(name) for name in names), found.alias("shaped"))


def typed_shape(frame: DataFrame, shape: CompiledShape) -> DataFrame:
    """Add the column `shaped` to a frame of one table with the row's JSON in `after`, for a store with typed columns.

    Its type is `struct<kept: boolean, computed: struct<…>, failure: string>`. It is NULL if the row was deleted. The
    computed fields have the types that `sinks.typed_columns.spark_type` gives the columns of `shape.schema`.
    """
    names = frame.columns
    own = frame.toDF(*(_OWN + name for name in names)).withColumn(f"{_OWN}mine", f.col(f"{_OWN}after"))
    with active_session(frame.sparkSession):
        found = _with_shape(own, shape, f"{_OWN}shaped", typed=True)
    return found.select(*(f.col(_OWN + name).alias(name) for name in (*names, "shaped")))


def _with_shape(frame: DataFrame, shape: CompiledShape, into: str, *, typed: bool = False) -> DataFrame:
    """Evaluate a shape: drop the column `mine` and add the column `into`.

    This takes several `select` steps, so that Spark computes each value once.
    """
    reads = shape.reads
    carried = [name for name in frame.columns if name != f"{_OWN}mine"]
    own = [*carried, f"{_OWN}mine", f"{_OWN}unfit"]
    parsed = with_typed_rows(frame, reads, after=f"{_OWN}mine").withColumnRenamed("unfit", f"{_OWN}unfit")
    columns = [column.name for column in reads.columns]
    named = parsed.select(*own, *(f.col("row").getField(name).alias(name) for name in columns))
    judged = named.select("*", _tried(shape.where, lambda value: value).alias(f"{_OWN}where"))
    kept = f.coalesce(f.col(f"{_OWN}where.v"), f.lit(False))
    results = [f"{_OWN}field{number}" for number in range(len(shape.fields))]
    computed = judged.select(
        *own,
        f"{_OWN}where",
        *(
            f.when(kept, _tried(each, _form(shape, each, typed=typed))).alias(result)
            for each, result in zip(shape.fields, results, strict=True)
        ),
    )
    failures = [
        f.when(f.col(f"{_OWN}where").isNull(), _failure(shape.where)),
        *(
            f.when(kept & f.col(result).isNull(), _failure(each))
            for each, result in zip(shape.fields, results, strict=True)
        ),
    ]
    fields = [f.col(f"{result}.v").alias(each.name) for each, result in zip(shape.fields, results, strict=True)]
    values = f.struct(*fields) if fields else f.lit(None).cast("string")
    computed_as = f.to_json(values, {"ignoreNullFields": "false"}) if fields and not typed else values
    found = f.struct(kept.alias("kept"), computed_as.alias("computed"), f.coalesce(*failures).alias("failure"))
    return computed.select(*carried, f.when(f.col(f"{_OWN}mine").isNotNull(), found).alias(into))


def _form(shape: CompiledShape, expression: Expression, *, typed: bool) -> Callable[[Column], Column]:
    if not typed:
        return lambda value: json_form(value, expression.type)
    column = next(column for column in shape.schema.columns if column.name == expression.name)
    return lambda value: value.cast(spark_type(column))


def _tried(expression: Expression | None, form: Callable[[Column], Column]) -> Column:
    """Return a struct of the value. It is NULL if the expression fails, or reads a value that does not fit its type."""
    if expression is None:
        return f.struct(f.lit(True).alias("v"))
    result = try_eval(f.struct(form(f.expr(expression.text)).alias("v")))
    return f.when(~f.arrays_overlap(f.col(f"{_OWN}unfit"), _read_by(expression)), result)


def _failure(expression: Expression | None) -> Column:
    """Return the reason why an expression has no value. It contains no value of the row."""
    if expression is None:
        return f.lit(None).cast("string")
    unfit = f.array_intersect(f.col(f"{_OWN}unfit"), _read_by(expression))
    does_not_fit = f.concat(
        f.lit(f"{expression.name}: the value of "), f.element_at(unfit, 1), f.lit(" does not fit its typed column")
    )
    failed = f.lit(f"{expression.name}: the expression fails for this row (a cast, an overflow, a division by zero)")
    return f.when(f.size(unfit) > 0, does_not_fit).otherwise(failed)


def _read_by(expression: Expression) -> Column:
    return f.array(*map(f.lit, expression.columns)).cast("array<string>")
