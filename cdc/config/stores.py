"""`[stores.NAME]`: one dataclass for each kind of store, chosen by its `kind`.

A package of its own adds a kind by a subclass of `SyncedStoreConfig`, under the kind's name in the entry-point group
`tailrace.settings`. The built-in kinds are listed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final, Literal, cast

from cdc.config.settings import Location, Problem, about, at_least, between, matching, not_empty, scheme
from cdc.config.shape import Shaped, shape_problems
from cdc.config.tables import ColumnName
from cdc.config.tls import TlsConfig
from cdc.names import PREFIX_PATTERN, PREFIX_RULE
from cdc.secrets import Secret, SecretOptions, Url

_GROUP = "tailrace.settings"
_PREFIX = matching(PREFIX_PATTERN, PREFIX_RULE)
# Elasticsearch types for JSON objects. A row's values are numbers, texts, booleans and arrays of them.
_OBJECT_TYPES = ("flattened", "nested", "object")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedStoreConfig(Shaped):
    """Keys of every kind of store: how `tailrace sync` writes to it. A kind restricts `kind` to its own name."""

    kind: str = field(metadata=about("Kind of store"))
    trigger_milliseconds: int = field(
        default=100, metadata=about("Shortest interval between the starts of two batches", between(0, 3_600_000))
    )
    max_events_per_batch: int = field(default=50_000, metadata=about("Most events in one batch", at_least(1)))
    parallelism: int = field(
        default=2, metadata=about("Most tasks that write to the store in parallel", between(1, 1000))
    )

    @property
    def evicts_rows(self) -> bool:
        """Whether the store may drop rows by itself, so that a missing row is no difference."""
        return False

    @classmethod
    def kinds(cls) -> list[str]:
        """Return the names of all kinds, including those of installed packages."""
        return list(dict.fromkeys([*BUILT_IN, *entry_points(group=_GROUP).names]))

    @classmethod
    def of_kind(cls, kind: str) -> type[SyncedStoreConfig]:
        """Return the settings of one of `kinds()`. Imports the package that has it."""
        if kind in BUILT_IN:
            return BUILT_IN[kind]
        return cast("type[SyncedStoreConfig]", entry_points(group=_GROUP)[kind].load())


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig(SyncedStoreConfig):
    """Keys of Elasticsearch and OpenSearch."""

    url: Url = field(metadata=about("Address of the server", scheme("http", "https")))
    username: str | None = field(default=None, metadata=about("User name for basic authentication"))
    password: Secret | None = field(default=None, metadata=about("Password of that user"))
    tls: TlsConfig | None = field(default=None, metadata=about("Certificates; only for https"))
    prefix: str | None = field(
        default=None, metadata=about("Prefix of its index names, instead of `kafka.prefix`", _PREFIX)
    )
    mapping: Mapping[ColumnName, SecretOptions] = field(
        default_factory=dict, metadata=about("Field mapping of a column, instead of the default for its type")
    )
    shards: int = field(default=1, metadata=about("Primary shards of each index", between(1, 1024)))
    replicas: int | None = field(
        default=None,
        metadata=about(
            "Replicas of each shard; default: 1 if the cluster has a second node, otherwise 0", between(0, 32)
        ),
    )
    refresh_milliseconds: int = field(
        default=1000, metadata=about("Longest time until a search finds a written row", between(50, 3_600_000))
    )
    bulk_bytes: int = field(default=5_000_000, metadata=about("Size of one bulk request", between(100_000, 90_000_000)))
    tombstone_hours: int = field(
        default=24, metadata=about("How long the store keeps the version of a deleted row", at_least(1))
    )

    def problems(self) -> Iterator[Problem]:
        yield from shape_problems(self)
        if (self.username is None) != (self.password is None):
            yield "username", "`username` and `password` must be set together"
        if self.tls is not None and not self.url.reveal().startswith("https:"):
            yield "tls", "needs an https:// url"
        for column, options in self.mapping.items():
            if "type" not in options:
                yield "mapping", f"{column} needs a `type`"
            elif options["type"] in _OBJECT_TYPES and options.get("enabled") != "false":
                yield "mapping", f"{column} cannot have type {options['type']}: its values are not JSON objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticsearchConfig(SearchConfig):
    kind: Literal["elasticsearch"] = field(default="elasticsearch", metadata=about("Kind of store"))
    api_key: Secret | None = field(default=None, metadata=about("API key, instead of a user (base64 form)"))

    def problems(self) -> Iterator[Problem]:
        yield from SearchConfig.problems(self)
        if self.api_key is not None and self.username is not None:
            yield "api_key", "set either `api_key` or `username`, not both"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSearchConfig(SearchConfig):
    kind: Literal["opensearch"] = field(default="opensearch", metadata=about("Kind of store"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig(SyncedStoreConfig):
    kind: Literal["redis"] = field(default="redis", metadata=about("Kind of store"))
    url: Url = field(metadata=about("Address of the server, with the database number", scheme("redis", "rediss")))
    username: str | None = field(default=None, metadata=about("ACL user"))
    password: Secret | None = field(default=None, metadata=about("Password, if the URL has none"))
    tls: TlsConfig | None = field(default=None, metadata=about("Certificates; only for rediss"))
    prefix: str | None = field(default=None, metadata=about("Prefix of its keys, instead of `kafka.prefix`", _PREFIX))
    tombstone_hours: int = field(
        default=24, metadata=about("How long the store keeps the version of a deleted row", at_least(1))
    )
    eviction: bool = field(default=False, metadata=about("Accept a server that evicts keys: evicted rows stay missing"))

    @property
    def evicts_rows(self) -> bool:
        return self.eviction

    def problems(self) -> Iterator[Problem]:
        yield from shape_problems(self)
        if self.tls is not None and not self.url.reveal().startswith("rediss:"):
            yield "tls", "needs a rediss:// url"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergConfig(SyncedStoreConfig):
    kind: Literal["iceberg"] = field(default="iceberg", metadata=about("Kind of store"))
    path: Location = field(metadata=about("Folder or URI for the warehouse's files", not_empty))
    catalog_uri: Url | None = field(
        default=None,
        metadata=about(
            "Postgres or REST catalog; default: a SQLite file at `<path>/catalog.db`",
            scheme("postgresql", "postgres", "http", "https"),
        ),
    )
    catalog_username: str | None = field(default=None, metadata=about("User name for the catalog"))
    catalog_password: Secret | None = field(default=None, metadata=about("Password of that user"))
    options: SecretOptions = field(
        default_factory=SecretOptions,
        metadata=about("Further properties of the Iceberg catalog, such as those of the object storage"),
    )
    string_columns: tuple[ColumnName, ...] = field(
        default=(), metadata=about("Columns to store as text, because their values do not fit a typed column")
    )
    trigger_milliseconds: int = field(
        default=30_000, metadata=about("Shortest interval between the starts of two batches", between(0, 3_600_000))
    )
    max_events_per_batch: int = field(default=500_000, metadata=about("Most events in one batch", at_least(1)))
    target_file_bytes: int = field(
        default=128 << 20, metadata=about("Target size of data files", between(1 << 20, 2 << 30))
    )
    maintain_hours: float = field(
        default=24.0, metadata=about("Interval between maintenance runs by `tailrace run`; 0: never", between(0, 8760))
    )
    snapshot_retention_hours: float = field(
        default=120.0,
        metadata=about(
            "How long Iceberg keeps snapshots other than the newest", between(0, 87_600), formerly="snapshot_hours"
        ),
    )

    def problems(self) -> Iterator[Problem]:
        yield from shape_problems(self)
        if "://" in self.path and self.catalog_uri is None:
            yield "catalog_uri", "needed when `path` is a URI: a SQLite catalog needs a local folder"


BUILT_IN: Final[Mapping[str, type[SyncedStoreConfig]]] = {
    "elasticsearch": ElasticsearchConfig,
    "opensearch": OpenSearchConfig,
    "redis": RedisConfig,
    "iceberg": IcebergConfig,
}
