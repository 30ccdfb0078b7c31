"""Checks the expressions of a shape without data: Spark analyses them over a row of NULLs with the table's types.

An expression is allowed if it always gives the same value for the same row. Subqueries, aggregates, windows, the
current time, random values and calls out of Spark are refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from cdc.config import TableShape
from cdc.stores.contract import SchemaColumn, TableSchema
from spark_jobs.session.spark_private import analysed_plan, is_java_instance, sql_parser
from spark_jobs.shape.computed_types import column_of
from spark_jobs.shape.shaped_rows import RowShape
from spark_jobs.shape.typed_rows import column_type, quoted

_PACKAGE: Final = "org.apache.spark.sql.catalyst.expressions."
_SUBQUERIES: Final = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery", "LateralSubquery"})
_REFUSED: Final = {
    **dict.fromkeys(_SUBQUERIES, "a subquery"),
    **dict.fromkeys(("UnresolvedStar", "UnresolvedStarWithColumns", "UnresolvedRegex"), "`*`"),
    **dict.fromkeys(("WindowExpression", "UnresolvedWindowExpression"), "a window"),
    **dict.fromkeys(("AggregateExpression",), "an aggregate"),
    **dict.fromkeys(
        ("CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime", "CurrentBatchTimestamp"),
        "the current time",
    ),
    **dict.fromkeys(
        ("CurrentTimeZone", "CurrentUser", "CurrentDatabase", "CurrentCatalog", "SparkVersion"), "the session"
    ),
    **dict.fromkeys(("CallMethodViaReflection", "TryReflect"), "a Java method call"),
    # It generates a new initialization vector each time, although Spark marks it as deterministic.
    "AesEncrypt": "`aes_encrypt`",
    **dict.fromkeys(("PythonUDF", "ScalaUDF", "PythonUDAF"), "a user-defined function"),
}
# These are refused by name before the analysis, because Spark loads the Java class that they name during the analysis.
_JAVA_CALLS: Final = frozenset({"reflect", "java_method", "try_reflect"})
# `date'today'`, or a text `'today'` that is cast to a date: Spark replaces both by the day of the analysis.
_MOVING_DAY: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_TIMES: Final = ("date", "timestamp", "timestamp_ntz")
_PLAIN_PLAN: Final = ("Project", "Project", "OneRowRelation")
# Positions in syntax errors start at 0, those in other errors at 1.
_AT: Final = re.compile(r"\(line (?P<line>\d+), pos (?P<pos>\d+)\)|SQL \(line (?P<line1>\d+), position (?P<pos1>\d+)\)")


@dataclass(frozen=True, slots=True)
class ShapeProblem:
    """An error in a shape.

    `key`: where it is in the shape: `("where",)`, `("columns",)` or `("select", field)`. `at`: the place within the
    expression, such as `character 7`, if it is known.
    """

    key: tuple[str, ...]
    at: str | None
    what: str

    def __str__(self) -> str:
        return f"{self.what} (at {self.at})" if self.at else self.what


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that Spark has analysed. `columns`: the columns that it reads."""

    name: str
    text: str
    columns: tuple[str, ...]
    type: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledShape:
    """A shape without errors. `source`: the table as captured. `schema`: the table as the store sees it."""

    source: TableSchema
    schema: TableSchema
    where: Expression | None
    fields: tuple[Expression, ...]
    row: RowShape

    @property
    def reads(self) -> TableSchema:
        """The table with only the columns that expressions read. The other columns need not be parsed."""
        read = {name for each in (self.where, *self.fields) if each is not None for name in each.columns}
        columns = tuple(column for column in self.source.columns if column.name in read)
        return self.source._replace(columns=columns or self.source.columns[:1])


