"""docs/reference/config.md names every key of the config with its type, default and meaning, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cdc.config import ColumnName, Config, Mask, TableName, TableSelector, TableShape, parse_config
from cdc.config.settings import Location
from cdc.config.stores import BUILT_IN
from cdc.config.toml.reader import settings_of
from cdc.config.toml.report import plain_value, toml_value
from cdc.secrets import Dsn, Secret, SecretOptions, Url, WebhookUrl

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "config.md"
#: Section, key, type, default, meaning: a row of a table under the section's heading.
Row = tuple[str, str, str, str, str]

_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    Path: "path",
    Location: "path or URI",
    Secret: "string, secret",
    Url: "URL",
    WebhookUrl: "URL, secret",
    Dsn: "connection string",
    SecretOptions: "table of strings",
    tuple[TableSelector, ...]: "array of strings",
    tuple[ColumnName, ...]: "array of strings",
    tuple[str, ...]: "array of strings",
    Mapping[str, str]: "table of strings",
}


def declared_rows(kind: type = Config, section: str = "", note: str = "") -> Iterator[Row]:
    for name, (declared, hint) in settings_of(kind).items():
        inner = f"{section}.{name}" if section else name
        options = [option for option in get_args(hint) if option is not type(None)]
        wanted = options[0] if type(None) in get_args(hint) else hint
        if wanted == Mapping[ColumnName, Mask]:
            yield inner, '"schema.table.column"', "hash, null, fixed:TEXT or none", "", declared.metadata["doc"]
        elif wanted == Mapping[TableName, tuple[str, ...]]:
            yield inner, '"schema.table"', "array of strings", "", declared.metadata["doc"]
        elif wanted == Mapping[ColumnName, SecretOptions]:
            yield inner, '"schema.table.column"', "table of strings", "", declared.metadata["doc"]
        elif wanted == Mapping[TableName, TableShape]:
            yield from declared_rows(TableShape, f'{inner}."schema.table"')
        elif get_origin(wanted) is Mapping and wanted not in _TYPES:
            for store_kind, store in BUILT_IN.items():
                yield from declared_rows(store, f"{inner}.NAME", f" with kind = {store_kind}")
        elif dataclasses.is_dataclass(wanted):
            yield from declared_rows(wanted, inner)  # type: ignore[arg-type]
        else:
            type_name = ", ".join(get_args(wanted)) if get_origin(wanted) is Literal else _TYPES[wanted]
            yield section + note, name, type_name, _default(declared, name), declared.metadata["doc"]


def _default(declared: dataclasses.Field[Any], name: str) -> str:
    if declared.default_factory is not dataclasses.MISSING or declared.default is None:
        return ""
    if declared.default is dataclasses.MISSING or name == "kind":
        return "required"
    return f"`{toml_value(plain_value(declared.default))}`"


def documented_rows() -> Iterator[Row]:
    section = ""
    for line in PAGE.read_text().splitlines():
        heading = re.fullmatch(r"#+ `\[(.+)\]`(.*)", line)
        row = re.fullmatch(r"\| `(.+?)` \| (.*?) \| (.*?) \| (.*) \|", line)
        if heading is not None:
            section = heading[1] + heading[2].replace("`", "").replace('"', "")
        elif row is not None:
            yield section, row[1], row[2].replace("`", ""), row[3], row[4]


def test_the_page_names_every_key_and_nothing_else() -> None:
    """The page has exactly the keys of the code, with the same types, defaults and meanings."""
    documented = list(documented_rows())
    assert sorted(documented) == sorted(set(declared_rows()))


def test_the_examples_on_the_page_are_good() -> None:
    """Every complete TOML example on the page is a valid config."""
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    whole = [example for example in examples if "[source]" in example and "[kafka]" in example]
    assert whole
    for example in whole:
        names = re.findall(r"(?<!\$)\$\{(\w+)\}", example)
        parse_config(example, file=Path("/etc/tailrace.toml"), environment=dict.fromkeys(names, "x"))
