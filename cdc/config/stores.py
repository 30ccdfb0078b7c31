"""`[stores.NAME]`: one dataclass for each kind of store, chosen by its `kind`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdc.config.settings import Location, Problem, about, at_least, between, matching, not_empty, scheme
from cdc.config.shape import Shaped, shape_problems
from cdc.config.tables import ColumnName
from cdc.config.tls import TlsConfig
from cdc.names import PREFIX_PATTERN, PREFIX_RULE
from cdc.secrets import Secret, SecretOptions, Url

_PREFIX = matching(PREFIX_PATTERN, PREFIX_RULE)
# What a row holds is a number, a text, a truth value or a list of them: these types want JSON objects.
_OBJECT_TYPES = ("flattened", "nested", "object")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed(Shaped):
    """How `tailrace sync` feeds a store; the same for every kind that is fed row by row."""

    trigger_milliseconds: int = field(
        default=100, metadata=about("Shortest time between the starts of two batches", between(0, 3_600_000))
    )
    max_events_per_batch: int = field(default=50_000, metadata=about("Most events of one batch", at_least(1)))
    parallelism: int = field(
        default=2, metadata=about("Most tasks that write to the store at the same time", between(1, 1000))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticsearchConfig(Fed):
    kind: Literal["elasticsearch"] = field(default="elasticsearch", metadata=about("What the store is"))
    url: Url = field(metadata=about("Where the server answers", scheme("http", "https")))
    username: str | None = field(default=None, metadata=about("User for basic authentication"))
    password: Secret | None = field(default=None, metadata=about("That user's password"))
    api_key: Secret | None = field(default=None, metadata=about("API key, instead of a user (base64 form)"))
    tls: TlsConfig | None = field(default=None, metadata=about("Certificates; only for https"))
    prefix: str | None = field(
        default=None, metadata=about("First part of its names, instead of `kafka.prefix`", _PREFIX)
    )
    mapping: Mapping[ColumnName, SecretOptions] = field(
        default_factory=dict, metadata=about("How a column is indexed, instead of what its type suggests")
    )
    shards: int = field(default=1, metadata=about("Primary shards of each index", between(1, 1024)))
    replicas: int | None = field(
        default=None,
        metadata=about("Copies of each shard; without it one, where the cluster has a second node", between(0, 32)),
    )
    refresh_milliseconds: int = field(
        default=1000, metadata=about("Longest time until a search sees what was written", between(50, 3_600_000))
    )
    bulk_bytes: int = field(default=5_000_000, metadata=about("Size of one bulk request", between(100_000, 90_000_000)))
    tombstone_hours: int = field(
        default=24, metadata=about("How long a deleted row's version is remembered", at_least(1))
    )

    def problems(self) -> Iterator[Problem]:
        yield from shape_problems(self)
        if self.api_key is not None and self.username is not None:
            yield "api_key", "give either an API key or a user, not both"
        if (self.username is None) != (self.password is None):
            yield "username", "`username` and `password` go together"
        if self.tls is not None and not self.url.reveal().startswith("https:"):
            yield "tls", "needs an https:// url"
        for column, options in self.mapping.items():
            if "type" not in options:
                yield "mapping", f"{column} needs a `type`"
            elif options["type"] in _OBJECT_TYPES and options.get("enabled") != "false":
                yield "mapping", f"{column} cannot be of type {options['type']}: its values are no JSON objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig(Fed):
    kind: Literal["redis"] = field(default="redis", metadata=about("What the store is"))
    url: Url = field(metadata=about("Where the server answers, and the database", scheme("redis", "rediss")))
    username: str | None = field(default=None, metadata=about("ACL user"))
    password: Secret | None = field(default=None, metadata=about("Password, when it is not in the URL"))
    tls: TlsConfig | None = field(default=None, metadata=about("Certificates; only for rediss"))
    prefix: str | None = field(
        default=None, metadata=about("First part of its keys, instead of `kafka.prefix`", _PREFIX)
    )
    tombstone_hours: int = field(
        default=24, metadata=about("How long a deleted row's version is remembered", at_least(1))
    )
    eviction: bool = field(
        default=False, metadata=about("The server may evict keys: rows can be missing, and are not written again")
    )

    def problems(self) -> Iterator[Problem]:
        yield from shape_problems(self)
        if self.tls is not None and not self.url.reveal().startswith("rediss:"):
            yield "tls", "needs a rediss:// url"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergConfig(Fed):
    kind: Literal["iceberg"] = field(default="iceberg", metadata=about("What the store is"))
    path: Location = field(metadata=about("Folder or URI of the warehouse's files", not_empty))
    catalog_uri: Url | None = field(
        default=None,
        metadata=about(
            "Catalog: a SQLite file at `<path>/catalog.db` unless this names a Postgres or a REST catalog",
            scheme("postgresql", "postgres", "http", "https"),
        ),
    )
    catalog_username: str | None = field(default=None, metadata=about("User of that catalog"))
    catalog_password: Secret | None = field(default=None, metadata=about("That user's password"))
    options: SecretOptions = field(
        default_factory=SecretOptions,
        metadata=about("More properties of the Iceberg catalog, such as its object storage's"),
    )
    string_columns: tuple[ColumnName, ...] = field(
        default=(), metadata=about("Columns that are kept as text, since their values do not fit a typed column")
    )
    trigger_milliseconds: int = field(
        default=30_000, metadata=about("Shortest time between the starts of two batches", between(0, 3_600_000))
    )
    max_events_per_batch: int = field(default=500_000, metadata=about("Most events of one batch", at_least(1)))
    target_file_bytes: int = field(
        default=128 << 20, metadata=about("Size of the files that are written", between(1 << 20, 2 << 30))
    )
    maintain_hours: float = field(
        default=24.0, metadata=about("How often `tailrace run` tidies the warehouse up; 0: never", between(0, 8760))
    )
    snapshot_hours: float = field(
        default=120.0, metadata=about("How long snapshots are kept that are not the newest", between(0, 87_600))
    )

    def problems(self) -> Iterator[Problem]:
        yield from shape_problems(self)
        if "://" in self.path and self.catalog_uri is None:
            yield "catalog_uri", "needed when `path` is a URI: a SQLite catalog can only live in a local folder"


Store = ElasticsearchConfig | RedisConfig | IcebergConfig
