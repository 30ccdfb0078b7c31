"""No text made of a config has a password, and no library's message that passed `redact`."""

from __future__ import annotations

import copy
import json
import pickle
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from cdc.lsn import LSN, Version
from cdc.secrets import Dsn, Secret, SecretOptions, Url, WebhookUrl, is_secret_name, masked, redact

# Any text, fenced by marks that nothing else in these tests contains: a leak shows at least one of them.
_middle = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
passwords = _middle.map(lambda middle: f"Zq{middle}qZ")
words = _middle.map(lambda middle: "Zq" + "".join(middle.split()) + "qZ")


def leaks(text: str) -> bool:
    return "Zq" in text or "qZ" in text


def shown(value: object) -> str:
    return f"{value} {value!r} {value:>40} {[value]} {masked({'x': value})}"


@given(passwords)
@example("Zq@host/@qZ")
@example("Zq /?#:qZ")
def test_a_url_never_shows_its_password(password: str) -> None:
    """Percent-encoded as it should be, or raw as it should not: user, host and database stay, the password goes."""
    for written in (quote(password, safe=""), password):
        for kind in (Dsn, Url):
            url = kind(f"postgresql://user:{written}@host:5432/db?sslmode=require")
            assert not leaks(shown(url))
            assert str(url) == "postgresql://user:***@host:5432/db?sslmode=require"
            assert written in url.reveal()
    assert not leaks(shown(Url(f"redis://:{password}@host/0")))


@given(passwords)
@example("Zq' \\' =qZ")
def test_a_key_value_dsn_never_shows_its_passwords(password: str) -> None:
    """Quoted and escaped in libpq's way, in any order, `sslpassword` and a URL's parameter as well."""
    dsn = Dsn(make_conninfo(host="h", password=password, sslpassword=password, dbname="d"))
    assert not leaks(shown(dsn))
    assert "host=h" in str(dsn)
    assert "dbname=d" in str(dsn)
    assert not leaks(shown(Dsn(f"postgresql://h/d?password={quote(password, safe='')}&user=u")))


@given(words)
@example("Zqa@b@cqZ")
def test_redact_hides_passwords_in_messages_of_libraries(password: str) -> None:
    """Passwords in URLs, pairs, JSON and headers are hidden anywhere in a message."""
    texts = [
        f'connection to "postgresql://u:{password}@h/db" failed',
        f"GET https://u:{quote(password, safe='')}@h:9200/_bulk [status:401]",
        f"bad conninfo: {make_conninfo(host='h', password=password)} (see the manual)",
        json.dumps({"sasl.password": password, "api_key": password}),
        f"Authorization: ApiKey {quote(password, safe='')}",
        f"{{'authorization': 'Basic {quote(password, safe='')}'}}",
    ]
    for text in texts:
        assert not leaks(redact(text)), text


@pytest.mark.parametrize(
    "text",
    [
        "password authentication failed for user u",
        "[kafka.sasl] password: expected a string, got an integer",
        "postgresql://localhost:5432/shop",
        "shop.public.orders at 16/B374D848",
    ],
)
def test_redact_leaves_harmless_text_alone(text: str) -> None:
    """A message without a secret stays as it is."""
    assert redact(text) == text


@pytest.mark.timeout(60)
def test_redact_is_quick_on_long_text() -> None:
    """The patterns do not backtrack on long messages."""
    for long_text in (
        "a" * 200_000,
        "a.b-" * 50_000,
        "password" * 20_000,
        "'" * 100_000,
        "://a:" * 40_000,
        "a://" * 40_000,
    ):
        assert redact(long_text) == long_text


