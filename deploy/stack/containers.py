"""The stack as containers, where a Docker engine answers: the same servers, settings and interface as local.py.

A container is found by its name, which follows from the folder, so `down` finds what a killed `up` left. Data is in
one named volume per server. Not exercised where the tests run without Docker: what differs from local.py is kept small.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped]
from docker.errors import DockerException, NotFound  # type: ignore[import-untyped]
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from cdc.errors import TailraceError, UsageError
from deploy import versions
from deploy.progress import ProgressDisplay
from deploy.stack.choices import Wishes, checked, in_parallel, known, settle
from deploy.stack.health import probe
from deploy.stack.images import images
from deploy.stack.model import CONTAINERS, HOST, NAMES, OPTIONAL_NAMES, Server, address_of
from deploy.stack.ports import check_free
from deploy.stack.state import StackState, load_state, locked, save_state

HEALTH_SECONDS = 180.0
STOP_SECONDS = 60


def engine_answers(address: str) -> bool:
    """Whether the Docker engine at this address answers."""
    try:
        client = docker.DockerClient(base_url=address, timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except DockerException:
        return False


class ContainerStack:
    """See `model.Stack`."""

    def __init__(self, folder: Path, wishes: Wishes, progress: ProgressDisplay) -> None:
        # testcontainers would remove everything when this process ends; the stack outlives the command.
        testcontainers_config.ryuk_disabled = True
        self.folder = folder
        self._wishes = wishes
        self._progress = progress
        self._engine = DockerClient().client

    def up(self, names: Sequence[str] = NAMES) -> None:
        """Starts what does not run yet, in parallel, and waits until all of it is healthy."""
        wanted = checked(names)
        for name in wanted:
            if name in OPTIONAL_NAMES:
                raise UsageError(f"There is no container of {name} here.", remedy="Run with --kind processes.")
        with locked(self.folder):
            state = load_state(self.folder) or StackState(kind=CONTAINERS)
            settle(state, self._wishes, wanted, running=self._running, folder=self.folder)
            save_state(self.folder, state)
            in_parallel(lambda name: self._launch(name, state), wanted)
        in_parallel(lambda name: self._await_health(name, state), wanted)

    def down(self, *, wipe: bool = False) -> None:
        """Stops and removes this folder's containers; the volumes go only with `wipe`."""
        if not self.folder.exists():
            return
        with locked(self.folder):
            in_parallel(lambda name: self._end(name, wipe=wipe), NAMES)
            if wipe:
                (self.folder / "state.json").unlink(missing_ok=True)

    def status(self) -> list[Server]:
        """Every server that was asked for, in the usual order."""
        state = load_state(self.folder)
        if state is None:
            return []
        asked = [name for name in NAMES if name in state.asked]
        return list(in_parallel(lambda name: self._describe(name, state), asked).values())

    def server(self, name: str) -> Server:
        """One server."""
        return self._describe(name, self._known(name))

    def stop(self, name: str, sig: signal.Signals = signal.SIGTERM) -> None:
        """A container's main process takes all others with it; freezing is Docker's pause."""
        self._known(name)
        container = self._find(name)
        if container is None or container.status not in {"running", "paused"}:
            return
        if sig == signal.SIGSTOP:
            container.pause()
        elif sig == signal.SIGCONT:
            container.unpause()
        elif sig == signal.SIGTERM:
            container.stop(timeout=STOP_SECONDS)  # with the image's own signal: Postgres's is its fast shutdown
        else:
            container.kill(signal=sig.name)
            container.wait(timeout=STOP_SECONDS)

    def start(self, name: str) -> None:
        """Starts one server again."""
        self._known(name)
        self.up((name,))

    def home(self, name: str) -> Path:
        """A container's files are in a volume, out of reach."""
        raise UsageError(f"{name} runs in a container: its files are in the volume {self._title(name)}.")

    def log_path(self, name: str) -> Path:
        """A copy of the container's output up to now."""
        self._known(name)
        path = self.folder / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        container = self._find(name)
        if container is not None:
            path.write_bytes(container.logs())
        return path

    # ---- one server

    def _launch(self, name: str, state: StackState) -> None:
        container = self._find(name)
        if container is not None and container.status == "paused":
            container.unpause()
        elif container is not None and container.status != "running":
            check_free(name, state.ports[name])
            container.start()
        elif container is None:
            check_free(name, state.ports[name])
            self._create(name, state)

    def _create(self, name: str, state: StackState) -> None:
        image = images(self._wishes.major(state), self._wishes.settings(state), state.ports["kafka"])[name]
        self._progress.show(name, f"fetching and starting {image.name}")
        container = DockerContainer(image.name, name=self._title(name), env=dict(image.environ))
        # Loopback only, there is no password; the annotation knows numbers only, the engine takes pairs.
        ports: Any = {f"{image.port}/tcp": (HOST, state.ports[name])}
        container.ports = ports
        container.with_volume_mapping(self._volume(name, state), image.data, "rw")
        if image.command:
            container.with_command(list(image.command))
        try:
            container.start()
        except DockerException as error:
            raise TailraceError(
                f"{name} could not be started from {image.name}: {error}.",
                remedy="Check that Docker can pull it (docker pull), or run again with --kind processes.",
            ) from error

    def _await_health(self, name: str, state: StackState) -> None:
        deadline = time.monotonic() + HEALTH_SECONDS
        port = state.ports[name]
        while not probe(name, port):
            if not self._running(name) or time.monotonic() > deadline:
                raise TailraceError(f"{name} did not come up.", remedy=f"Run: docker logs {self._title(name)}")
            time.sleep(0.2)
        self._progress.done(name, f"ready at {address_of(name, port)}")

    def _end(self, name: str, *, wipe: bool) -> None:
        container = self._find(name)
        if container is not None:
            if container.status == "paused":
                container.unpause()
            container.stop(timeout=STOP_SECONDS)
            container.remove(force=True)
        state = load_state(self.folder)
        if wipe and state is not None:
            for volume in self._engine.volumes.list(filters={"name": self._title(name)}):
                volume.remove(force=True)

    def _describe(self, name: str, state: StackState) -> Server:
        port = state.ports[name]
        version = probe(name, port) if self._running(name) else None
        expected = {"kafka": versions.KAFKA_VERSION, "elasticsearch": versions.ELASTICSEARCH_VERSION}
        return Server(
            name=name,
            address=address_of(name, port),
            host=HOST,
            port=port,
            pid=None,
            healthy=version is not None,
            version=version or expected.get(name, "unknown"),
            log=None,
        )

    def _known(self, name: str) -> StackState:
        return known(name, load_state(self.folder), self.folder)

    def _running(self, name: str) -> bool:
        container = self._find(name)
        return container is not None and container.status in {"running", "paused"}

    def _find(self, name: str) -> Any:
        try:
            return self._engine.containers.get(self._title(name))
        except NotFound:
            return None

    def _title(self, name: str) -> str:
        return f"tailrace-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]}-{name}"

    def _volume(self, name: str, state: StackState) -> str:
        """Each Postgres major has its own data."""
        return f"{self._title(name)}-{self._wishes.major(state)}" if name == "postgres" else self._title(name)
