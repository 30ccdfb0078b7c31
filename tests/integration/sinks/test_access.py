"""Access to a store: certificates, users and API keys; an untrusted server or a denied user is refused."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cdc.config.tls import TlsConfig
from cdc.errors import RefusedError
from cdc.secrets import Secret
from cdc.stores.contract import Store
from tests.harness.network.tls import TlsFront, make_certificates, server_context
from tests.harness.stores.opened_stores import KINDS, apply, change, rows, store_of, table

SCHEMES = {"elasticsearch": "https", "redis": "rediss"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(kind: str, elasticsearch_url: str, redis_url: str) -> tuple[str, int]:
    address = {"elasticsearch": elasticsearch_url, "redis": redis_url}[kind]
    host, _, port = address.partition("://")[2].partition("/")[0].rpartition(":")
    return host, int(port)


def opened(kind: str, front: TlsFront, prefix: str, tls: TlsConfig | None, host: str = "localhost") -> Store:
    return store_of(kind, f"{SCHEMES[kind]}://{host}:{front.port}", prefix, settings={"tls": tls})


def test_a_server_with_the_right_certificate_is_used(
    kind: str, target: tuple[str, int], prefix: str, certificates: Path
) -> None:
    """The driver and tasks connect over TLS to a trusted server."""
    with TlsFront(*target, server_context(certificates)) as front:
        store = opened(kind, front, prefix, TlsConfig(ca=certificates / "right.pem"))
        orders = table(prefix)
        generation = store.create_generation([orders])
        apply(store, generation, orders, [change(1, 5)])
        assert set(rows(store, generation, orders)) == {"1"}
        store.close()


def test_a_client_shows_its_certificate(kind: str, target: tuple[str, int], prefix: str, certificates: Path) -> None:
    """A client certificate with an encrypted key is accepted; without one the server refuses."""
    tls = TlsConfig(
        ca=certificates / "right.pem",
        cert=certificates / "client.pem",
        key=certificates / "locked.key",
        key_password=Secret("secret"),
    )
    with TlsFront(*target, server_context(certificates, wants_client=True)) as front:
        store = opened(kind, front, prefix, tls)
        assert store.serving() is None
        store.close()


UNTRUSTED = {"wrong authority": ("localhost", "wrong"), "wrong host name": ("127.0.0.1", "right")}


@pytest.mark.parametrize(("host", "authority"), UNTRUSTED.values(), ids=UNTRUSTED.keys())
def test_a_server_that_cannot_be_trusted_is_refused(
    kind: str, target: tuple[str, int], prefix: str, certificates: Path, host: str, authority: str
) -> None:
    """An untrusted server is refused before anything is sent to it."""
    with TlsFront(*target, server_context(certificates)) as front:
        store = opened(kind, front, prefix, TlsConfig(ca=certificates / f"{authority}.pem"), host)
        with pytest.raises(RefusedError, match="certificate"):
            store.serving()
        assert front.bytes_to_server == 0
        store.close()


def test_the_systems_authorities_do_not_know_ours(
    kind: str, target: tuple[str, int], prefix: str, certificates: Path
) -> None:
    """Without a [tls] section a private authority is not trusted."""
    with TlsFront(*target, server_context(certificates)) as front:
        store = opened(kind, front, prefix, None)
        with pytest.raises(RefusedError, match="certificate"):
            store.serving()
        store.close()


def test_the_host_name_need_not_match_when_told_so(
    kind: str, target: tuple[str, int], prefix: str, certificates: Path
) -> None:
    """`verify_hostname = false` still requires the authority."""
    with TlsFront(*target, server_context(certificates)) as front:
        store = opened(
            kind, front, prefix, TlsConfig(ca=certificates / "right.pem", verify_hostname=False), host="127.0.0.1"
        )
        assert store.serving() is None
        store.close()


@pytest.fixture
def doorkeeper() -> Iterator[HTTPServer]:
    """A server that answers 401 to every request and records the credentials."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    seen: list[str] = []
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.seen = seen  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


SHOWN = {
    "user": ({"username": "ada", "password": Secret("hunter2")}, "Basic " + base64.b64encode(b"ada:hunter2").decode()),
    "api key": ({"api_key": Secret("aHVudGVyMg==")}, "ApiKey aHVudGVyMg=="),
}


@pytest.mark.parametrize(("settings", "expected"), SHOWN.values(), ids=SHOWN.keys())
def test_credentials_are_sent_and_a_denial_is_refused(
    doorkeeper: HTTPServer, settings: dict[str, Any], expected: str
) -> None:
    """Each request has basic authentication or an API key; a 401 stops the store, and no output has the secret."""
    store = store_of("elasticsearch", f"http://127.0.0.1:{doorkeeper.server_port}", "shop", settings=settings)
    with pytest.raises(RefusedError) as refused:
        store.serving()
    assert doorkeeper.seen == [expected]  # type: ignore[attr-defined]
    assert "hunter2" not in str(refused.value)
    assert expected.split()[1] not in str(refused.value)
    assert [each.level for each in store.check()] == ["fail"]
    store.close()
