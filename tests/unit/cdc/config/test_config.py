"""`tailrace.toml`: its meaning when it is valid, and one report of everything that is wrong in it."""

from __future__ import annotations

import pickle
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from cdc.config import (
    ColumnName,
    Config,
    ElasticsearchConfig,
    IcebergConfig,
    Mask,
    MaskKind,
    RedisConfig,
    TableSelector,
    load_config,
    parse_config,
)
from cdc.config.toml.report import as_plain, as_toml
from cdc.errors import ConfigError, UsageError
from cdc.secrets import Url
from tests.harness.processes.command import run_command

MINIMAL = """
[source]
dsn = "postgresql://tailrace@localhost:5432/shop"
[kafka]
bootstrap = "localhost:9092"
prefix = "shop"
"""
DOCUMENTED = """
[source]
dsn = "postgresql://tailrace@localhost:5432/shop"
slot = "tailrace"
publication = "tailrace"
tables = ["public.customers", "public.orders"]     # "public.*" takes all

[kafka]
bootstrap = "localhost:9092"
prefix = "shop"
partitions = 4

[mask]
"public.customers.email" = "hash"                  # hash | null | fixed:TEXT; a key column may only be hashed
'public.customers."Full.Name"' = "fixed:a:b"

[stores.search]
kind = "elasticsearch"
url = "http://localhost:9200"

[stores.cache]
kind = "redis"
url = "redis://localhost:6379/0"

[stores.warehouse]
kind = "iceberg"
path = "warehouse"
"""


def parse(text: str, **environment: str) -> Config:
    return parse_config(text, file=Path("/etc/tailrace/tailrace.toml"), environment=environment)


def problems(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, **environment)
    return [f"{place}: {what}" for place, what in caught.value.problems]


def test_the_smallest_config_has_working_defaults() -> None:
    """A DSN, a broker and a prefix are enough."""
    config = parse(MINIMAL)
    assert (config.source.slot, config.source.publication) == ("tailrace", "tailrace")
    assert config.source.tables == (TableSelector("public", None),)
    assert config.source.selects("public", "anything")
    assert not config.source.selects("other", "anything")
    assert (config.kafka.partitions, config.kafka.delete_retention_milliseconds) == (4, 7 * 24 * 3_600_000)
    assert (config.capture.batch_milliseconds, config.spark.master) == (50, "local[*]")
    assert not config.stores


def test_the_documented_example_reads() -> None:
    """Every section of the example lands in its place; relative paths start from the config's folder."""
    config = parse(DOCUMENTED)
    assert config.source.tables == (TableSelector("public", "customers"), TableSelector("public", "orders"))
    assert config.mask == {
        ColumnName("public", "customers", "email"): Mask(MaskKind.HASH),
        ColumnName("public", "customers", "Full.Name"): Mask(MaskKind.FIXED, "a:b"),
    }
    assert config.stores == {
        "search": ElasticsearchConfig(url=Url("http://localhost:9200")),
        "cache": RedisConfig(url=Url("redis://localhost:6379/0")),
        "warehouse": IcebergConfig(path=config.stores["warehouse"].path),  # type: ignore[union-attr]
    }
    assert as_plain(config)["stores"]["warehouse"]["path"] == "/etc/tailrace/warehouse"
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes


def test_what_is_shown_reads_back() -> None:
    """`tailrace config` prints TOML that means the same, except for masked secrets."""
    config = parse(DOCUMENTED)
    assert parse(as_toml(as_plain(config))) == config


