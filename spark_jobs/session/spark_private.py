"""The only module that uses private fields of PySpark and classes of Spark that are not part of its API.

Shapes need them: Spark has no public way to analyse an expression without running it, to turn any error of an
expression into NULL, or to copy a session with its settings. tests/integration/spark_jobs/session/test_spark_private.py
calls each function, and fails if a new Spark has changed what it uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession


def cloned_session(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of `spark`, catalogs included. (`newSession` starts with the defaults.)"""
    return type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())


def sql_parser(spark: SparkSession) -> Any:
    """Return Spark's parser, a Java object. `parseExpression(text)` returns an unresolved Catalyst expression."""
    return spark._jsparkSession.sessionState().sqlParser()


def analysed_plan(frame: DataFrame) -> Any:
    """Return the frame's analysed logical plan, a Java object."""
    return frame._jdf.queryExecution().analyzed()


def is_java_instance(java_object: Any, class_name: str) -> bool:
    """Return whether the Java object is an instance of the class."""
    return bool(is_instance_of(SparkContext._gateway, java_object, class_name))


def try_eval(column: Column) -> Column:
    """Return a column that is NULL where evaluating the given one raises an error."""
    jvm: Any = SparkContext._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(convert.expression(column._jc))
    return Column(convert.column(tried))


@contextmanager
def active_session(session: SparkSession) -> Iterator[None]:
    """Make `session` this thread's active session, because Spark parses expressions with that session's settings."""
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
