"""Evaluates shapes in the JVM: one more column that says of each row whether it is kept, and what was computed.

An expression that fails for a row (a cast, an overflow, a division by zero) must neither end the job nor pass as NULL:
it is wrapped in Catalyst's own `TryEval`, which no SQL function gives for any expression, around a struct: that is NULL
only where something was thrown. `shape_session` says which settings this needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sinks.typed_columns import spark_type
from spark_jobs.shape.analysis import CompiledShape, Expression
from spark_jobs.shape.computed_types import json_form
from spark_jobs.shape.typed_rows import is_unread, read_object, with_typed_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The type of the column that `with_shapes` adds; NULL where there is no row, or no expression for its topic.
SHAPED: Final = "struct<kept: boolean, computed: string, trouble: string>"
SETTINGS: Final = {
    # Errors are errors, and never NULL.
    "spark.sql.ansi.enabled": "true",
    # Postgres has "Total" beside total.
    "spark.sql.caseSensitive": "true",
    # What two expressions have in common would be computed before either, outside of `TryEval`.
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # `${env:PASSWORD}` in an expression is a text.
    "spark.sql.variable.substitute": "false",
}
# Columns of ours beside a user's of any name.
_OWN: Final = "__tailrace_"


def shape_session(spark: SparkSession) -> SparkSession:
    """A session of its own beside `spark`, with its settings (a catalog's too) but for those that shapes need."""
    from pyspark.sql import SparkSession as Session  # noqa: PLC0415 - takes half a second: only a job needs it

    session = Session(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


def with_shapes(frame: DataFrame, shapes: Mapping[str, CompiledShape]) -> DataFrame:
    """The frame of `read_topics` with a column `shaped`. `shapes`: by topic, those that have expressions."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes half a second: only a job needs it

    # A value that is not read leaves `shaped` NULL although there is a row: the row is parked.
    event = read_object(f.col("value").cast("string"), "after string")
    after = f.when(f.col("topic").isin(list(shapes)) & ~is_unread(event), event["after"])
    return shaped_after(frame.withColumn("after", after), shapes).drop("after")


def shaped_after(frame: DataFrame, shapes: Mapping[str, CompiledShape]) -> DataFrame:
    """As `with_shapes`, from `topic` and `after`: the row's JSON as text, NULL where the row is gone."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    names = frame.columns
    own = frame.toDF(*(_OWN + name for name in names))
    results = []
    for number, (topic, shape) in enumerate(shapes.items()):
        results.append(f"{_OWN}shaped{number}")
        mine = f.when(f.col(f"{_OWN}topic") == topic, f.col(f"{_OWN}after"))
        with _active(frame.sparkSession):
            own = _with_shape(own.withColumn(f"{_OWN}mine", mine), shape, results[-1])
    found = f.coalesce(*map(f.col, results)) if results else f.lit(None).cast(SHAPED)
    return own.select(*(f.col(_OWN + name).alias(name) for name in names), found.alias("shaped"))


def typed_shape(frame: DataFrame, shape: CompiledShape) -> DataFrame:
    """For a store with typed columns: a frame of one table, with the row's JSON in `after`, gets a column `shaped`.

    That is `struct<kept: boolean, computed: struct<…>, trouble: string>`, NULL where the row is gone; the computed
    fields have the types that `sinks.typed_columns.spark_type` gives the columns of `shape.schema`.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    names = frame.columns
    own = frame.toDF(*(_OWN + name for name in names)).withColumn(f"{_OWN}mine", f.col(f"{_OWN}after"))
    with _active(frame.sparkSession):
        found = _with_shape(own, shape, f"{_OWN}shaped", typed=True)
    return found.select(*(f.col(_OWN + name).alias(name) for name in (*names, "shaped")))


def _with_shape(frame: DataFrame, shape: CompiledShape, into: str, *, typed: bool = False) -> DataFrame:
    """Takes away the column `mine` and adds `into`. In steps, so that each value is computed once."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

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
    found = f.struct(kept.alias("kept"), computed_as.alias("computed"), f.coalesce(*failures).alias("trouble"))
    return computed.select(*carried, f.when(f.col(f"{_OWN}mine").isNotNull(), found).alias(into))


def _form(shape: CompiledShape, expression: Expression, *, typed: bool) -> Callable[[Column], Column]:
    if not typed:
        return lambda value: json_form(value, expression.type)
    column = next(column for column in shape.schema.columns if column.name == expression.name)
    return lambda value: value.cast(spark_type(column))


def _tried(expression: Expression | None, form: Callable[[Column], Column]) -> Column:
    """A struct of the value; NULL where the expression fails, or reads a value that does not fit its typed column."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    if expression is None:
        return f.struct(f.lit(True).alias("v"))
    result = try_eval(f.struct(form(f.expr(expression.text)).alias("v")))
    return f.when(~f.arrays_overlap(f.col(f"{_OWN}unfit"), _read_by(expression)), result)


def try_eval(column: Column) -> Column:
    """NULL where evaluating it throws."""
    from pyspark.sql import Column as SparkColumn  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession as Session  # noqa: PLC0415 - as above

    session = Session.getActiveSession()
    assert session is not None  # noqa: S101 - for the type checker: `_active` has made one so
    jvm: Any = session._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(convert.expression(column._jc))
    return SparkColumn(convert.column(tried))


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Expressions are parsed under the settings of this thread's active session."""
    jvm: Any = session._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _failure(expression: Expression | None) -> Column:
    """Why it has no value, without any value of the row."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    if expression is None:
        return f.lit(None).cast("string")
    unfit = f.array_intersect(f.col(f"{_OWN}unfit"), _read_by(expression))
    does_not_fit = f.concat(
        f.lit(f"{expression.name}: the value of "), f.element_at(unfit, 1), f.lit(" does not fit its typed column")
    )
    failed = f.lit(f"{expression.name}: the expression fails for this row (a cast, an overflow, a division by zero)")
    return f.when(f.size(unfit) > 0, does_not_fit).otherwise(failed)


def _read_by(expression: Expression) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    return f.array(*map(f.lit, expression.columns)).cast("array<string>")
