"""OpenSearch of the local stack: one node, no security, no disk watermarks. It starts only by name."""

from __future__ import annotations

import signal
from pathlib import Path

from cdc.errors import UsageError
from deploy import versions
from deploy.artifacts import Artifact
from deploy.java import REMEDY, find_java
from deploy.stack.model import HOST
from deploy.stack.process import Launch
from deploy.stack.servers.elasticsearch import HEAP, LOG4J, unpack
from deploy.stack.servers.program import Fetch, Site, properties

SETTINGS = {"discovery.type": "single-node", "cluster.routing.allocation.disk.threshold_enabled": "false"}
JVM_OPTIONS = (
    "-Djava.io.tmpdir=${OPENSEARCH_TMPDIR}",
    "-XX:+ExitOnOutOfMemoryError",
    "18-:-Djava.security.manager=allow",
    "-Djava.util.concurrent.ForkJoinPool.common.threadFactory="
    "org.opensearch.secure_sm.SecuredForkJoinWorkerThreadFactory",
)


class OpenSearch:
    """The real server with few modules, as its makers publish it for integration tests."""

    name = "opensearch"
    version = versions.OPENSEARCH_VERSION
    refuses_root = True
    stop_signal = signal.SIGTERM

    def install(self, fetch: Fetch) -> Path:
        """The unpacked distribution; read only, everything that changes is under the home."""
        return fetch(Artifact(label=self.name, coordinates=(versions.OPENSEARCH,), unpack=unpack))

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
        site.write("config/opensearch.yml", "".join(f"{key}: {value}\n" for key, value in settings.items()))
        site.write("config/log4j2.properties", properties(LOG4J))
        site.write("config/jvm.options", "".join(f"{option}\n" for option in JVM_OPTIONS))
        site.folder("tmp")

    def command(self, install: Path, site: Site) -> Launch:
        """Its own start script, told where Java and the configuration are."""
        java = find_java()
        if site.account and not site.account.can_enter(java.home):
            raise UsageError(
                f"OpenSearch runs as `{site.account.name}`, which may not enter {java.home}.", remedy=REMEDY
            )
        environ = site.environ(
            OPENSEARCH_JAVA_HOME=str(java.home),
            OPENSEARCH_JAVA_OPTS=HEAP,
            OPENSEARCH_PATH_CONF=str(site.home / "config"),
            OPENSEARCH_TMPDIR=str(site.home / "tmp"),
        )
        argv = [str(install / "bin" / "opensearch")]
        return Launch(argv=argv, environ=environ, folder=site.home, account=site.account)