def test_every_problem_is_reported_with_its_place() -> None:
    """One report for everything: wrong types, ranges, names, unknown keys with the nearest known one, missing keys."""
    text = """
[source]
dsn = "postgresql://tailrace@localhost/shop"
slot = "My-Slot"
tables = ["public.orders", "public.Orders", 'public."orders"', 7]
heartbeat_secs = 3
[kafka]
bootstrap = "localhost:9092"
partitions = "4"
delete_retention_hours = 0
options = { "acks" = 1 }
[capture]
batch_milliseconds = 1.5
[mask]
email = "hash"
"public.customers.name" = "blank"
[stores.Search]
kind = "elasticsearch"
url = "localhost:9200"
[stores.cache]
url = "redis://h"
[stores.lake]
kind = "icebreg"
[stores.warehouse]
kind = "iceberg"
path = "s3://bucket/x"
[sparks]
"""
    assert problems(text) == [
        "line 4, [source] slot: a slot's name is made of a-z, 0-9 and _, at most 63 of them, got 'My-Slot'",
        "line 5, [source] tables[1]: has an unquoted capital: use lower case, or quotes as in SQL: "
        "public.\"Orders\", got 'public.Orders'",
        "line 5, [source] tables[3]: expected a string, got an integer",
        "line 5, [source] tables[2]: is listed twice, got 'public.\"orders\"'",
        "line 6, [source] heartbeat_secs: unknown key; did you mean `heartbeat_seconds`?",
        "line 7, [kafka] prefix: missing (prefix of every topic, index and key name)",
        "line 9, [kafka] partitions: expected an integer, got a string",
        "line 10, [kafka] delete_retention_hours: must be between 0.001 and 87600, got 0",
        "line 11, [kafka] options: may not set acks: Tailrace sets it from the keys of [kafka] and [capture]",
        "line 13, [capture] batch_milliseconds: expected an integer, got a number",
        "line 15, [mask] email: expected \"schema.table.column\", all of it in quotes, got 'email'",
        "line 16, [mask] public.customers.name: expected hash, null, fixed:TEXT or none, got 'blank'",
        "line 17, [stores] Search: a store's name is made of a-z, 0-9, _ and -, a letter first, got 'Search'",
        "line 20, [stores.cache] kind: missing (one of elasticsearch, opensearch, redis, iceberg)",
        "line 23, [stores.lake] kind: must be one of elasticsearch, opensearch, redis, iceberg, got 'icebreg'",
        "line 24, [stores.warehouse] catalog_uri: needed when `path` is a URI: a SQLite catalog needs a local folder",
        "line 27, [sparks]: unknown section; did you mean `spark`?",
    ]


def test_a_key_of_0_1_0_gets_an_error_that_names_the_new_key() -> None:
    """The sections and keys that 0.2.0 renamed: each error names the present one."""
    old = "[copy]\nconnections = 2\n"
    assert problems(MINIMAL + old) == ["line 7, [copy]: this section is called [snapshot] since 0.2.0: rename it"]
    old = "[snapshot]\nfirst = false\n"
    assert problems(MINIMAL + old) == ["line 8, [snapshot] first: this key is called `initial` since 0.2.0: rename it"]
    old = '[stores.lake]\nkind = "iceberg"\npath = "lake"\nsnapshot_hours = 3\n'
    assert problems(MINIMAL + old) == [
        "line 10, [stores.lake] snapshot_hours: this key is called `snapshot_retention_hours` since 0.2.0: rename it"
    ]


def test_an_empty_file_says_what_is_needed() -> None:
    """Missing sections are reported by the keys that they must have."""
    assert [line.partition(": missing")[0] for line in problems("")] == [
        "[source] dsn",
        "[kafka] bootstrap",
        "[kafka] prefix",
    ]


@pytest.mark.parametrize("key", ["source", "kafka", "stores", "mask"])
def test_a_section_that_is_no_table_is_reported(key: str) -> None:
    """`source = 1` is reported with its place."""
    assert f"line 1, [{key}]: expected a table, got an integer" in problems(f"{key} = 1")


def test_what_is_not_toml_says_where() -> None:
    """A syntax error has its line, and a file that is not text is reported as such."""
    assert "line 2" in problems("[source]\ndsn = postgresql")[0]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder and a file that is not UTF-8 are wrong use, with the file's name."""
    for file in (tmp_path / "no.toml", tmp_path):
        with pytest.raises(UsageError, match=str(file)):
            load_config(file)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.toml")


