"""Postgres of the local stack: a cluster with logical decoding on, reachable on loopback without a password."""

from __future__ import annotations

import platform
import shutil
import signal
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdc.errors import TailraceError, UsageError
from deploy import versions
from deploy.artifacts import Artifact
from deploy.stack.model import HOST
from deploy.stack.process import Launch, run_as
from deploy.stack.servers.program import Fetch, Site

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_prepared_transactions": "10",
    "max_connections": "200",
    "log_line_prefix": "%m [%p] %d ",
}


# Early patch releases of Python 3.10 and 3.11 do not know the argument yet.
_EXTRACT: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


class Postgres:
    """One major version. Durable as Postgres is by default; `settings` may say otherwise."""

    name = "postgres"
    refuses_root = True
    stop_signal = signal.SIGINT  # fast shutdown: does not wait for clients to leave

    def __init__(self, major: int, settings: Mapping[str, str]) -> None:
        if major not in versions.POSTGRES:
            known = ", ".join(str(each) for each in versions.POSTGRES)
            raise UsageError(f"There is no Postgres {major} here.", remedy=f"Choose one of {known}.")
        self.version = versions.POSTGRES[major]
        self._major = major
        self._settings = {**SETTINGS, **settings}

    def install(self, fetch: Fetch) -> Path:
        """The unpacked binaries for this machine."""
        return fetch(Artifact(label=self.name, coordinates=(binaries(self._major, *_machine()),), unpack=_unpack))

    def prepare(self, install: Path, site: Site) -> None:
        """Makes the cluster on the first start, beside its place, so that a killed initdb is not taken for one."""
        data = site.home / "data"
        if not data.exists():
            part = site.home / "data.part"
            shutil.rmtree(part, ignore_errors=True)
            command = [install / "bin" / "initdb", "-D", part, "-U", "postgres", "-A", "trust"]
            options = ["--encoding=UTF8", "--no-locale"]
            if self._settings.get("fsync") == "off":
                options.append("--no-sync")
            run_as(site.account, [*map(str, command), *options], environ=site.environ(), lock_fd=site.lock_fd)
            with (part / "postgresql.conf").open("a") as conf:
                conf.write("include_if_exists = '../settings.conf'\n")
            part.rename(data)
        # The stack knows that no server runs on this data. Postgres would not: where nobody collects dead processes
        # (a container without an init), the pid in its lock file still exists.
        (data / "postmaster.pid").unlink(missing_ok=True)
        site.write("settings.conf", self._configuration(site.port))

    def command(self, install: Path, site: Site) -> Launch:
        """Settings come from the file, not the command line, so that ALTER SYSTEM can override them."""
        argv = [str(install / "bin" / "postgres"), "-D", str(site.home / "data")]
        return Launch(argv=argv, environ=site.environ(), folder=site.home, account=site.account)

    def _configuration(self, port: int) -> str:
        # No Unix socket: its path has to be short, and nothing here needs one.
        fixed = {"listen_addresses": HOST, "port": str(port), "unix_socket_directories": ""}
        quoted = {key: value.replace("'", "''") for key, value in {**self._settings, **fixed}.items()}
        return "".join(f"{key} = '{value}'\n" for key, value in quoted.items())


def binaries(major: int, system: str, machine: str) -> versions.Coordinates:
    """The artifact for a machine, as `platform` names it."""
    alias = {"amd64": "x86_64"}.get(machine, machine)
    target = versions.POSTGRES_PLATFORMS.get((system, alias))
    if target is None:
        raise UsageError(
            f"There are no Postgres binaries for {system} on {machine}.",
            remedy="Start Docker: the stack then runs in containers.",
        )
    minor = versions.POSTGRES_ELSEWHERE.get((major, target), versions.POSTGRES[major])
    name = versions.POSTGRES_NAME.format(platform=target)
    return versions.Coordinates(versions.POSTGRES_GROUP, name, f"{minor}.0")


def _machine() -> tuple[str, str]:
    return platform.system(), platform.machine()


def _unpack(files: Path, target: Path) -> None:
    """A compressed tar inside a jar."""
    (jar,) = files.glob("*.jar")
    with zipfile.ZipFile(jar) as outer:
        (inner,) = (name for name in outer.namelist() if name.endswith(".txz"))
        try:
            with outer.open(inner) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
                tar.extractall(target, **_EXTRACT)  # noqa: S202  # a pinned artifact, and filtered
        except tarfile.CompressionError as error:
            raise TailraceError(
                "This Python was built without lzma, which unpacks Postgres.",
                remedy="Install liblzma-dev and build Python again, or use your system's Python.",
            ) from error
