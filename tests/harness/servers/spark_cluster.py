"""A real Spark cluster on this machine: a standalone master and workers, each a process, as are their executors."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from pathlib import Path
from signal import SIGKILL
from typing import Final

import psutil
import pyspark

from deploy.java import find_java
from tests.harness.processes.process import Process, StartProcess

_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """`settings` goes under `[spark]` of a config file. The processes end with the test that started them.

    Every connection needs the cluster's secret.
    """

    def __init__(self, start: StartProcess, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self.secret = secrets.token_hex(16)
        # A command line is for everyone on the machine to read, a properties file is not.
        self._properties = folder / "spark.conf"
        self._properties.write_text(f"spark.authenticate true\nspark.authenticate.secret {self.secret}\n")
        port = _free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._master = self._start(start, _MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        self._master.wait_for_line("Starting Spark master|I have been elected leader", 60)
        self._workers = [
            self._start(start, _WORKER, self.url, "--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "1g")
            for _ in range(workers)
        ]
        for worker in self._workers:
            worker.wait_for_line("Successfully registered with master", 60)

    def settings(self) -> str:
        """The workers here have no Python of their own: they are told which one has Tailrace in it."""
        return (
            f'[spark]\nmaster = "{self.url}"\n[spark.options]\n"spark.executor.memory" = "512m"\n'
            f'"spark.driver.host" = "127.0.0.1"\n"spark.pyspark.python" = "{sys.executable}"\n'
            f'"spark.authenticate.secret" = "{self.secret}"\n'
        )

    def executors(self) -> list[int]:
        """The pids of the executors that run now."""
        children = [child for worker in self._workers for child in psutil.Process(worker.pid).children(recursive=True)]
        return [child.pid for child in children if any(_EXECUTOR in word for word in _command(child))]

    def said(self) -> dict[str, str]:
        """All that master, workers and executors have written, by process or file."""
        files = [file for file in (self._folder / "work").rglob("*") if file.is_file()]
        return {
            **{f"process {process.pid}": process.output + process.errors for process in (self._master, *self._workers)},
            **{str(file): file.read_bytes().decode(errors="replace") for file in files},
        }

    def kill_an_executor(self) -> int:
        pid = self.executors()[0]
        os.kill(pid, SIGKILL)
        return pid

    def _start(self, start: StartProcess, *words: str) -> Process:
        return start(
            str(_CLASS),
            *words[:1],
            "--properties-file",
            str(self._properties),
            *words[1:],
            env={
                "JAVA_HOME": str(find_java().home),
                "SPARK_WORKER_DIR": str(self._folder / "work"),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )


def _command(process: psutil.Process) -> list[str]:
    """The process's command line, empty for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