def test_load_config_takes_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's variables come from the process's environment unless others are given."""
    (tmp_path / "tailrace.toml").write_text(MINIMAL.replace('"shop"', '"${TAILRACE_TEST_PREFIX}"'))
    monkeypatch.setenv("TAILRACE_TEST_PREFIX", "one")
    assert load_config(tmp_path / "tailrace.toml").kafka.prefix == "one"
    given_one = load_config(tmp_path / "tailrace.toml", {"TAILRACE_TEST_PREFIX": "two"})
    assert given_one.kafka.prefix == "two"
    assert given_one.file == tmp_path / "tailrace.toml"


def test_interpolation() -> None:
    """`${NAME}` anywhere in a string, also for a number; `$${` is the text `${`; single signs stay."""
    text = MINIMAL + 'partitions = "${N}"\n[spark.options]\na = "${X}-${X}"\nb = "$${X} $X $ {X}"\nc.d = "${EMPTY}"\n'
    config = parse(text, N="12", X="x$${N}", EMPTY="")
    assert config.kafka.partitions == 12
    assert dict(config.spark.options) == {"a": "x$${N}-x$${N}", "b": "${X} $X $ {X}", "c.d": ""}


def test_unset_variables_are_named() -> None:
    """Each unset variable is reported once with its place, and its value has no other problem."""
    text = MINIMAL.replace("localhost:9092", "${HOST}:${PORT}").replace("tailrace@", "u:${PGPASSWORD}@")
    text += 'partitions = "${N}"\nreplication_factor = "${BAD-NAME}"\n[kafka.options]\nx = "${X"\n'
    assert problems(text, N="many") == [
        "line 3, [source] dsn: environment variable PGPASSWORD is not set",
        "line 5, [kafka] bootstrap: environment variable HOST is not set",
        "line 5, [kafka] bootstrap: environment variable PORT is not set",
        "line 7, [kafka] partitions: expected an integer, got a string",
        "line 8, [kafka] replication_factor: has `${` without a variable's name and `}`; write `$${` for the two "
        "characters themselves",
        "line 10, [kafka.options] x: has `${` without a variable's name and `}`; write `$${` for the two characters "
        "themselves",
    ]


@pytest.mark.parametrize(
    ("dsn", "what"),
    [
        ("", "must not be empty"),
        ("localhost", "is not a connection string: write postgresql://user@host:port/database, or key=value pairs"),
        ("http://hunter2/x", "is not a connection string: write postgresql://"),
        ("password=hunter2 x", "is not a connection string"),
        ("password=a hunter2=b", "has an unknown connection option"),
        ("host=h pasword=hunter2", "has an unknown connection option; did you mean password?"),
        ("postgresql://u:hunter2%zz@h", "is not a connection string: invalid percent-encoded token"),
        ("postgresql://u:hunter2 x@h/d", "is not a connection string"),
        ("postgresql://u:a@hunter2@h/d", "has an @ or / in the wrong place"),
        ("postgresql://u:a/hunter2@h/d", "has an @ or / in the wrong place"),
        ("postgresql://u:hunter2@h:99999/d", "has a port that is not a number from 1 to 65535"),
        ("postgresql://u:hunter2@h/d?sslmode=yes", "has an unknown sslmode"),
        ("host=h replication=database password=hunter2", "must not set `replication`"),
    ],
)
def test_a_bad_dsn_is_explained_without_its_password(dsn: str, what: str) -> None:
    """A bad DSN is explained for the usual mistakes, and no part of its text is shown."""
    (problem,) = problems(MINIMAL.replace("postgresql://tailrace@localhost:5432/shop", dsn))
    assert problem.startswith(f"line 3, [source] dsn: {what}")
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    "dsn", ["postgresql:///d", "host=/run/x", "postgresql://[::1]:5/d", "host=a,b port=1,2", "host=@x"]
)
def test_unusual_dsns_are_fine(dsn: str) -> None:
    """DSNs with sockets, IPv6 and several hosts are valid."""
    assert parse(MINIMAL.replace("postgresql://tailrace@localhost:5432/shop", dsn)).source.dsn.reveal() == dsn


def test_conninfo_joins_dsn_password_tls_and_extras() -> None:
    """psycopg gets everything from [source], and the caller's extras take precedence."""
    text = MINIMAL.replace("[kafka]", 'password = "p@ss w\'ord"\n[source.tls]\nca = "ca.pem"\n[kafka]')
    conninfo = parse(text).source.conninfo(replication="database", dbname="other")
    assert conninfo_to_dict(conninfo) == {
        "user": "tailrace",
        "host": "localhost",
        "port": "5432",
        "dbname": "other",
        "password": "p@ss w'ord",
        "sslmode": "verify-full",
        "sslrootcert": "/etc/tailrace/ca.pem",
        "replication": "database",
    }


