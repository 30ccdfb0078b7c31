"""A Redis server for one test, which can be killed, restarted and misconfigured."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import redis

from deploy.stack.ports import choose_port
from deploy.stack.servers.redis import find_redis_server
from tests.harness.processes.waiting import eventually


class OwnRedis:
    """`settings` go on its command line, as the words after `--`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.port = choose_port(set())
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        argv = [str(find_redis_server()), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder)]
        for name, value in self._settings.items():
            argv += [f"--{name.replace('_', '-')}", *value.split(" ")]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._answers, what="Redis to answer")

    def kill(self) -> None:
        """As `kill -9` does it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: the server accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False
