"""How errors of Spark jobs reach the driver.

A task returns an error that it expects as a result, pickled. A raised exception would reach the driver only as a text
with a traceback, which Spark prints several times. `spark_errors` handles what Spark itself raises.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cdc.errors import TransientError

_TRACE_WORDS: Final = ("at ", "An error occurred while calling", "File ", "Traceback")
_PYTHON_LINE: Final = re.compile(r"[\w/.-]*python[\d.]*: ")
_ERROR_OF_TASK: Final = re.compile(r"(?!org\.apache\.spark)[\w.]*[A-Z]\w*Error\b: ")
# The class of an error, or Spark's name of an error condition, such as [CAST_INVALID_INPUT].
_NAME: Final = re.compile(r"[\w.]*[A-Z]\w*(?:Error|Exception)\b|\[[A-Z][A-Z_.]+\]")
_LINE_CHARACTERS: Final = 300


def packed_error(error: Exception) -> bytes:
    """Return the error as a task's result."""
    return pickle.dumps(error)


def unpacked_error(data: bytes) -> Exception:
    """Return the error that a task has packed."""
    error: Exception = pickle.loads(data)  # noqa: S301 - our own task made it, and Spark unpickles all results itself
    return error


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Raise an error of Spark as TransientError. `what`: the sentence that says what failed."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith(("pyspark", "py4j")):
            raise TransientError(f"{what}: {error_line(error)}") from error
        raise


def error_line(error: object) -> str:
    """Return what names the error, out of the stack traces of Java and Python: without text that may quote a row.

    A line of the Python program itself, such as "python3: No module named cdc", is returned as it is.
    """
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(_TRACE_WORDS)]
    of_python = [line for line in telling if _PYTHON_LINE.match(line)]
    if of_python:
        return of_python[0][:_LINE_CHARACTERS]
    named = [line for line in telling if _ERROR_OF_TASK.match(line)]
    names = dict.fromkeys(_NAME.findall((named or telling or [""])[0]))
    unnamed = type(error).__name__ if isinstance(error, BaseException) else "no reason given"
    return ", ".join(names)[:_LINE_CHARACTERS] or unnamed
