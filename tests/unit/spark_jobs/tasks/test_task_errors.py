"""Errors of tasks reach the driver as they are, and errors of Spark as the line that names them."""

from __future__ import annotations

import pytest

from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.snapshot.source_reader import SnapshotLostError
from cdc.stores.contract import PositionLostError, TakenOverError
from spark_jobs.tasks.task_errors import error_line, packed_error, unpacked_error


@pytest.mark.parametrize("kind", [RefusedError, TransientError, TakenOverError, PositionLostError])
def test_an_error_of_a_task_keeps_its_type_its_message_and_its_remedy(kind: type[TailraceError]) -> None:
    """The driver decides by the type whether it retries."""
    error = unpacked_error(packed_error(kind("The store is full.", remedy="Make room.")))
    assert (type(error), str(error)) == (kind, "The store is full. Make room.")
    assert isinstance(error, TailraceError)
    assert (error.message, error.remedy) == ("The store is full.", "Make room.")


def test_an_error_outside_of_the_tree_is_carried_too() -> None:
    """After a lost snapshot the audit starts again, so this is no error for the operator."""
    error = unpacked_error(packed_error(SnapshotLostError("gone")))
    assert (type(error), str(error)) == (SnapshotLostError, "gone")


def test_a_failed_job_says_what_is_wrong() -> None:
    """Not the first of a hundred lines of stack traces, which is the same whatever happened."""
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times\n"
        "Error from python worker:\n"
        "  /usr/bin/python3: Error while finding module specification for 'x' (ModuleNotFoundError: No module)\n"
        "\tat org.apache.spark.errors.SparkCoreErrors$.eof(SparkCoreErrors.scala:55)\n"
    )
    assert "ModuleNotFoundError" in error_line(text)
    assert error_line("") == "no reason given"


def test_an_error_line_quotes_no_row() -> None:
    """The text of an error in a task can contain a value of a row. Logs show only the error's name."""
    python = (
        "An error occurred while calling o7.collect.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed\n"
        "Traceback (most recent call last):\n"
        "ValueError: invalid literal for int() with base 10: 'secret'\n"
    )
    assert error_line(python) == "ValueError"
    java = "Task 0: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'secret' is malformed."
    assert error_line(java) == "org.apache.spark.SparkNumberFormatException, [CAST_INVALID_INPUT]"


def test_an_error_without_text_has_its_type() -> None:
    """A driver's own error may have no text."""
    assert error_line(TimeoutError()) == "TimeoutError"