def compile_shape(
    spark: SparkSession, table: TableSchema, shape: TableShape, *, lenient: bool = False
) -> CompiledShape | list[ShapeProblem]:
    """Return the compiled shape, or all of its errors. `spark`: a session of `shape_session`.

    `lenient`: a column in `columns` may be missing, because it may have been dropped after the store was built.
    """
    # Parsed from its text, so that the order of fields does not depend on where the shape came from.
    shape = TableShape.from_text(shape.text())
    with _quietly():
        analyst = _ExpressionAnalyzer(spark, table)
        where = analyst.where(shape.where) if shape.where is not None else None
        fields = [analyst.field(name, text) for name, text in shape.select.items()]
    problems = [*_column_problems(table, shape, lenient=lenient), *_found_problems([where, *fields])]
    if problems:
        return problems
    good = tuple(each for each in fields if isinstance(each, Expression))
    kept = None if shape.columns is None else frozenset({*shape.columns, *table.key})
    return CompiledShape(
        source=table,
        schema=_shaped_schema(table, kept, good),
        where=where if isinstance(where, Expression) else None,
        fields=good,
        row=RowShape(
            kept=kept,
            replaced=frozenset({each.name for each in good} & {column.name for column in table.columns}),
            evaluated=where is not None or bool(good),
        ),
    )


def parse_problems(spark: SparkSession, shape: TableShape) -> list[ShapeProblem]:
    """Return the errors of a shape that do not depend on the table's columns."""
    with _quietly():
        parser = _Parser(spark)
        found = [parser.problem(("where",), shape.where)] if shape.where is not None else []
        found += [parser.problem(("select", name), text) for name, text in shape.select.items()]
    return [problem for problem in found if problem is not None]


def _shaped_schema(table: TableSchema, kept: frozenset[str] | None, fields: tuple[Expression, ...]) -> TableSchema:
    computed = {each.name: column_of(each.name, each.type) or SchemaColumn(each.name, "text", -1) for each in fields}
    columns = [
        column for column in table.columns if (kept is None or column.name in kept) and column.name not in computed
    ]
    return table._replace(columns=(*columns, *computed.values()))


def _column_problems(table: TableSchema, shape: TableShape, *, lenient: bool) -> Iterator[ShapeProblem]:
    known = {column.name for column in table.columns}
    for name in shape.columns or ():
        if name not in known and not lenient:
            yield ShapeProblem(("columns",), None, f"{table} has no column `{name}`")
    for name in shape.select:
        if name in table.key:
            yield ShapeProblem(("select", name), None, "a column of the key cannot be replaced")


def _found_problems(found: list[Expression | ShapeProblem | None]) -> Iterator[ShapeProblem]:
    return (each for each in found if isinstance(each, ShapeProblem))


class _Parser:
    def __init__(self, spark: SparkSession) -> None:
        self._parser: Any = sql_parser(spark)

    def problem(self, key: tuple[str, ...], text: str) -> ShapeProblem | None:
        try:
            parsed = self._parser.parseExpression(text)
        except Exception as error:
            return _problem_of(key, error)
        return next((_refused(key, node, what) for node, what in _refused_nodes(parsed)), None)


class _ExpressionAnalyzer:
    def __init__(self, spark: SparkSession, table: TableSchema) -> None:
        columns = ", ".join(f"CAST(NULL AS {column_type(each)}) AS {quoted(each.name)}" for each in table.columns)
        self._parser = _Parser(spark)
        self._table: DataFrame = spark.sql(f"SELECT {columns}")

    def where(self, text: str) -> Expression | ShapeProblem:
        found = self._analysed(("where",), "where", text)
        if isinstance(found, Expression) and found.type.simpleString() != "boolean":
            return ShapeProblem(("where",), None, f"has type {found.type.simpleString()}, but must be boolean")
        return found

    def field(self, name: str, text: str) -> Expression | ShapeProblem:
        key = ("select", name)
        found = self._analysed(key, name, text)
        if isinstance(found, Expression) and column_of(name, found.type) is None:
            kind = found.type.simpleString()
            return ShapeProblem(key, None, f"has type {kind}, and stores have no form for it: cast it, or use to_json")
        return found

    def _analysed(self, key: tuple[str, ...], name: str, text: str) -> Expression | ShapeProblem:
        problem = self._parser.problem(key, text)
        if problem is not None:
            return problem
        try:
            frame = self._table.select(f.expr(text).alias("value"))
            plan: Any = analysed_plan(frame)
        except Exception as error:
            return _problem_of(key, error)
        expression = plan.expressions().apply(0)
        refused = next(_refused_nodes(expression), None)
        if refused is not None:
            return _refused(key, *refused)
        if not expression.deterministic():
            return ShapeProblem(key, None, "does not give the same value for the same row each time")
        if _plan_names(plan) != _PLAIN_PLAN:
            return ShapeProblem(key, None, "must be one value for each row: no aggregate, no window, no explode")
        return Expression(name, text, _references(expression), frame.schema["value"].dataType)


