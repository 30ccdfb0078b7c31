"""Processes of the local stack: start one detached, signal exactly it and its children, wait until it is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from cdc.errors import TailraceError
from deploy.stack import launch as launch_script
from deploy.stack.account import Account
from deploy.stack.state import StackRecord, load_record, record_path

GRACE_SECONDS = 20.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a server."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    folder: Path
    account: Account | None = None


def launch(name: str, what: Launch, *, stack: Path, port: int, version: str, log: Path, lock_fd: int) -> StackRecord:
    """Starts the server in a session of its own; returns once its record is written and it runs."""
    path = record_path(stack, name)
    for folder in (path.parent, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    account = what.account
    spec = {
        **asdict(what),
        "folder": str(what.folder),
        "environ": dict(what.environ),
        "uid": account.uid if account else None,
        "gid": account.gid if account else None,
        "record": {"name": name, "port": port, "version": version},
        "record_path": str(path),
        "log": str(log),
        "lock_fd": lock_fd,
    }
    script = [sys.executable, "-S", "-E", launch_script.__file__, json.dumps(spec)]
    started = subprocess.run(script, capture_output=True, text=True, pass_fds=(lock_fd,), check=False)
    record = load_record(stack, name)
    if started.returncode != 0 or record is None:
        raise TailraceError(f"{name} could not be started: {started.stderr.strip()}.")
    return record


def run_as(account: Account | None, argv: Sequence[str], *, environ: Mapping[str, str], lock_fd: int) -> None:
    """Runs a preparing program to its end; it holds the stack's lock too, so a killed `up` does not free it early."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=dict(environ),
        cwd="/",
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        pass_fds=(lock_fd,),
        check=False,
    )
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise TailraceError(f"{Path(argv[0]).name} failed: {said[-1] if said else 'without a word'}")


def send(record: StackRecord, sig: signal.Signals) -> None:
    """Signals the server's main process, if it still is that process."""
    if record.alive:
        try:
            os.kill(record.pid, sig)
        except ProcessLookupError:
            return


def send_tree(record: StackRecord, sig: signal.Signals) -> None:
    """Signals the main process and everything below it. It is frozen first, so that it forks nothing meanwhile."""
    if not record.alive:
        return
    send(record, signal.SIGSTOP)
    tree = _descendants(record.pid)
    for process in tree:
        try:
            process.send_signal(sig)  # psutil compares start times: never a recycled pid
        except psutil.NoSuchProcess:
            continue
    send(record, sig)


def stop_gracefully(record: StackRecord, sig: signal.Signals) -> None:
    """Asks, waits, then kills; afterwards neither the process nor its children exist."""
    children = _descendants(record.pid) if record.alive else []
    send(record, sig)
    send_tree_continue(record)
    if not wait_gone(record, GRACE_SECONDS):
        children = _descendants(record.pid)
        send_tree(record, signal.SIGKILL)
        wait_gone(record, GRACE_SECONDS)
    wait_all_gone(children)


def kill_tree(record: StackRecord) -> None:
    """SIGKILL to all of it, and waits until it is gone."""
    children = _descendants(record.pid) if record.alive else []
    send_tree(record, signal.SIGKILL)
    wait_gone(record, GRACE_SECONDS)
    wait_all_gone(children)


def send_tree_continue(record: StackRecord) -> None:
    """Thaws a frozen server, so that it can act on another signal."""
    for process in _descendants(record.pid) if record.alive else []:
        try:
            process.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            continue
    send(record, signal.SIGCONT)


def wait_gone(record: StackRecord, timeout_seconds: float) -> bool:
    """Whether the main process ended within the time."""
    deadline = time.monotonic() + timeout_seconds
    while record.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def wait_all_gone(processes: Sequence[psutil.Process]) -> None:
    """Waits for children that outlive their parent for a moment; kills those that stay."""
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        while _runs(process):
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(POLL_SECONDS)


def strays(mark: str, name: str, home: Path) -> list[psutil.Process]:
    """Children that a main process left behind when something else killed it.

    Java's are known by the mark in their environment; Postgres overwrites its own, but works in its data folder.
    """
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("TAILRACE_STACK") == mark
            if name == "postgres" and not ours and process.name().startswith("postgres"):
                ours = home in Path(process.cwd()).parents
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours and _runs(process):
            found.append(process)
    return found


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
