"""TLS in front of a server that has none, and certificates for it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

from tests.harness.network.proxy import Proxy


class TlsFront(Proxy):
    """Speaks TLS to the program and plain TCP to the server."""

    def __init__(self, target_host: str, target_port: int, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(target_host, target_port)

    async def _listen(self) -> None:
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._welcome, self.host, self.port, ssl=self._context)
            self.port = self._server.sockets[0].getsockname()[1]


def make_certificates(folder: Path) -> None:
    """Two authorities, `right.pem` and `wrong.pem`; the right one signed `server` (localhost) and `client`.

    `locked.key` is the client's key again, under the password `secret`.
    """
    for name in ("right", "wrong"):
        _openssl(folder, "req", "-x509", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    for name in ("server", "client"):
        _openssl(folder, "req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=localhost")
        issue = ("-CA", "right.pem", "-CAkey", "right.key", "-CAcreateserial", "-extfile", "names")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *issue, "-out", f"{name}.pem")
    encrypt = ("-topk8", "-in", "client.key", "-out", "locked.key", "-passout", "pass:secret")
    _openssl(folder, "pkcs8", *encrypt)


def server_context(folder: Path, *, wants_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "right.pem")
    return context


_KEY = ("-newkey", "rsa:2048", "-nodes")


def _openssl(folder: Path, *arguments: str) -> None:
    binary = shutil.which("openssl")
    assert binary, "this test makes certificates with the openssl command"
    subprocess.run([binary, *arguments], cwd=folder, check=True, capture_output=True)
