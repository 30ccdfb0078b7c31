"""Elasticsearch of the local stack: one node, no security, no disk watermarks."""

from __future__ import annotations

import signal
import stat
import zipfile
from pathlib import Path

from cdc.errors import UsageError
from deploy import versions
from deploy.artifacts import Artifact
from deploy.java import REMEDY, find_java
from deploy.stack.model import HOST
from deploy.stack.process import Launch
from deploy.stack.servers.program import Fetch, Site, properties

HEAP = "-Xms512m -Xmx512m"
# The same in compose.yaml and containers.py; a unit test compares.
SETTINGS = {
    "discovery.type": "single-node",
    "xpack.security.enabled": "false",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}
# Where `fs` repositories may be, in a container; as a process it is a folder under the home.
CONTAINER_SNAPSHOTS = "/tmp/snapshots"  # noqa: S108  # inside the container
JVM_OPTIONS = (
    "-Djava.io.tmpdir=${ES_TMPDIR}",
    "-XX:+ExitOnOutOfMemoryError",
    "20-:--add-modules=jdk.incubator.vector",
)
LOG4J = {
    "status": "error",
    "appender.console.type": "Console",
    "appender.console.name": "console",
    "appender.console.layout.type": "PatternLayout",
    "appender.console.layout.pattern": "[%d{ISO8601}][%-5p][%-25c{1.}] %m%consoleException%n",
    "rootLogger.level": "info",
    "rootLogger.appenderRef.console.ref": "console",
}


class Elasticsearch:
    """The real server with few modules, as its makers publish it for integration tests."""

    name = "elasticsearch"
    version = versions.ELASTICSEARCH_VERSION
    refuses_root = True
    stop_signal = signal.SIGTERM

    def install(self, fetch: Fetch) -> Path:
        """The unpacked distribution; read only, everything that changes is under the home."""
        return fetch(Artifact(label=self.name, coordinates=(versions.ELASTICSEARCH,), unpack=unpack))

    def prepare(self, install: Path, site: Site) -> None:  # noqa: ARG002  # the seam's signature
        """Writes the configuration."""
        settings = {
            "cluster.name": "tailrace",
            "node.name": "tailrace",
            "network.host": HOST,
            "http.port": str(site.port),
            "transport.port": str(site.inner_port),
            "path.data": str(site.folder("data")),
            "path.logs": str(site.folder("logs")),
            "path.repo": str(site.folder("snapshots")),
            **SETTINGS,
        }
        site.write("config/elasticsearch.yml", "".join(f"{key}: {value}\n" for key, value in settings.items()))
        site.write("config/log4j2.properties", properties(LOG4J))
        site.write("config/jvm.options", "".join(f"{option}\n" for option in JVM_OPTIONS))
        site.folder("tmp")

    def command(self, install: Path, site: Site) -> Launch:
        """Its own start script, told where Java and the configuration are."""
        java = find_java()
        if site.account and not site.account.can_enter(java.home):
            raise UsageError(
                f"Elasticsearch runs as `{site.account.name}`, which may not enter {java.home}.", remedy=REMEDY
            )
        environ = site.environ(
            ES_JAVA_HOME=str(java.home),
            ES_JAVA_OPTS=HEAP,
            ES_PATH_CONF=str(site.home / "config"),
            ES_TMPDIR=str(site.home / "tmp"),
        )
        argv = [str(install / "bin" / "elasticsearch")]
        return Launch(argv=argv, environ=environ, folder=site.home, account=site.account)


def unpack(files: Path, target: Path) -> None:
    """Python's zip module forgets modes; the scripts must stay executable, and all of it readable by another user."""
    (packed,) = files.glob("*.zip")
    with zipfile.ZipFile(packed) as outer:
        outer.extractall(target)
        for entry in outer.infolist():
            executable = (entry.external_attr >> 16) & stat.S_IXUSR
            (target / entry.filename).chmod(0o755 if executable or entry.is_dir() else 0o644)
    (top,) = (path for path in target.iterdir() if path.is_dir())
    for path in top.iterdir():
        path.rename(target / path.name)
    top.rmdir()
