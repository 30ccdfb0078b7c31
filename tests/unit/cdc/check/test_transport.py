"""`tailrace check` warns of each credential that would cross a network in plain text, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.check import Finding, Level
from cdc.check.transport import is_local, judge_transport
from cdc.config import parse_config

_SOURCE = '[source]\ndsn = "host=/tmp"\n'
_KAFKA = '[kafka]\nbootstrap = "127.0.0.1:9092"\nprefix = "shop"\n'
SECRET = "Zq-of-tests"


def _judge(*sections: str, used_password: bool = False) -> list[Finding]:
    """Check the config with the given sections in place of the usual ones."""
    given = "\n".join(sections)
    usual = [text for name, text in (("[source]", _SOURCE), ("[kafka]", _KAFKA)) if name not in given]
    config = parse_config("\n".join([*usual, given]), file=Path("tailrace.toml"), environment={})
    found = list(judge_transport(config, used_password=used_password))
    assert SECRET not in str(found)
    return found


def _source(dsn: str, more: str = "") -> str:
    return f'[source]\ndsn = "{dsn}"\n{more}'


def _kafka(bootstrap: str, more: str) -> str:
    return f'[kafka]\nbootstrap = "{bootstrap}"\nprefix = "shop"\n{more}'


_SASL = f'[kafka.sasl]\nmechanism = "PLAIN"\nusername = "u"\npassword = "{SECRET}"\n'
_ES = f'[stores.s]\nkind = "elasticsearch"\napi_key = "{SECRET}"\n'
_LAKE = '[stores.s]\nkind = "iceberg"\npath = "s3://b/w"\n'
_REST = f'{_LAKE}catalog_password = "{SECRET}"\n'

_IN_CLEAR_TEXT = [
    ("server", _source(f"postgresql://u:{SECRET}@db.example/d")),
    ("server", _source("postgresql://u@10.0.0.5/d?sslmode=prefer", f'password = "{SECRET}"\n')),
    ("server", _source(f"host=db.example sslmode=disable password={SECRET}")),
    ("server", _source(f"host=localhost,db.example password={SECRET}")),
    ("server", _source(f"host=localhost hostaddr=10.0.0.5 password={SECRET}")),
    ("server", _source("host=db.example", f'password = "{SECRET}"\n[source.tls]\nmode = "allow"\n')),
    ("broker", _kafka("k.example:9092", _SASL)),
    ("broker", _kafka("127.0.0.1:1,k.example:9092", _SASL.replace("PLAIN", "SCRAM-SHA-512"))),
    ("broker", _kafka("k.example:1", f'[kafka.options]\n"security.protocol" = "sasl_plaintext"\n"x" = "{SECRET}"\n')),
    ("store s", f'{_ES}url = "http://es.example:9200"\n'),
    ("store s", f'[stores.s]\nkind = "elasticsearch"\nurl = "http://u:{SECRET}@es.example"\n'),
    ("store s", f'[stores.s]\nkind = "redis"\nurl = "redis://:{SECRET}@r.example/0"\n'),
    ("store s", f'[stores.s]\nkind = "redis"\nurl = "redis://r.example/0"\npassword = "{SECRET}"\n'),
    ("store s", f'{_REST}catalog_uri = "http://c.example/api"\n'),
    ("store s", f'{_LAKE}catalog_uri = "http://c.example/api"\n[stores.s.options]\ntoken = "{SECRET}"\n'),
    ("store s", f'{_REST}catalog_uri = "postgresql://c.example/d"\n'),
    ("store s", f'{_LAKE}catalog_uri = "postgresql://c/d"\n[stores.s.options]\n"s3.endpoint" = "http://s3.example"\n'),
    ("alerts", f'[alerts]\nwebhook = "http://a.example/h"\n[alerts.headers]\nAuthorization = "{SECRET}"\n'),
    ("alerts", f'[alerts]\nwebhook = "http://u:{SECRET}@a.example/h"\n'),
    ("dashboard", f'[dashboard]\nhost = "0.0.0.0"\ntoken = "{SECRET}-and-more"\n'),
]

_SAFE = [
    _source(f"postgresql://u:{SECRET}@db.example/d?sslmode=verify-full"),
    _source(f"host=db.example sslmode=require password={SECRET}"),
    _source("host=db.example", f'password = "{SECRET}"\n[source.tls]\n'),
    _source(f"host=/var/run/postgresql password={SECRET}"),
    _source(f"postgresql://u:{SECRET}@127.0.0.1,[::1]/d"),
    _source(f"host=db.example gssencmode=require password={SECRET}"),
    _source("host=db.example"),
    _kafka("k.example:9092", f"{_SASL}[kafka.tls]\n"),
    _kafka("localhost:9092,[::1]:9092", _SASL),
    _kafka("k.example:9092", ""),
    f'{_ES}url = "https://es.example:9200"\n',
    f'{_ES}url = "http://localhost:9200"\n',
    '[stores.s]\nkind = "elasticsearch"\nurl = "http://es.example"\n',
    f'[stores.s]\nkind = "redis"\nurl = "rediss://:{SECRET}@r.example/0"\n',
    '[stores.s]\nkind = "redis"\nurl = "redis://r.example/0"\n',
    f'{_REST}catalog_uri = "https://c.example/api"\n',
    f'{_REST}catalog_uri = "postgresql://c.example/d?sslmode=verify-full"\n',
    f'{_LAKE}catalog_uri = "postgresql://u@c/d"\n[stores.s.options]\n"s3.endpoint" = "http://127.0.0.1:9000"\n',
    f'[alerts]\nwebhook = "https://a.example/h"\n[alerts.headers]\nAuthorization = "{SECRET}"\n',
    '[alerts]\nwebhook = "http://a.example/h"\n[alerts.headers]\nUser-Agent = "us"\n',
    f'[dashboard]\ntoken = "{SECRET}-and-more"\n',
]


@pytest.mark.parametrize(("place", "text"), _IN_CLEAR_TEXT)
def test_a_credential_in_clear_text_is_a_warning_with_a_remedy(place: str, text: str) -> None:
    """The warning names the setting and does not show the credential."""
    warned = [finding for finding in _judge(text) if finding.level is Level.WARN]
    assert [finding.place for finding in warned] == [place]
    assert "clear text" in warned[0].what
    assert warned[0].remedy


@pytest.mark.parametrize("text", _SAFE)
def test_what_is_encrypted_or_stays_on_this_machine_is_no_warning(text: str) -> None:
    """Encrypted and local connections, and those without credentials, give no warning."""
    assert [finding for finding in _judge(text) if finding.level is not Level.OK] == []


def test_a_password_that_libpq_found_elsewhere_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password or sslmode from libpq's password file or environment counts."""
    remote = _source("host=db.example")
    assert [finding.level for finding in _judge(remote, used_password=True)] == [Level.WARN]
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert [finding.level for finding in _judge(remote)] == [Level.WARN]
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert [finding.level for finding in _judge(remote)] == [Level.OK]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("", "/tmp", "@abstract", "localhost", "LOCALHOST.", "db.localhost", "127.8.9.1")),  # noqa: S108
        *((host, True) for host in ("::1", "[::1]")),
        *((host, False) for host in ("localhost.example", "127.0.0.1.example", "10.0.0.1", "fe80::1%eth0", "example")),
    ],
)
def test_local_hosts(host: str, expected: bool) -> None:
    """Only loopback addresses and Unix sockets are local, not names that begin like them."""
    assert is_local(host) is expected
