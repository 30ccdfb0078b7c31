"""The options of the data source `tailrace`. Reads the config file, and no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from cdc import names
from cdc.config import KafkaConfig, load_config
from cdc.config.toml.file import DEFAULT_FILE
from cdc.errors import UsageError

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
TEXT: Final = "text"
TYPED: Final = "typed"
_KAFKA: Final = "kafka."
# A task of the batch read keeps 24 bytes for each of its records (`latest_records`).
_TASK_RECORDS: Final = 10_000_000
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "table",
        "config",
        "bootstrap",
        "prefix",
        "types",
        "allowIncomplete",
        "maxRecordsPerTask",
        "startingOffsets",
        "maxRecordsPerBatch",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options. Picklable; it holds secrets, so pass it only to tasks."""

    table: str
    prefix: str
    #: librdkafka's.
    kafka: dict[str, str] = field(repr=False)
    #: Every column is a string with the value's exact text.
    as_text: bool = False
    allow_incomplete: bool = False
    max_records_per_task: int = _TASK_RECORDS
    starting_offsets: str = EARLIEST
    #: 0: no limit.
    max_records_per_batch: int = 0

    @classmethod
    def read(cls, options: Mapping[str, str], folder: Path | None = None) -> SourceOptions:
        """Check Spark's options. `folder`: where the default config file is, by default the working directory."""
        plain = {name.lower(): value for name, value in options.items() if not name.lower().startswith(_KAFKA)}
        client = {name[len(_KAFKA) :]: value for name, value in options.items() if name.lower().startswith(_KAFKA)}
        for name in plain:
            if name not in _KNOWN:
                raise UsageError(f"tailrace has no option {name!r}.{_near(name, _KNOWN)}")
        if not plain.get("table"):
            raise UsageError('Name the table: .option("table", "public.orders").')
        kafka, prefix = _connection(plain, client, folder or Path())
        return cls(
            table=plain["table"],
            prefix=prefix,
            kafka=kafka,
            as_text=_choice(plain, "types", TYPED, (TYPED, TEXT)) == TEXT,
            allow_incomplete=_choice(plain, "allowIncomplete", "false", ("true", "false")) == "true",
            max_records_per_task=_count(plain, "maxRecordsPerTask", _TASK_RECORDS),
            starting_offsets=_choice(plain, "startingOffsets", EARLIEST, (EARLIEST, LATEST)),
            max_records_per_batch=_count(plain, "maxRecordsPerBatch", 0),
        )


def _connection(plain: Mapping[str, str], client: Mapping[str, str], folder: Path) -> tuple[dict[str, str], str]:
    """Return librdkafka's options and the prefix, from the config file or from `bootstrap` and `prefix`."""
    if "bootstrap" in plain:
        if "config" in plain:
            raise UsageError('Set either the option "config", or "bootstrap" and "prefix".')
        kafka = KafkaConfig(bootstrap=plain["bootstrap"], prefix=plain.get("prefix", ""))
    else:
        file = Path(plain["config"]) if "config" in plain else folder / DEFAULT_FILE
        if "config" not in plain and not file.exists():
            raise UsageError(
                f'No broker: set the option "config" to the path of {DEFAULT_FILE}, or "bootstrap" and "prefix".'
            )
        kafka = load_config(file).kafka
    prefix = plain.get("prefix", kafka.prefix)
    if not names.is_prefix(prefix):
        raise UsageError(f'The option "prefix" is missing or wrong: {names.PREFIX_RULE}.')
    return {**kafka.client_options(), **client}, prefix


def _choice(plain: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = plain.get(name.lower(), default).lower()
    if value not in allowed:
        raise UsageError(f'The option "{name}" must be {" or ".join(allowed)}, not {value!r}.')
    return value


def _count(plain: Mapping[str, str], name: str, default: int) -> int:
    text = plain.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f'The option "{name}" must be a number from 1 up, not {text!r}.')
    return int(text)


def _near(name: str, known: Mapping[str, str]) -> str:
    found = get_close_matches(name, known, n=1)
    return f" Did you mean {known[found[0]]!r}?" if found else f" It has: {', '.join(known.values())}, kafka.…"