def test_a_setting_given_twice_is_reported() -> None:
    """A password or TLS setting both in the DSN and as a key is reported."""
    text = MINIMAL.replace("tailrace@localhost:5432/shop", "u:a@h/d?sslmode=require")
    text = text.replace("[kafka]", 'password = "b"\ntls = { cert = "x" }\n[kafka]')
    assert problems(text) == [
        "line 4, [source] password: is in the DSN as well; set it in one place",
        "line 5, [source.tls] cert: `cert` and `key` must be set together",
        "line 5, [source] tls: the DSN has sslmode as well; set it in one place",
    ]


_middle = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="$\\\"'"), max_size=12)


@given(_middle.map(lambda middle: f"Zq{middle}qZ"), st.sampled_from(["right", "wrong"]))
def test_no_password_in_repr_report_or_problems(password: str, how: str) -> None:
    """No text made of a valid or an invalid config has the password."""
    text = f"""
    [source]
    dsn = "host=h user=u"
    password = "{password}"
    {'slot = "${PW}"' if how == "wrong" else ""}
    [kafka]
    bootstrap = "{"h:1" if how == "right" else f"u:{password}@h"}"
    prefix = "{"shop" if how == "right" else "${PW}"}"
    sasl = {{ username = "u", password = "${{PW}}" }}
    options = {{ "ssl.keystore.password" = "${{PW}}" }}
    [stores.search]
    kind = "elasticsearch"
    url = "https://h"
    api_key = "{password}"
    [stores.cache]
    kind = "redis"
    url = "{"redis" if how == "right" else "rediss+x"}://:{quote(password, safe="")}@h"
    """
    if how == "right":
        config = parse(text, PW=password)
        shown = f"{config} {config!r} {as_plain(config)} {as_toml(as_plain(config))}"
        assert config.kafka.client_options()["sasl.password"] == password
    else:
        with pytest.raises(ConfigError) as refused:
            parse(text, PW=password)
        shown = f"{refused.value} {refused.value!r} {refused.value.problems}"
    assert "Zq" not in shown
    assert "qZ" not in shown


def test_the_command_shows_no_literal_secret(tmp_path: Path) -> None:
    """`tailrace config` shows only the harmless parts of options, headers and URLs, as TOML and JSON."""
    secret = "Zq-of-tests-qZ"
    file = tmp_path / "tailrace.toml"
    file.write_text(
        f"""
        [source]
        dsn = "postgresql://u@h/d?scram_client_key={secret}"
        [kafka]
        bootstrap = "h:1"
        prefix = "shop"
        options = {{ "ssl.key.pem" = "{secret}", "sasl.oauthbearer.config" = "{secret}", "linger.ms" = 5 }}
        [alerts]
        webhook = "https://hooks.example.com/services/{secret}?a={secret}"
        headers = {{ "Authorization" = "Bearer {secret}", "X-Key" = "{secret}", "User-Agent" = "tailrace-test" }}
        [spark]
        options = {{ "spark.hadoop.fs.azure.account.key.x" = "{secret}", "spark.executor.memory" = "4g" }}
        [stores.search]
        kind = "elasticsearch"
        url = "https://{secret}@search.example.com/path?key={secret}"
        [stores.lake]
        kind = "iceberg"
        path = "s3://u:{secret}@bucket/lake"
        catalog_uri = "https://u:{secret}@catalog.example.com/?sig={secret}"
        options = {{ "s3.access-key-id" = "{secret}", "header.X-A" = "{secret}", "s3.region" = "eu-1" }}
        """,
        encoding="utf-8",
    )
    for arguments in ((), ("--json",)):
        said = run_command("config", file, *arguments)
        for harmless in ("tailrace-test", "4g", "eu-1", "hooks.example.com", "search.example.com", "linger.ms"):
            assert harmless in said.stdout
        assert "Zq" not in said.stdout + said.stderr
        assert "qZ" not in said.stdout + said.stderr


def test_the_webhook_action_needs_a_webhook() -> None:
    """`[slot] action = "webhook"` without an address is reported when the config is read."""
    (problem,) = problems(MINIMAL + '\n[slot]\naction = "webhook"\n')
    assert "`[alerts] webhook`" in problem
    parse(MINIMAL + '\n[slot]\naction = "webhook"\n[alerts]\nwebhook = "https://alerts.example.com/hook"\n')
