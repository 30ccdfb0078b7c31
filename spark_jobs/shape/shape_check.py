"""Checks the shapes of the config for `tailrace check`, in a short Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cdc.check.shapes import ShapeReport
from cdc.config import Config
from cdc.stores.contract import TableSchema
from spark_jobs.shape.config_errors import place_of
from spark_jobs.shape.local_session import local_session
from spark_jobs.shape.store_tables import shape_problems_in


def analyze_shapes(config: Config, stores: Sequence[str], tables: Mapping[str, TableSchema]) -> Iterator[ShapeReport]:
    """Yield a report for each of the named stores. `tables`: the known tables by topic."""
    with local_session(config, "tailrace-check") as spark:
        for name in stores:
            found = shape_problems_in(config.stores[name], spark, dict(tables))
            problems = [
                f"{place_of(config, name, table, problem)}: {problem}."
                for table, problems in found.items()
                for problem in problems
            ]
            yield ShapeReport(name, len(found), problems)
