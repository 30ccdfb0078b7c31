"""The one choice between ways to write a store: by rows, or by the tables' own class for a `TableStore`.

The classes are loaded by name, like the sinks themselves, because they stand on the jobs that use them.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, Final

from cdc.stores.registry import spark_writing
from spark_jobs.writing.contract import StoreWriting

_ROWS: Final = "spark_jobs.kinds.rows:RowWriting"


@cache
def writing_of(kind: str) -> StoreWriting[Any, Any]:
    """Return how Spark jobs write stores of this kind."""
    found = EntryPoint(kind, spark_writing(kind) or _ROWS, "tailrace").load()
    writing: StoreWriting[Any, Any] = found()
    return writing
