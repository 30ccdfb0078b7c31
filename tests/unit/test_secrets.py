"""A password is in no text that Python makes of a config, and in no message of a library that passes `redact`."""

from __future__ import annotations

import copy
import json
import pickle
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from cdc.lsn import LSN, Version
from cdc.secrets import Dsn, Options, Secret, Url, is_secret_name, masked, redact

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
def test_redact_hides_passwords_in_other_peoples_messages(password: str) -> None:
    """URLs, pairs, JSON and headers, wherever they stand in a message."""
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
    """A long message cannot stall the log: the patterns do not backtrack over it."""
    for long_text in (
        "a" * 200_000,
        "a.b-" * 50_000,
        "password" * 20_000,
        "'" * 100_000,
        "://a:" * 40_000,
        "a://" * 40_000,
    ):
        assert redact(long_text) == long_text


@given(passwords)
def test_options_hide_secret_sounding_values(password: str) -> None:
    """What is passed through to a library is shown, except what sounds like a secret."""
    options = Options({"sasl.password": password, "spark.hadoop.fs.s3a.secret.key": password, "client.id": "x"})
    assert not leaks(f"{options} {options!r} {options.masked()} {masked(options)}")
    assert options.masked()["client.id"] == "x"
    assert dict(options)["sasl.password"] == password


def test_secrets_compare_pickle_and_copy_by_value() -> None:
    """Configs that hold them can be compared, copied and sent to a Spark executor."""
    for secret in (Secret("a"), Url("http://u:a@h"), Dsn("host=h"), Options({"a": "b"})):
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
