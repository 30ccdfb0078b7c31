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
_NAMED_ERROR: Final = re.compile(r"^(?!org\.apache\.spark).*\b[A-Z]\w+Error\b: .|^[\w/.-]*python\S*: ")
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
    """Return the line that names the error, out of the stack traces of Java and Python."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(_TRACE_WORDS)]
    named = [line for line in telling if _NAMED_ERROR.search(line)]
    return (named or telling or ["no reason given"])[0][:_LINE_CHARACTERS]
