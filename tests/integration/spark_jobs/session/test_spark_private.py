"""Spark's private interfaces that shapes use are what they were: a new Spark that changes one fails here."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from spark_jobs.session.spark_private import (
    active_session,
    analysed_plan,
    cloned_session,
    is_java_instance,
    sql_parser,
    try_eval,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."


def test_a_cloned_session_has_its_own_settings_and_begins_with_the_others(spark: SparkSession) -> None:
    first = cloned_session(spark)
    first.conf.set("spark.sql.ansi.enabled", "false")
    second = cloned_session(first)
    second.conf.set("spark.sql.caseSensitive", "true")
    assert (second.conf.get("spark.sql.ansi.enabled"), first.conf.get("spark.sql.caseSensitive")) == ("false", "false")


def test_expressions_are_parsed_and_analysed_without_a_job(spark: SparkSession) -> None:
    parsed = sql_parser(spark).parseExpression("nosuch(a) + 1")
    assert parsed.getClass().getName() == f"{_EXPRESSIONS}Add"
    assert not parsed.resolved()
    plan = analysed_plan(spark.sql("SELECT 1 AS a").select(f.expr("nvl(a, 2)")))
    expression = plan.expressions().apply(0).child()
    assert (expression.resolved(), expression.deterministic(), expression.prettyName()) == (True, True, "nvl")
    assert is_java_instance(expression, f"{_EXPRESSIONS}RuntimeReplaceable")
    assert not is_java_instance(expression, f"{_EXPRESSIONS}Literal")


@pytest.mark.parametrize("text", ["cast(v AS int)", "1 / length(v)", "raise_error(v)"])
def test_any_error_of_an_expression_becomes_null(spark: SparkSession, text: str) -> None:
    """Also one for which Spark has no `try_` function."""
    frame = spark.createDataFrame([("",)], "v string")
    row = frame.select(try_eval(f.struct(f.expr(text).alias("x"))).alias("found")).first()
    assert row is not None
    assert row["found"] is None


def test_a_session_is_active_within_the_block_only(spark: SparkSession) -> None:
    other = cloned_session(spark)
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    with active_session(spark):
        with active_session(other):
            assert sessions.getActiveSession().get() == other._jsparkSession
        assert sessions.getActiveSession().get() == spark._jsparkSession


_STOPPED = """
from cdc.config import SparkConfig
from cdc.errors import TransientError
from spark_jobs.session.spark_session import spark_session
from spark_jobs.sync.sync import refuse_dead
spark = spark_session(SparkConfig(master="local[1]"), "test")
refuse_dead(spark)
if {killed}:
    spark.sparkContext._gateway.proc.kill()
    spark.sparkContext._gateway.proc.wait()
else:
    spark.stop()
try:
    refuse_dead(spark)
except TransientError as error:
    print(error.message)
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_spark_that_has_ended_is_noticed(killed: bool) -> None:
    """Its JVM was killed, or the context was stopped: the driver's process ends, and its supervisor starts another."""
    code = _STOPPED.format(killed=killed)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert "Spark has died" in found.stdout, found.stderr
