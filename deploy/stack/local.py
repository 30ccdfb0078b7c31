"""The stack as local processes: decides ports and folders, starts and stops the four servers, waits for health.

Downloads happen before the folder's lock is taken, starts under it, and the wait for health after it, so that a
`down` never waits for more than a few seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from cdc.errors import TailraceError
from deploy.artifacts import cache_folder, fetch
from deploy.progress import ProgressDisplay
from deploy.stack import process
from deploy.stack.account import Account, unprivileged_account
from deploy.stack.choices import Wishes, checked, in_parallel, known, settle
from deploy.stack.health import probe
from deploy.stack.model import ALL_NAMES, HOST, NAMES, PROCESSES, Server, address_of
from deploy.stack.ports import check_free
from deploy.stack.servers.elasticsearch import Elasticsearch
from deploy.stack.servers.kafka import Kafka
from deploy.stack.servers.opensearch import OpenSearch
from deploy.stack.servers.postgres import Postgres
from deploy.stack.servers.program import Program, Site
from deploy.stack.servers.redis import Redis
from deploy.stack.state import StackRecord, StackState, load_record, load_state, locked, record_path, save_state

HEALTH_SECONDS = 180.0
STOP_SECONDS = 60.0
LOG_KEPT_BYTES = 20_000_000
# As root: where another account can reach files that are below a folder it may not enter.
SYSTEM_CACHE = Path("/var/cache/tailrace")
SYSTEM_DATA = Path("/var/lib/tailrace")


class LocalStack:
    """See `model.Stack`."""

    def __init__(self, folder: Path, wishes: Wishes, progress: ProgressDisplay) -> None:
        self.folder = folder
        self._wishes = wishes
        self._progress = progress
        self._log_starts: dict[str, int] = {}

    def up(self, names: Sequence[str] = NAMES) -> None:
        """Starts what does not run yet, in parallel, and waits until all of it is healthy."""
        wanted = checked(names)
        account = unprivileged_account()
        programs = self._programs(self._load() or StackState())
        installs = in_parallel(lambda name: self._install(programs[name], account), wanted)
        with locked(self.folder) as lock_fd:
            state = self._settle(wanted, account)
            due = [name for name in wanted if not self._alive(name)]
            for name in due:
                check_free(name, state.ports[name])
            in_parallel(lambda name: self._launch(programs[name], installs[name], state, account, lock_fd), due)
        in_parallel(self._await_health, wanted)

    def down(self, *, wipe: bool = False) -> None:
        """Stops what runs of this folder, whoever started it."""
        if not self.folder.exists():
            return
        with locked(self.folder):
            in_parallel(self._end, ALL_NAMES)
            if wipe:
                self._wipe()

    def status(self) -> list[Server]:
        """Every server that was asked for, in the usual order."""
        state = self._load()
        if state is None:
            return []
        asked = [name for name in ALL_NAMES if name in state.asked]
        return list(in_parallel(lambda name: self._describe(name, state), asked).values())

    def server(self, name: str) -> Server:
        """One server."""
        return self._describe(name, self._known(name))

    def stop(self, name: str, sig: signal.Signals = signal.SIGTERM) -> None:
        """SIGTERM stands for "in good order", which for Postgres is its fast shutdown."""
        program = self._programs(self._known(name))[name]
        with locked(self.folder):
            record = load_record(self.folder, name)
            if record is None or not record.alive:
                return
            if sig in {signal.SIGSTOP, signal.SIGCONT}:
                process.send_tree(record, sig)
            elif sig == signal.SIGKILL:
                process.kill_tree(record)
            else:
                process.send(record, program.stop_signal if sig == signal.SIGTERM else sig)
                if not process.wait_gone(record, STOP_SECONDS):
                    raise TailraceError(f"{name} did not stop within {STOP_SECONDS:.0f} seconds of {sig.name}.")

    def start(self, name: str) -> None:
        """Starts one server again."""
        self._known(name)
        self.up((name,))

    def home(self, name: str) -> Path:
        """Where the server's data is; below `folder` unless its account may not go there."""
        state = self._known(name)
        return Path(state.homes[_home_key(name, state)])

    def log_path(self, name: str) -> Path:
        """Always below `folder`."""
        return self.folder / "logs" / f"{name}.log"

    # ---- what the folder remembers

    def _load(self) -> StackState | None:
        return load_state(self.folder)

    def _known(self, name: str) -> StackState:
        return known(name, self._load(), self.folder)

    def _settle(self, names: Sequence[str], account: Account | None) -> StackState:
        """Decides what is not decided yet, and writes it down before anything starts."""
        state = self._load() or StackState(kind=PROCESSES)
        settle(state, self._wishes, names, running=self._alive, folder=self.folder)
        programs = self._programs(state)
        for name in names:
            base = self.folder
            if account and programs[name].refuses_root and not account.can_enter(base):
                base = self._elsewhere()
            key = _home_key(name, state)
            state.homes.setdefault(key, str(base / key))
        save_state(self.folder, state)
        return state

    def _programs(self, state: StackState) -> dict[str, Program]:
        postgres = Postgres(self._wishes.major(state), self._wishes.settings(state))
        programs: tuple[Program, ...] = (postgres, Kafka(), Elasticsearch(), OpenSearch(), Redis())
        return {program.name: program for program in programs}

    # ---- one server

    def _install(self, program: Program, account: Account | None) -> Path:
        cache = cache_folder(os.environ)
        if account and program.refuses_root and not account.can_enter(cache):
            cache = SYSTEM_CACHE
        return program.install(lambda artifact: fetch(artifact, cache=cache, progress=self._progress))

    def _launch(
        self, program: Program, install: Path, state: StackState, account: Account | None, lock_fd: int
    ) -> None:
        name = program.name
        runs_as = account if program.refuses_root else None
        home = Path(state.homes[_home_key(name, state)])
        self._clear_strays(name, home)
        home.mkdir(parents=True, exist_ok=True)
        if runs_as:
            os.chown(home, runs_as.uid, runs_as.gid)
        site = Site(
            home=home,
            port=state.ports[name],
            inner_port=state.ports[f"{name}.inner"],
            account=runs_as,
            mark=self._mark(name),
            lock_fd=lock_fd,
        )
        self._progress.show(name, "starting")
        program.prepare(install, site)
        log = self.log_path(name)
        _rotate(log)
        self._log_starts[name] = log.stat().st_size if log.exists() else 0
        process.launch(
            name,
            program.command(install, site),
            stack=self.folder,
            port=site.port,
            version=program.version,
            log=log,
            lock_fd=lock_fd,
        )

    def _await_health(self, name: str) -> None:
        deadline = time.monotonic() + HEALTH_SECONDS
        while True:
            record = load_record(self.folder, name)
            if record is None or not record.alive:
                raise TailraceError(
                    f"{name} ended while it started: {self._last_log_lines(name)}",
                    remedy=f"Its log is {self.log_path(name)}.",
                )
            if probe(name, record.port):
                self._progress.done(name, f"ready at {address_of(name, record.port)}")
                return
            if time.monotonic() > deadline:
                raise TailraceError(
                    f"{name} runs but does not answer after {HEALTH_SECONDS:.0f} seconds.",
                    remedy=f"Its log is {self.log_path(name)}.",
                )
            time.sleep(0.1)

    def _last_log_lines(self, name: str) -> str:
        """The line of the log, since this start, that most likely says why."""
        log = self.log_path(name)
        text = log.read_bytes()[self._log_starts.get(name, 0) :].decode(errors="replace") if log.exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if re.search(r"FATAL|ERROR|Exception|fatal", line)]
        return (telling or lines or ["it wrote nothing."])[-1]

    def _end(self, name: str) -> None:
        record = load_record(self.folder, name)
        if record is None:
            return
        state = self._load() or StackState()
        process.stop_gracefully(record, self._programs(state)[name].stop_signal)
        home = state.homes.get(_home_key(name, state))
        self._clear_strays(name, Path(home) if home else self.folder / name)
        record_path(self.folder, name).unlink(missing_ok=True)

    def _clear_strays(self, name: str, home: Path) -> None:
        left = process.strays(self._mark(name), name, home)
        for stray in left:
            stray.kill()
        process.wait_all_gone(left)

    def _describe(self, name: str, state: StackState) -> Server:
        record = self._live_record(name)
        port = record.port if record else state.ports[name]
        version = probe(name, port) if record else None
        return Server(
            name=name,
            address=address_of(name, port),
            host=HOST,
            port=port,
            pid=record.pid if record else None,
            healthy=version is not None,
            version=version or self._programs(state)[name].version,
            log=self.log_path(name),
        )

    def _live_record(self, name: str) -> StackRecord | None:
        record = load_record(self.folder, name)
        return record if record and record.alive else None

    def _alive(self, name: str) -> bool:
        return self._live_record(name) is not None

    def _mark(self, name: str) -> str:
        return f"{self.folder}#{name}"

    def _elsewhere(self) -> Path:
        """Where data goes that cannot be below our folder."""
        return SYSTEM_DATA / hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]

    def _wipe(self) -> None:
        state = self._load() or StackState()
        for name in (*state.homes.values(), "logs", "run"):
            shutil.rmtree(self.folder / name, ignore_errors=True)  # a home's path is absolute, and stays as it is
        with contextlib.suppress(OSError):  # there is none, unless a server's account may not enter our folder
            self._elsewhere().rmdir()
        (self.folder / "state.json").unlink(missing_ok=True)


def _home_key(name: str, state: StackState) -> str:
    """Each Postgres major has its own data."""
    return f"{name}-{state.postgres_major}" if name == "postgres" else name


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_KEPT_BYTES:
        log.replace(log.with_suffix(".log.1"))
