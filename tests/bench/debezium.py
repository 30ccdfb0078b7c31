"""A real Debezium under Kafka Connect's standalone worker: the peer that goldens and benchmarks are taken from.

Holds fetching, starting, waiting until it streams, and stopping. It knows nothing of what is compared.
It comes by name from the package registry, as the servers of the local stack do.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from urllib.error import URLError
from urllib.request import Request, urlopen

import psycopg
from psycopg.conninfo import conninfo_to_dict

from deploy.artifacts import RETRIEVE, Artifact, cache_folder, fetch, ivy_jar
from deploy.java import find_java
from deploy.progress import Quiet
from deploy.versions import CONNECT_JSON, CONNECT_RUNTIME, DEBEZIUM, KAFKA_LOGGING

# The settings under which our envelope equals Debezium's: docs/reference/types.md says why each.
ENVELOPE_SETTINGS = {
    "plugin.name": "pgoutput",
    "snapshot.mode": "no_data",
    "publication.autocreate.mode": "disabled",
    "decimal.handling.mode": "string",
    "hstore.handling.mode": "json",
    "interval.handling.mode": "string",
    "time.precision.mode": "isostring",
    "binary.handling.mode": "bytes",
    "include.unknown.datatypes": "true",
    "provide.transaction.metadata": "true",
    "tombstones.on.delete": "true",
}

_WORKER_SETTINGS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "offset.flush.interval.ms": "1000",
    "plugin.discovery": "service_load",
}

# Ivy reads the plugin's POM although only the archive is wanted, and its parent POM cannot be had: no POMs, then.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""

_IVY_MODULE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tailrace" module="peer"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{DEBEZIUM.group}" name="{DEBEZIUM.name}" rev="{DEBEZIUM.version}">
      <artifact name="{DEBEZIUM.name}" type="tar.gz" ext="tar.gz" m:classifier="plugin"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Where the worker's jars and the connector plugin lie."""

    jars: Path
    plugins: Path


def install(cache: Path | None = None) -> Installation:
    """Fetch Kafka Connect and Debezium into the cache that the local stack uses, once."""
    cache = cache_folder(os.environ) if cache is None else cache
    worker = Artifact(label="Kafka Connect", coordinates=(CONNECT_RUNTIME, CONNECT_JSON, KAFKA_LOGGING))
    jars = fetch(worker, cache=cache, progress=Quiet())
    plugins = cache / f"{DEBEZIUM.name}-{DEBEZIUM.version}"
    if not plugins.exists():
        with TemporaryDirectory(dir=cache) as scratch:
            ready = _fetch_plugin(Path(scratch))
            ready.rename(plugins)
    return Installation(jars=jars, plugins=plugins)