def _plan_names(plan: Any) -> tuple[str, ...]:
    names = []
    while True:
        names.append(plan.getClass().getSimpleName())
        children = plan.children()
        if children.size() != 1:
            return tuple(names)
        plan = children.apply(0)


def _references(expression: Any) -> tuple[str, ...]:
    found = expression.references().toSeq()
    return tuple(dict.fromkeys(str(found.apply(number).name()) for number in range(found.size())))


def _refused_nodes(expression: Any) -> Iterator[tuple[Any, str]]:
    name = str(expression.getClass().getName())
    short = name.rpartition(".")[2]
    if short in _REFUSED:
        yield expression, _REFUSED[short]
    elif short == "UnresolvedFunction" and str(expression.nameParts().last()).lower() in _JAVA_CALLS:
        yield expression, "a Java method call"
    elif _is_current_date_literal(short, expression):
        yield expression, "the current time"
    elif not name.startswith((_PACKAGE, "org.apache.spark.sql.catalyst.analysis.")):
        yield expression, f"`{expression.prettyName()}`"
    for child in _parts_of(expression):
        yield from _refused_nodes(child)


def _parts_of(expression: Any) -> Iterator[Any]:
    """Yield the expression's children and, if Spark replaces the expression at run time, its replacement."""
    children = expression.children()
    for number in range(children.size()):
        yield children.apply(number)
    if expression.resolved() and is_java_instance(expression, f"{_PACKAGE}RuntimeReplaceable"):
        yield expression.replacement()


def _is_current_date_literal(short: str, expression: Any) -> bool:
    if short not in ("Literal", "Cast") or expression.dataType().simpleString() not in _TIMES:
        return False
    if short == "Cast":
        child = expression.child()
        is_text = child.getClass().getSimpleName() == "Literal"
        return is_text and _MOVING_DAY.match(str(child.toString())) is not None
    origin = expression.origin()
    if not (origin.sqlText().isDefined() and origin.startIndex().isDefined() and origin.stopIndex().isDefined()):
        return False
    written = str(origin.sqlText().get())[origin.startIndex().get() : origin.stopIndex().get() + 1]
    return _MOVING_DAY.match(written.partition("'")[2]) is not None


def _refused(key: tuple[str, ...], node: Any, what: str) -> ShapeProblem:
    start = node.origin().startIndex()
    at = f"character {start.get() + 1}" if start.isDefined() else None
    return ShapeProblem(key, at, f"{what} is not allowed here")


def _problem_of(key: tuple[str, ...], error: Exception) -> ShapeProblem:
    lines = [line for line in str(error).splitlines() if line.strip()]
    first = re.sub(r"^\[[A-Z0-9_.]+\] ", "", lines[0]) if lines else type(error).__name__
    what = re.sub(r"\s*SQLSTATE: \w+\s*;?( line \d+ pos \d+)?\s*", "", _AT.sub("", first)).strip().rstrip(".;")
    return ShapeProblem(key, _place_of(error), what)


def _place_of(error: Exception) -> str | None:
    asked = getattr(error, "getQueryContext", None)
    contexts = asked() if asked is not None else None
    if contexts:
        return f"character {contexts[0].startIndex() + 1}"
    found = _AT.search(str(error))
    if found is None:
        return None
    line = int(found["line"] or found["line1"])
    character = int(found["pos"]) + 1 if found["pos"] else int(found["pos1"])
    return f"character {character}" if line == 1 else f"line {line}, character {character}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Turn off PySpark's log of the errors that it raises; it contains long Java stack traces."""
    logger = logging.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
