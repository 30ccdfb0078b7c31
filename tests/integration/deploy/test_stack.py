"""`tailrace stack` with real servers, processes and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from confluent_kafka import Consumer, Producer
from elasticsearch import Elasticsearch

from deploy.artifacts import Artifact, DownloadError, fetch
from deploy.progress import Quiet
from deploy.stack import NAMES, PROCESSES, Server, Stack, open_stack
from deploy.stack.state import load_record, record_path
from deploy.versions import KAFKA_LOGGING
from tests.harness.kafka.topics import create_topic
from tests.harness.processes.process import ROOT, Process, StartProcess, tailrace_argv
from tests.harness.processes.waiting import eventually

QUICK = {"fsync": "off", "full_page_writes": "off"}  # nothing here outlives a power cut
UP_SECONDS = 120.0

OpenStack = Callable[..., Stack]


@pytest.fixture
def open_local(tmp_path: Path) -> Iterator[OpenStack]:
    """Opens stacks of processes in folders of the test's own; all are wiped afterwards."""
    opened: list[Stack] = []

    def local(name: str = "stack", **wishes: object) -> Stack:
        settings: dict[str, object] = {"postgres_settings": QUICK, "kind": PROCESSES, **wishes}
        opened.append(open_stack(tmp_path / name, **settings))  # type: ignore[arg-type]  # a test's shorthand
        return opened[-1]

    yield local
    for stack in opened:
        stack.down(wipe=True)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every live process of the folder's stack."""
    homes = json.loads((folder / "state.json").read_text())["homes"].values() if folder.exists() else ()
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = [*process.cmdline(), process.cwd(), process.environ().get("TAILRACE_STACK", "")]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(place in word for place in (str(folder), *homes) for word in words) and process.pid != os.getpid():
            found.append(process)
    return found