def _fetch_plugin(scratch: Path) -> Path:
    (scratch / "ivy.xml").write_text(_IVY_MODULE)
    (scratch / "ivysettings.xml").write_text(_IVY_SETTINGS)
    command = [find_java().binary, "-jar", ivy_jar(), "-settings", "ivysettings.xml", "-ivy", "ivy.xml"]
    command += ["-cache", scratch / "cache", "-confs", "default", "-types", "tar.gz"]
    command += ["-retrieve", scratch / RETRIEVE]
    done = subprocess.run([str(word) for word in command], cwd=scratch, capture_output=True, text=True, check=False)
    archives = list(scratch.glob("*.tar.gz"))
    if done.returncode != 0 or not archives:
        raise RuntimeError(f"Could not fetch {DEBEZIUM}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    with tarfile.open(archives[0]) as tar:
        tar.extractall(scratch / "ready", filter="data")
    return scratch / "ready"


def connector_settings(dsn: str, *, prefix: str, slot: str, publication: str) -> dict[str, str]:
    """The connector's own settings for a database that already has the publication."""
    parts = conninfo_to_dict(dsn)
    return {
        **ENVELOPE_SETTINGS,
        "name": f"debezium-{slot}",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": str(parts.get("host") or "127.0.0.1"),
        "database.port": str(parts.get("port") or 5432),
        "database.user": str(parts.get("user") or "postgres"),
        "database.password": str(parts.get("password") or ""),
        "database.dbname": str(parts.get("dbname") or parts.get("user") or "postgres"),
        "topic.prefix": prefix,
        "slot.name": slot,
        "publication.name": publication,
    }


class Debezium:
    """One Connect worker with one connector; a context manager that stops it."""

    def __init__(
        self,
        installation: Installation,
        folder: Path,
        *,
        dsn: str,
        bootstrap: str,
        connector: Mapping[str, str],
        worker: Mapping[str, str] | None = None,
        heap_mb: int = 1024,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._dsn = dsn
        self._connector = connector
        rest_port = _free_port()
        self._address = f"http://127.0.0.1:{rest_port}/connectors/{connector['name']}"
        self.log = folder / "connect.log"
        worker_file = folder / "worker.properties"
        _write_properties(
            worker_file,
            {
                **_WORKER_SETTINGS,
                "bootstrap.servers": bootstrap,
                "offset.storage.file.filename": str(folder / "offsets"),
                "plugin.path": str(installation.plugins),
                "listeners": f"http://127.0.0.1:{rest_port}",
                **(worker or {}),
            },
        )
        connector_file = folder / "connector.properties"
        _write_properties(connector_file, connector)
        command = [str(find_java().binary), f"-Xmx{heap_mb}m", "-Dlog4j2.level=warn"]
        command += ["-cp", f"{installation.jars}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
        command += [str(worker_file), str(connector_file)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Debezium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_streaming(self, timeout_seconds: float = 120) -> None:
        """Until the slot's walsender streams and the task runs."""
        self._wait("stream", self._is_streaming, timeout_seconds)

    def failure(self) -> str | None:
        """The stack trace of a task that died, or None while it runs."""
        for task in self._status().get("tasks", []):
            if task["state"] == "FAILED":
                return str(task["trace"])
        return None

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise with the reason if the worker ended or its task died."""
        ended = self._process.poll()
        trace = self.failure()
        if ended is not None or trace is not None:
            tail = trace or self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"Debezium failed (exit {ended}):\n{tail}")

    def halt(self, timeout_seconds: float = 60) -> None:
        """Take the connector off its slot; the worker lives on, with its code compiled as it is."""
        self._order("stop")
        self._wait("let go of its slot", self._is_idle, timeout_seconds)

    def resume(self) -> None:
        """Let the halted connector go on from where it was."""
        self._order("resume")

    def stop(self, timeout_seconds: float = 60) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _order(self, what: str) -> None:
        request = Request(f"{self._address}/{what}", method="PUT")  # noqa: S310  # our own worker
        urlopen(request, timeout=30).close()  # noqa: S310

    def _is_idle(self) -> bool:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(
                "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [self._connector["slot.name"]]
            ).fetchone()
        return row is not None and not row[0]

    def _is_streaming(self) -> bool:
        tasks = self._status().get("tasks", [])
        if not tasks or any(task["state"] != "RUNNING" for task in tasks):
            return False
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(
                "SELECT FROM pg_replication_slots AS slot JOIN pg_stat_replication AS sender"
                " ON sender.pid = slot.active_pid WHERE slot.slot_name = %s AND sender.state = 'streaming'",
                [self._connector["slot.name"]],
            ).fetchone()
        return row is not None

    def _status(self) -> dict[str, list[dict[str, str]]]:
        try:
            with urlopen(f"{self._address}/status", timeout=5) as answer:  # noqa: S310  # our own worker
                status: dict[str, list[dict[str, str]]] = json.load(answer)
        except (URLError, OSError):  # not up yet; the deadline of the caller decides
            return {}
        return status

    def _wait(self, what: str, condition: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"Debezium does not {what} after {timeout_seconds:.0f} s:\n{tail}")
            time.sleep(0.2)


def _write_properties(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
