"""Reads `tailrace.toml`: returns the whole config, or raises one error that lists every problem."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdc.config.model import Config
from cdc.config.toml.interpolation import UNRESOLVED, interpolate
from cdc.config.toml.line_numbers import line_of
from cdc.config.toml.reader import ConfigReader, Place
from cdc.errors import ConfigError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

DEFAULT_FILE = Path("tailrace.toml")
_HOW_TO_MAKE_ONE = """\
Name another file with --config or TAILRACE_CONFIG, or create one. The smallest is:

  [source]
  dsn = "postgresql://tailrace@localhost:5432/shop"

  [kafka]
  bootstrap = "localhost:9092"
  prefix = "shop"

docs/reference/config.md lists every key."""


def load_config(path: Path | str = DEFAULT_FILE, environment: Mapping[str, str] | None = None) -> Config:
    """Return the config in `path`. `${NAME}` is looked up in `environment` (default: the process's own)."""
    path = Path(path)
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise UsageError(f"{path}: the config file does not exist.", remedy=_HOW_TO_MAKE_ONE) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [("", f"not UTF-8 text (byte {error.start})")]) from None
    return parse_config(text, file=path, environment=os.environ if environment is None else environment)


def parse_config(text: str, *, file: Path, environment: Mapping[str, str]) -> Config:
    """Return the config in `text`. Relative paths start from the folder of `file`."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(file), [("", f"not TOML: {str(error).splitlines()[0]}")]) from None
    reader = ConfigReader(file.absolute().parent)
    tree = _interpolated(tree, environment, (), reader.problems)
    config = reader.section(Config, tree, ())
    if reader.problems:
        raise ConfigError(str(file), _report(text, reader.problems))
    assert isinstance(config, Config)  # noqa: S101 - for the type checker: no problems means a Config
    return dataclasses.replace(config, file=file.absolute())


def _interpolated(value: Any, environment: Mapping[str, str], place: Place, problems: list[tuple[Place, str]]) -> Any:
    if isinstance(value, dict):
        return {key: _interpolated(member, environment, (*place, key), problems) for key, member in value.items()}
    if isinstance(value, list):
        return [_interpolated(member, environment, (*place, index), problems) for index, member in enumerate(value)]
    if not isinstance(value, str):
        return value
    result, wrong = interpolate(value, environment)
    problems.extend((place, what) for what in wrong)
    return UNRESOLVED if wrong else result


def _report(text: str, problems: list[tuple[Place, str]]) -> list[tuple[str, str]]:
    """Return the problems in the order of their lines, each once, with its place: `line 9, [kafka] partitions`."""
    seen = dict.fromkeys(problems)
    placed = [(line_of(text, place), place, what) for place, what in seen]
    placed.sort(key=lambda entry: entry[0] or sys.maxsize)
    return [(f"line {line}, {_in_words(place)}" if line else _in_words(place), what) for line, place, what in placed]


def _in_words(place: Place) -> str:
    keys = [part for part in place if isinstance(part, str)]
    indices = "".join(f"[{part}]" for part in place if isinstance(part, int))
    if len(keys) == 1:
        return f"[{keys[0]}]"
    return f"[{'.'.join(keys[:-1])}] {keys[-1]}{indices}"
