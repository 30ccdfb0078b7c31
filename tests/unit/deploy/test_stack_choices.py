"""Decisions before a stack starts: ports, names, process identity, Java and the cache folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.errors import RefusedError, UsageError
from deploy.artifacts import cache_folder
from deploy.java import find_java
from deploy.stack.account import Account
from deploy.stack.choices import Wishes, in_parallel, settle
from deploy.stack.launch import start_mark
from deploy.stack.model import NAMES
from deploy.stack.ports import check_free, choose_port, is_free
from deploy.stack.process import send
from deploy.stack.state import StackRecord, StackState, load_state, save_state

NOTHING = Wishes(postgres_major=None, postgres_settings=None, ports={})


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which another socket listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_taken_port_is_said_in_one_line(taken_port: int) -> None:
    """One line names the server, the port and the remedy."""
    assert not is_free(taken_port)
    with pytest.raises(UsageError) as caught:
        check_free("kafka", taken_port)
    assert f"Port {taken_port} for kafka is taken" in str(caught.value)
    assert "--port kafka=PORT" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_chosen_port_is_free_and_new() -> None:
    """Reserved ports are not chosen again."""
    taken: set[int] = set()
    for _ in range(20):
        port = choose_port(taken)
        assert port not in taken
        assert is_free(port)
        taken.add(port)


def test_ports_and_major_stay_with_the_folder(tmp_path: Path) -> None:
    """Ports and major version stay the same at every later start that requests no others."""
    state = StackState()
    settle(state, NOTHING, ["redis"], running=lambda _: False, folder=tmp_path)
    save_state(tmp_path, state)
    again = load_state(tmp_path)
    assert again == state
    assert again is not None
    settle(again, NOTHING, ["kafka"], running=lambda _: False, folder=tmp_path)
    assert {name: again.ports[name] for name in NAMES} == {name: state.ports[name] for name in NAMES}
    assert len(set(again.ports.values())) == len(again.ports)
    assert (state.postgres_major, again.asked) == (18, ["kafka", "redis"])


def test_a_running_server_is_not_moved(tmp_path: Path) -> None:
    """Another port or major version for a running server is refused with the remedy."""
    state = StackState()
    settle(state, NOTHING, NAMES, running=lambda _: False, folder=tmp_path)
    moved = Wishes(postgres_major=None, postgres_settings=None, ports={"redis": state.ports["redis"] + 1})
    with pytest.raises(UsageError, match="stack down"):
        settle(state, moved, NAMES, running=lambda _: True, folder=tmp_path)
    older = Wishes(postgres_major=14, postgres_settings=None, ports={})
    with pytest.raises(UsageError, match="Postgres 18 runs"):
        settle(state, older, NAMES, running=lambda _: True, folder=tmp_path)


def test_wrong_wishes_are_refused() -> None:
    """An unknown server or major version is refused with the list of existing ones."""
    with pytest.raises(UsageError, match=r"mysql.*postgres, kafka"):
        Wishes(postgres_major=None, postgres_settings=None, ports={"mysql": 1})
    with pytest.raises(UsageError, match=r"no Postgres 9 here.*14, 15"):
        Wishes(postgres_major=9, postgres_settings=None, ports={})


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """The folder of a later version is not changed."""
    (tmp_path / "state.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(RefusedError, match="newer Tailrace"):
        load_state(tmp_path)


def test_a_recycled_pid_is_never_signalled() -> None:
    """A record whose pid now belongs to another process counts as dead, and nothing is sent to that process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        mark = start_mark(other.pid)
        assert mark
        record = StackRecord(name="redis", pid=other.pid, mark=f"{mark}0", port=1, version="")
        assert not record.alive
        send(record, signal.SIGKILL)
        other.communicate(b"\n")
    assert other.returncode == 0
    assert start_mark(other.pid) is None


def test_the_first_error_of_parallel_work_is_raised_after_all_ended() -> None:
    """The first error is raised after all parallel starts have ended."""
    done: list[str] = []

    def work(name: str) -> None:
        done.append(name)
        if name in {"kafka", "redis"}:
            raise UsageError(name)

    with pytest.raises(UsageError, match="kafka"):
        in_parallel(work, NAMES)
    assert sorted(done) == sorted(NAMES)


def fake_java(folder: Path, version: str) -> Path:
    """A program that answers `-version` as Java does."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return folder


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    """JAVA_HOME is used where it fits; where it does not, PATH is asked."""
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.1")
    assert find_java({"JAVA_HOME": str(new), "PATH": ""}).home == new
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.home, found.major) == (new, 21)


def test_a_missing_java_is_said_in_one_line(tmp_path: Path) -> None:
    """The line says what is needed, what was found and how to get it."""
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(UsageError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, folders=())
    line = str(caught.value)
    assert "Java 17 or 21 is needed" in line
    assert "is Java 11" in line
    assert "apt-get install openjdk-17" in line
    assert "\n" not in line


def test_the_cache_folder_can_be_given(tmp_path: Path) -> None:
    """TAILRACE_CACHE wins over the user's cache folder."""
    assert cache_folder({"TAILRACE_CACHE": str(tmp_path)}) == tmp_path
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tailrace"


def test_an_account_sees_whether_it_may_enter(tmp_path: Path) -> None:
    """A closed folder anywhere in the path is noticed before a server starts."""
    nobody = Account(name="somebody", uid=os.getuid() + 12345, gid=os.getgid() + 12345)
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert not nobody.can_enter(inner)
    assert nobody.can_enter(Path("/"))
