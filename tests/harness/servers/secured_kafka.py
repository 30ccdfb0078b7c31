"""A broker for one test with TLS and passwords: one node with a plain listener and a secured one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from deploy.stack import open_stack
from deploy.stack.ports import choose_port
from deploy.stack.servers import kafka
from deploy.stack.servers.program import Site
from tests.harness.network.tls import make_certificates

USER = "tailrace"
PASSWORD_PARTS = ("Zq-secret", "secret-qZ")
"""How every password here begins and ends: too long to be part of a random base64 text by chance."""
PASSWORD = 'Zq-secret "password" \\ of tests secret-qZ'
WRONG_PASSWORD = "Zq-secret-wrong-secret-qZ"
_LISTENER = "listener.name.sasl_ssl"


class SecuredKafka:
    """`plain` is open, for the test's own reading; `port` is the other listener's, which knows itself as localhost.

    `certificates` has `right.pem`, the authority of the broker's certificate, and `wrong.pem`, another one.
    """

    def __init__(self, folder: Path) -> None:
        self.port = choose_port(set())
        self.certificates = folder / "certificates"
        self.certificates.mkdir()
        make_certificates(self.certificates)
        self._write_key_store()
        self._stack = open_stack(folder / "stack")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kafka, "_settings", self._settings(kafka._settings))
            self._stack.up(["kafka"])
        self.plain = self._stack.server("kafka").address
        self._add_user()

    @property
    def log(self) -> str:
        return self._stack.log_path("kafka").read_text()

    def close(self) -> None:
        self._stack.down()

    def section(self, host: str = "localhost", authority: str = "right", **sasl: str) -> dict[str, object]:
        """Keys of `[kafka]` for this listener."""
        named = {"mechanism": "SCRAM-SHA-512", "username": USER, "password": PASSWORD, **sasl}
        return {
            "bootstrap": f"{host}:{self.port}",
            "tls.ca": str(self.certificates / f"{authority}.pem"),
            **{f"sasl.{name}": value for name, value in named.items()},
        }

    def _write_key_store(self) -> None:
        """The broker's key and certificate in one file, as the Java client reads it."""
        parts = [(self.certificates / name).read_text() for name in ("server.key", "server.pem")]
        (self.certificates / "server-store.pem").write_text("".join(parts))

    def _settings(self, usual: Callable[[Site], dict[str, str]]) -> Callable[[Site], dict[str, str]]:
        login = "org.apache.kafka.common.security"
        quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")  # JAAS, then properties

        def settings(site: Site) -> dict[str, str]:
            found = usual(site)
            return {
                **found,
                "listeners": f"{found['listeners']},SASL_SSL://127.0.0.1:{self.port}",
                "advertised.listeners": f"{found['advertised.listeners']},SASL_SSL://localhost:{self.port}",
                "listener.security.protocol.map": f"{found['listener.security.protocol.map']},SASL_SSL:SASL_SSL",
                f"{_LISTENER}.ssl.keystore.type": "PEM",
                f"{_LISTENER}.ssl.keystore.location": str(self.certificates / "server-store.pem"),
                f"{_LISTENER}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                f"{_LISTENER}.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
                f"{_LISTENER}.plain.sasl.jaas.config": (
                    f'{login}.plain.PlainLoginModule required user_{USER}="{quoted}";'
                ),
            }

        return settings

    def _add_user(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.plain})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        added = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for made in admin.alter_user_scram_credentials([added]).values():
            made.result(30)
