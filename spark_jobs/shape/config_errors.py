"""Turns errors of shapes into config errors that name the place in the config file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.config import Config, TableName
from cdc.config.toml.line_numbers import line_of
from cdc.errors import ConfigError
from spark_jobs.shape.analysis import ShapeProblem


def shape_error(config: Config, store: str, problems: Mapping[TableName, Sequence[ShapeProblem]]) -> ConfigError:
    """Return one config error with all errors of a store's shapes."""
    listed = [
        (place_of(config, store, table, problem), str(problem))
        for table, found in problems.items()
        for problem in found
    ]
    return ConfigError(str(config.file or "the config"), listed)


def place_of(config: Config, store: str, table: TableName, problem: ShapeProblem) -> str:
    """Return the place of an error, as in `line 9, [stores.search.shape."public.orders".select] total_cents`."""
    *section, key = problem.key
    words = ".".join(["stores", store, "shape", f'"{table}"', *section])
    line = _line(config, ("stores", store, "shape", str(table), *problem.key))
    return f"line {line}, [{words}] {key}" if line else f"[{words}] {key}"


def _line(config: Config, place: tuple[str, ...]) -> int | None:
    try:
        text = config.file.read_text() if config.file is not None else ""
    except OSError:
        return None
    return line_of(text, place)
