"""`[stores.NAME]`: one dataclass for each kind of store, chosen by its `kind`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cdc.config.settings import Location, Problem, about, not_empty, scheme
from cdc.config.tls import Tls
from cdc.secrets import Secret, Url


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticsearch:
    kind: Literal["elasticsearch"] = field(default="elasticsearch", metadata=about("What the store is"))
    url: Url = field(metadata=about("Where the server answers", scheme("http", "https")))
    username: str | None = field(default=None, metadata=about("User for basic authentication"))
    password: Secret | None = field(default=None, metadata=about("That user's password"))
    api_key: Secret | None = field(default=None, metadata=about("API key, instead of a user (base64 form)"))
    tls: Tls | None = field(default=None, metadata=about("Certificates; only for https"))

    def problems(self) -> Iterator[Problem]:
        if self.api_key is not None and self.username is not None:
            yield "api_key", "give either an API key or a user, not both"
        if (self.username is None) != (self.password is None):
            yield "username", "`username` and `password` go together"
        if self.tls is not None and not self.url.reveal().startswith("https:"):
            yield "tls", "needs an https:// url"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    kind: Literal["redis"] = field(default="redis", metadata=about("What the store is"))
    url: Url = field(metadata=about("Where the server answers, and the database", scheme("redis", "rediss")))
    username: str | None = field(default=None, metadata=about("ACL user"))
    password: Secret | None = field(default=None, metadata=about("Password, when it is not in the URL"))
    tls: Tls | None = field(default=None, metadata=about("Certificates; only for rediss"))

    def problems(self) -> Iterator[Problem]:
        if self.tls is not None and not self.url.reveal().startswith("rediss:"):
            yield "tls", "needs a rediss:// url"


@dataclass(frozen=True, slots=True, kw_only=True)
class Iceberg:
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

    def problems(self) -> Iterator[Problem]:
        if "://" in self.path and self.catalog_uri is None:
            yield "catalog_uri", "needed when `path` is a URI: a SQLite catalog can only live in a local folder"


Store = Elasticsearch | Redis | Iceberg