def write_everywhere(servers: dict[str, Server]) -> None:
    """Write a row, a record, a document and a key."""
    with psycopg.connect(servers["postgres"].address) as session:
        session.execute("CREATE TABLE kept (id int PRIMARY KEY)")
        session.execute("INSERT INTO kept VALUES (42)")
    create_topic(servers["kafka"].address, "kept")
    producer = Producer({"bootstrap.servers": servers["kafka"].address, "transactional.id": "kept"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("kept", b"42")
    producer.commit_transaction(30)
    with Elasticsearch(servers["elasticsearch"].address) as search:
        search.index(index="kept", id="42", document={"id": 42}, refresh=True)
    with redis.Redis.from_url(servers["redis"].address) as cache:
        cache.set("kept", "42")


def read_everywhere(servers: dict[str, Server]) -> tuple[object, ...]:
    """What `write_everywhere` left."""
    with psycopg.connect(servers["postgres"].address) as session:
        row = session.execute("SELECT id FROM kept").fetchone()
    consumer = Consumer(
        {"bootstrap.servers": servers["kafka"].address, "group.id": "kept", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["kept"])
    message = consumer.poll(30)
    consumer.close()
    with Elasticsearch(servers["elasticsearch"].address) as search:
        document = search.get(index="kept", id="42")["_source"]
    with redis.Redis.from_url(servers["redis"].address) as cache:
        value = cache.get("kept")
    return row, message and message.value(), document, value


def test_up_twice_down_and_up_again_keeps_ports_and_data(
    tailrace: StartProcess, tmp_path: Path, open_local: OpenStack
) -> None:
    """`up` gives four healthy servers, a second `up` changes nothing, and after `down` the next `up` has all the
    data.
    """
    stack = open_local()
    where = ("--folder", str(stack.folder), "--json")

    def up() -> dict[str, Server]:
        command = tailrace("stack", "up", *where, "--kind", PROCESSES)
        command.expect_exit(0, UP_SECONDS)
        assert [entry["healthy"] for entry in json.loads(command.output)] == [True] * 4
        return {server.name: server for server in stack.status()}

    first = up()
    assert list(first) == list(NAMES)
    write_everywhere(first)
    assert up() == first, "the second `up` changed something"
    status = tailrace("stack", "status", *where)
    status.expect_exit(0)
    shown = {entry["name"]: entry for entry in json.loads(status.output)}
    assert {name: (shown[name]["address"], shown[name]["pid"]) for name in NAMES} == {
        name: (first[name].address, first[name].pid) for name in NAMES
    }
    for _ in range(2):
        tailrace("stack", "down", "--folder", str(stack.folder)).expect_exit(0, 60)
        assert processes_of(stack.folder) == []
    tailrace("stack", "status", *where).expect_exit(1)
    again = up()
    assert {name: server.port for name, server in again.items()} == {name: s.port for name, s in first.items()}
    assert read_everywhere(again) == ((42,), b"42", {"id": 42}, b"42")


@pytest.mark.parametrize("moment", ["state.json", "run/elasticsearch.json", "run/kafka.json"])
def test_a_killed_up_leaves_nothing_that_down_does_not_find(
    moment: str, tailrace: StartProcess, open_local: OpenStack
) -> None:
    """After `kill -9` of `up` at any moment, `down` leaves no process."""
    stack = open_local()
    command = tailrace("stack", "up", "--folder", str(stack.folder), "--kind", PROCESSES)
    command.wait_for((stack.folder / moment).exists, UP_SECONDS, moment)
    command.kill()
    tailrace("stack", "down", "--folder", str(stack.folder)).expect_exit(0, 60)
    assert processes_of(stack.folder) == []


def test_a_taken_port_stops_up_before_anything_starts(tailrace: StartProcess, open_local: OpenStack) -> None:
    """One line with the port and the remedy, exit 2, and nothing runs."""
    stack = open_local()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        command = tailrace("stack", "up", "redis", "--folder", str(stack.folder), "--port", f"redis={port}")
        command.expect_exit(2)
    assert f"Port {port} for redis is taken" in command.errors
    assert "--port redis=PORT" in command.errors
    assert processes_of(stack.folder) == []


def test_two_stacks_run_side_by_side_and_two_ups_take_turns(tailrace: StartProcess, open_local: OpenStack) -> None:
    """Each folder has its own servers, also with concurrent `up`s, and `down` of one leaves the other running."""
    one, two = open_local("one"), open_local("two")
    commands: list[Process] = [
        tailrace("stack", "up", "postgres", "redis", "--folder", str(stack.folder), "--kind", PROCESSES)
        for stack in (one, two, two)
    ]
    for command in commands:
        command.expect_exit(0, UP_SECONDS)
    ports = [server.port for stack in (one, two) for server in stack.status()]
    assert len(set(ports)) == 4
    mains = [process for process in processes_of(two.folder) if "-D" in process.cmdline()]
    assert len(mains) == 1, "two `up`s of one folder started two Postgres"
    one.down()
    assert processes_of(one.folder) == []
    assert [server.healthy for server in two.status()] == [True, True]


def test_an_older_postgres_can_be_chosen(open_local: OpenStack) -> None:
    """Postgres 14, with the settings that logical decoding needs; another major in use is refused."""
    stack = open_local(postgres_major=14, postgres_settings={**QUICK, "work_mem": "7MB"})
    stack.up(["postgres"])
    assert stack.server("postgres").version.startswith("14.")
    with psycopg.connect(stack.server("postgres").address) as session:
        asked = "SELECT current_setting('wal_level'), current_setting('work_mem'), current_setting('fsync')"
        assert session.execute(asked).fetchone() == ("logical", "7MB", "off")


def test_servers_can_be_killed_frozen_and_started_again(open_local: OpenStack) -> None:
    """SIGKILL ends child processes too, SIGSTOP freezes, and a restarted server keeps its port and data."""
    stack = open_local()
    stack.up(["postgres", "redis"])
    before = stack.server("postgres")
    with psycopg.connect(before.address, autocommit=True) as session:
        session.execute("CREATE TABLE kept AS SELECT 1 AS id")
        stack.stop("postgres", signal.SIGKILL)
        assert [process for process in processes_of(stack.folder) if process.name() == "postgres"] == []
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    assert not stack.server("postgres").healthy
    stack.start("postgres")
    assert stack.server("postgres").port == before.port

    killed = load_record(stack.folder, "postgres")
    assert killed
    os.kill(killed.pid, signal.SIGKILL)  # by another process, and only the main process
    eventually(lambda: not killed.alive)
    stack.up(["postgres"])
    with psycopg.connect(before.address) as session:
        assert session.execute("SELECT id FROM kept").fetchone() == (1,)

    stack.stop("redis", signal.SIGSTOP)
    assert not stack.server("redis").healthy
    stack.stop("redis", signal.SIGCONT)
    eventually(lambda: stack.server("redis").healthy)
    stack.stop("redis", signal.SIGSTOP)
    stack.down()
    assert processes_of(stack.folder) == [], "a frozen server outlived `down`"


def test_a_server_that_cannot_start_says_why(open_local: OpenStack) -> None:
    """The error has the server's last log lines and the log's path."""
    stack = open_local(postgres_settings={"wal_level": "nonsense"})
    with pytest.raises(Exception, match=r"postgres ended while it started: .*FATAL.*log is .*postgres\.log"):
        stack.up(["postgres"])
    assert not record_is_alive(stack, "postgres")


def record_is_alive(stack: Stack, name: str) -> bool:
    """Whether the folder's last start of the server still runs."""
    assert record_path(stack.folder, name).exists()
    record = load_record(stack.folder, name)
    return record is not None and record.alive


def test_a_broken_download_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable registry gives one line with the failure and the remedy, and no partial folder."""
    nowhere = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", nowhere)
    artifact = Artifact(label="test", coordinates=(KAFKA_LOGGING,))
    with pytest.raises(DownloadError) as caught:
        fetch(artifact, cache=tmp_path, progress=Quiet())
    assert "Could not download" in str(caught.value)
    assert "Check the network" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_sql_runs_what_is_piped_and_survives_errors(open_local: OpenStack) -> None:
    """Statements and backslash commands from standard input; an error shows, the rest runs, the exit code tells."""
    stack = open_local()
    stack.up(["postgres"])
    script = "CREATE TABLE shop (id int PRIMARY KEY,\n day date);\nSELECT 1/0;\n\\d shop\n"
    script += "INSERT INTO shop VALUES (1, 'infinity');\nSELECT day, ';' FROM shop"
    done = subprocess.run(
        tailrace_argv("stack", "sql", "--json", "--folder", str(stack.folder)),
        input=script,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.get("status") for answer in answers] == ["CREATE TABLE", None, "SELECT 2", "INSERT 0 1", "SELECT 1"]
    assert answers[1] == {"error": "division by zero"}
    assert answers[2]["rows"][0][:2] == ["id", "integer"]
    assert answers[4]["rows"] == [["infinity", ";"]]
    assert done.returncode == 1
