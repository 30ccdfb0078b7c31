"""An Elasticsearch cluster for one test, whose nodes can be killed and started one by one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticsearch import ApiError, Elasticsearch, TransportError

from deploy.artifacts import cache_folder, fetch
from deploy.java import find_java
from deploy.progress import lines_on_stderr
from deploy.stack.account import Account, unprivileged_account
from deploy.stack.local import SYSTEM_CACHE
from deploy.stack.ports import choose_port
from deploy.stack.servers import elasticsearch
from deploy.stack.servers.program import properties
from tests.harness.processes.waiting import eventually


class OwnNode:
    """One node, not started yet. The first of a cluster is its only master: without it no other one works."""

    def __init__(self, folder: Path, name: str, install: Path, account: Account | None, seeds: Sequence[str]) -> None:
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None
        self._install = install
        self._home = folder / name
        self._log = folder / f"{name}.log"
        port, transport = choose_port(set()), choose_port(set())
        self.url = f"http://127.0.0.1:{port}"
        self.seed = f"127.0.0.1:{transport}"
        self.client = Elasticsearch(self.url, request_timeout=60)
        config = self._home / "config"
        for each in (config, self._home / "data", self._home / "tmp"):
            each.mkdir(parents=True)
        settings: dict[str, Any] = {
            "cluster.name": "own",
            "node.name": name,
            "network.host": "127.0.0.1",
            "http.port": port,
            "transport.port": transport,
            "path.data": self._home / "data",
            "path.logs": self._home / "logs",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            "xpack.security.enabled": "false",
            "node.roles": "[data]" if seeds else "[master, data]",
            "discovery.seed_hosts": f"[{', '.join(seeds)}]",
        }
        if not seeds:
            settings["cluster.initial_master_nodes"] = name
        (config / "elasticsearch.yml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        (config / "log4j2.properties").write_text(properties(elasticsearch.LOG4J))
        (config / "jvm.options").write_text("".join(f"{option}\n" for option in elasticsearch.JVM_OPTIONS))
        if account is not None:
            for each in (self._home, *self._home.rglob("*")):
                os.chown(each, account.uid, account.gid)

    def start(self) -> None:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            "ES_JAVA_HOME": str(find_java().home),
            "ES_JAVA_OPTS": "-Xms256m -Xmx256m",
            "ES_PATH_CONF": str(self._home / "config"),
            "ES_TMPDIR": str(self._home / "tmp"),
        }
        account = self._account
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._install / "bin" / "elasticsearch")],
                env=environ,
                cwd=self._home,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        eventually(self._answers, 180, f"the node to answer; see {self._log}")

    def kill(self) -> None:
        """As `kill -9` does it, to the server and its launcher."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self.client.close()

    def _answers(self) -> bool:
        try:
            return bool(self.client.cluster.health()["number_of_nodes"])
        except (ApiError, TransportError):
            return False


@contextmanager
def own_cluster(folder: Path, count: int) -> Iterator[list[OwnNode]]:
    """A cluster of this number of nodes."""
    account = unprivileged_account()
    cache = cache_folder(os.environ)
    if account is not None and not account.can_enter(cache):
        cache = SYSTEM_CACHE
    install = elasticsearch.Elasticsearch().install(
        lambda artifact: fetch(artifact, cache=cache, progress=lines_on_stderr())
    )
    nodes: list[OwnNode] = []
    try:
        for number in range(count):
            nodes.append(OwnNode(folder, f"node{number}", install, account, [each.seed for each in nodes[:1]]))
            nodes[-1].start()
        yield nodes
    finally:
        for node in nodes:
            node.close()
        shutil.rmtree(folder, ignore_errors=True)
