"""Kafka of the local stack: one node that is broker and controller (KRaft), set up for transactions on one broker."""

from __future__ import annotations

import signal
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from deploy import versions
from deploy.artifacts import Artifact
from deploy.java import find_java
from deploy.stack.model import HOST
from deploy.stack.process import Launch, run_as
from deploy.stack.servers.program import Fetch, Site, properties

# The same in compose.yaml and containers.py; a unit test compares.
SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "3000",
    "log.cleaner.dedupe.buffer.size": "33554432",
}
HEAP = ("-Xms256m", "-Xmx512m")
LOG4J = {
    "status": "error",
    "shutdownHook": "disable",  # else the last lines of an orderly stop are missing
    "appender.console.type": "Console",
    "appender.console.name": "console",
    "appender.console.layout.type": "PatternLayout",
    "appender.console.layout.pattern": "[%d] %p %m (%c)%n",
    "rootLogger.level": "info",
    "rootLogger.appenderRef.console.ref": "console",
}


class Kafka:
    """The broker."""

    name = "kafka"
    version = versions.KAFKA_VERSION
    refuses_root = False
    stop_signal = signal.SIGTERM

    def install(self, fetch: Fetch) -> Path:
        """A folder of jars."""
        artifact = Artifact(label=self.name, coordinates=(versions.KAFKA, versions.KAFKA_LOGGING))
        return fetch(artifact)

    def prepare(self, install: Path, site: Site) -> None:
        """Writes the configuration; formats the log folder on the first start."""
        site.write("log4j2.properties", properties(LOG4J))
        config = site.write("server.properties", properties(_settings(site)))
        data = site.folder("data")
        if not (data / "meta.properties").exists():
            cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            # `=`: an id may begin with a dash, which would read as an option.
            arguments = ["format", f"--cluster-id={cluster_id}", "--config", str(config)]
            command = _java(install, site, "kafka.tools.StorageTool", *arguments)
            run_as(None, command, environ=site.environ(), lock_fd=site.lock_fd)

    def command(self, install: Path, site: Site) -> Launch:
        """The broker's own main class; the start scripts are not in the registry."""
        argv = _java(install, site, "kafka.Kafka", str(site.home / "server.properties"))
        return Launch(argv=argv, environ=site.environ(), folder=site.home)


def _java(install: Path, site: Site, main: str, *arguments: str) -> list[str]:
    return [
        str(find_java().binary),
        *HEAP,
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={site.home / 'log4j2.properties'}",
        "-cp",
        f"{install}/*",
        main,
        *arguments,
    ]


def _settings(site: Site) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{site.inner_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{site.port},CONTROLLER://{HOST}:{site.inner_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{site.port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(site.home / "data"),
        **SETTINGS,
    }
