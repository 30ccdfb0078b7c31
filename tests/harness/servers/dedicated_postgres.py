"""A Postgres server for one test, which can be killed, copied, restored and promoted, and a standby made from a copy
of it.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psycopg

from deploy.stack import PROCESSES, open_stack
from tests.harness.processes.waiting import eventually

_SETTINGS: Final = {"fsync": "off", "max_prepared_transactions": "10", "wal_keep_size": "64MB"}
_NOT_COPIED: Final = ("postmaster.pid", "postmaster.opts", "pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify")


class OwnPostgres:
    """`settings` are added to the stack's; those of `configure` take precedence and are removed by `adopt`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._stack = open_stack(folder, kind=PROCESSES, postgres_settings={**_SETTINGS, **settings})
        self._stack.up(["postgres"])
        server = self._stack.server("postgres")
        self.dsn, self.host, self.port = server.address, server.host, server.port
        self.data = self._stack.home("postgres") / "data"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def start(self) -> None:
        self._stack.start("postgres")

    def stop(self) -> None:
        self._stack.stop("postgres", signal.SIGTERM)

    def kill(self) -> None:
        self._stack.stop("postgres", signal.SIGKILL)

    def close(self) -> None:
        self._stack.down(wipe=True)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Set settings and reload the server."""
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def keep(self, folder: Path) -> None:
        """Copy the whole cluster, slots included; the server is stopped for it."""
        self.stop()
        shutil.copytree(self.data, folder)
        self.start()

    def restore(self, folder: Path) -> None:
        """Restore the copy of `keep` without the server's knowledge, as a snapshot of the disk does."""
        self.stop()
        shutil.rmtree(self.data)
        shutil.copytree(folder, self.data)
        self._own()
        self.start()

    def follow(self, primary: OwnPostgres, settings: Mapping[str, str]) -> None:
        """Become a standby of `primary`, from a base backup of the running server."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        primary.drop_slot("standby")
        with psycopg.connect(primary.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot('standby', true)")
            connection.execute("SELECT pg_backup_start('standby', fast => true)")
            shutil.copytree(primary.data, self.data, ignore=_left_out(primary.data))
            (label,) = connection.execute("SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)").fetchone()  # type: ignore[misc]  # one row
        conninfo = f"host={primary.host} port={primary.port} user=postgres dbname=postgres"
        own = {"primary_conninfo": conninfo, "primary_slot_name": "standby", "hot_standby_feedback": "on", **settings}
        (self.data / "backup_label").write_text(label)
        (self.data / "standby.signal").touch()
        (self.data / "postgresql.auto.conf").write_text("".join(f"{name} = '{own[name]}'\n" for name in own))
        for name in ("pg_wal/archive_status", "pg_replslot", "pg_dynshmem", "pg_notify"):
            (self.data / name).mkdir(parents=True)
        self._own()
        self.start()

    def drop_slot(self, name: str) -> None:
        """Drop a slot whose reader has ended or is ending."""
        found = f"FROM pg_replication_slots WHERE slot_name = '{name}'"
        eventually(
            lambda: (
                self.execute(f"SELECT pg_drop_replication_slot(slot_name) {found} AND NOT active")
                or not self.execute(f"SELECT 1 {found}")
            ),
            what=f"slot {name} to be free",
        )

    def outgrow(self, slot: str) -> None:
        """Write more WAL than the slot may retain, until the server has invalidated it."""
        self.configure({"max_slot_wal_keep_size": "1MB"})
        try:
            eventually(lambda: self._is_lost(slot), 30, f"slot {slot} to be lost")
        finally:
            self.configure({"max_slot_wal_keep_size": "-1"})

    def _is_lost(self, slot: str) -> bool:
        self.execute("SELECT pg_logical_emit_message(false, 'test.flood', repeat('x', 100000))")
        self.execute("SELECT pg_switch_wal()")
        self.execute("CHECKPOINT")
        return self.execute(f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{slot}'") == [("lost",)]

    def promote(self) -> None:
        self.execute("SELECT pg_promote()")
        (self.data / "postgresql.auto.conf").write_text("")

    def wait_to_have(self, lsn: str) -> None:
        eventually(
            lambda: self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn")[0][0],
            30,
            f"the standby at {lsn}",
        )

    def _own(self) -> None:
        """Give the folder to the server's account, which owns the folder above."""
        owner = self.data.parent.stat()
        for parent, _folders, files in os.walk(self.data):
            Path(parent).chmod(0o700)
            for path in (Path(parent), *(Path(parent) / name for name in files)):
                os.chown(path, owner.st_uid, owner.st_gid)


def _left_out(data: Path) -> Any:
    return lambda folder, names: [name for name in names if Path(folder) == data and name in _NOT_COPIED]
