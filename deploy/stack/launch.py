"""Starts one server detached and records its pid *before* the server runs, so that no crash can orphan it.

Run as a script by `process.launch`, with a JSON description as its only argument. The new process holds the stack's
file lock until its record is on disk: whoever takes the lock next (a `down`) sees every server there is. Uses the
standard library only and imports nothing of ours: it must start fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def start_mark(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None where there is no such process.

    On Linux boot and start tick, which no clock change moves; elsewhere the start time that `ps` shows.
    """
    return _mark_from_proc(pid) if Path("/proc/self/stat").exists() else _mark_from_ps(pid)


def _mark_from_proc(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, threads, start_tick = fields[0], int(fields[17]), fields[19]
    if state in {"Z", "X"} and threads <= 1:
        return None  # dead, only not yet collected by its parent; with threads left, it still holds its ports
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{start_tick}"


def _mark_from_ps(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = shown.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def write_whole(path: Path, content: str) -> None:
    """Replaces a file so that a reader sees the old or the new content, never half of one."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    scratch.write_text(content)
    scratch.replace(path)


def main() -> None:
    """Forks; the child becomes the server, the parent waits until it did and tells how it went."""
    spec = json.loads(sys.argv[1])
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        try:
            _become(spec)
        except OSError as error:
            os.write(write_end, f"{error.strerror}: {error.filename or spec['argv'][0]}".encode())
        os._exit(1)
    os.close(write_end)
    trouble = os.read(read_end, 4096)  # ends empty when exec closes the other end
    if trouble:
        sys.stderr.write(trouble.decode())
        sys.exit(1)


def _become(spec: dict[str, Any]) -> None:
    os.setsid()
    record = {**spec["record"], "pid": os.getpid(), "mark": start_mark(os.getpid())}
    write_whole(Path(spec["record_path"]), json.dumps(record))
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(spec["lock_fd"])
    os.umask(0o022)
    if spec["uid"] is not None:
        os.setgroups([])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])
    os.chdir(spec["folder"])
    os.execve(spec["argv"][0], spec["argv"], spec["environ"])  # noqa: S606  # the whole point


if __name__ == "__main__":
    main()
