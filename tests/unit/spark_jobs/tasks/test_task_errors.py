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