@pytest.mark.parametrize(
    "name",
    [
        *("sasl.password", "sasl.oauthbearer.config", "ssl.key.pem", "ssl.keystore.certificate.chain"),
        *("Authorization", "X-Key", "Cookie", "X-Webhook-Signature", "x-amz-security"),
        *("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.azure.account.key.x.blob.core.windows.net"),
        *("spark.driver.extraJavaOptions", "spark.executorEnv.ANYTHING", "spark.sql.catalog.tailrace.uri"),
        *("spark.sql.catalog.other.rest.auth.basic.user", "spark.jars.repositories", "spark.kafka.clusters.x.opaque"),
        *("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "credential", "header.X-Anything", "unknown"),
    ],
)
@given(passwords)
@settings(max_examples=5)
def test_an_option_that_is_not_known_to_be_harmless_is_not_shown(name: str, password: str) -> None:
    """Options are shown by a list of harmless names, not hidden by a list of secret ones."""
    options = SecretOptions({name: password})
    assert not leaks(f"{options} {options!r} {options.masked()} {masked(options)} {masked({'x': options})}")
    assert options[name] == password


def test_a_harmless_option_is_shown() -> None:
    """Options on the list of harmless names are shown."""
    options = {
        "client.id": "x",
        "linger.ms": "5",
        "compression.type": "zstd",
        "spark.executor.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "s3.region": "eu-central-1",
        "type": "keyword",
        "Content-Type": "application/json",
    }
    assert SecretOptions(options).masked() == options
    assert SecretOptions({"spark.jars": "https://u:pw@host/a.jar"}).masked() == {
        "spark.jars": "https://u:***@host/a.jar"
    }


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://hooks.example.com/services/T0/B0/XQ", "https://hooks.example.com/***"),
        ("https://hooks.example.com:8443/?key=XQ", "https://hooks.example.com:8443/***"),
        ("http://[::1]:80#XQ", "http://[::1]:80/***"),
        ("https://hooks.example.com", "https://hooks.example.com/***"),
        ("https://XQ@hooks.example.com/a", "https://hooks.example.com/***"),
        ("https://u:XQ@hooks.example.com/a", "https://hooks.example.com/***"),
        ("https://u:a/XQ@hooks.example.com/a", "https://***"),
        ("https://u:XQ", "https://***"),
    ],
)
def test_a_webhook_shows_its_host_only(url: str, expected: str) -> None:
    """Only the host of a webhook is shown, since the path may be a secret."""
    assert str(WebhookUrl(url)) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://XQ@host/catalog", "https://***@host/catalog"),
        ("https://host/catalog?sig=XQ&a", "https://host/catalog?sig=***&***"),
        ("redis://host/0?db=1&password=XQ", "redis://host/0?db=1&password=***"),
        ("https://host/#XQ", "https://host/#***"),
    ],
)
def test_a_url_shows_harmless_parameters_only(url: str, expected: str) -> None:
    """A user without a password may be a token, and so may any parameter."""
    assert str(Url(url)) == expected


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        (
            "postgresql://u@h/d?scram_client_key=XQ&sslmode=require",
            "postgresql://u@h/d?scram_client_key=***&sslmode=require",
        ),
        (
            "host=h scram_client_key = XQ oauth_client_secret='X Q' user=u",
            "host=h scram_client_key=*** oauth_client_secret=*** user=u",
        ),
        ("host=h options='-c x.y=XQ'", "host=h options=***"),
        ("host=h XQ", "host=h ***"),
        ("host=h dbname='it''s XQ", "host=h ***"),
        ("host='a b' user=u", "host='a b' user=u"),
        ("XQ", "***"),
        ("", ""),
    ],
)
def test_a_dsn_shows_harmless_parameters_only(dsn: str, expected: str) -> None:
    """Postgres 18 has secrets with names of their own; what is no connection string is not shown at all."""
    shown_dsn = str(Dsn(dsn))
    assert shown_dsn == expected
    assert "Q" not in shown_dsn


def test_secrets_compare_pickle_and_copy_by_value() -> None:
    """Configs that hold them can be compared, copied and sent to a Spark executor."""
    for secret in (Secret("a"), Url("http://u:a@h"), Dsn("host=h"), SecretOptions({"a": "b"})):
        assert pickle.loads(pickle.dumps(secret)) == copy.deepcopy(secret) == secret  # noqa: S301 - our own bytes
        assert hash(copy.copy(secret)) == hash(secret)
    assert Secret("a") != Secret("b")
    assert Url("a") != Secret("a")
    assert not Secret("")


def test_secret_names() -> None:
    """Names that sound like secrets, and near ones that do not."""
    assert all(
        map(is_secret_name, ["password", "sasl.password", "api_key", "ssl.key.password", "AWS_SECRET_ACCESS_KEY"])
    )
    assert not any(map(is_secret_name, ["key", "primary_key", "passthrough", "sasl.username"]))


def test_masked_keeps_facts_readable() -> None:
    """Numbers stay numbers, an LSN and a version show themselves as people know them."""
    facts = {"rows": 3, "lsn": LSN(16), "version": Version(16, 1), "tables": ("a", "b"), "password": "x", "none": None}
    assert masked(facts) == {
        "rows": 3,
        "lsn": "0/10",
        "version": "0000000000000010.00000001",
        "tables": ["a", "b"],
        "password": "***",
        "none": None,
    }
