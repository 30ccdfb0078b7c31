"""The demo's `tailrace run --json` process: starts and stops it, and takes its status from its JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdc.demo.parts import Figure
from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.supervisor.child import Child
from cdc.supervisor.child_output import InFiles, as_event

_CONFIG = """\
# Written by `tailrace demo`. Use it with any command, for example: tailrace tail public.orders --config {file}

[source]
dsn = "{dsn}"
slot = "tailrace_demo"
publication = "tailrace_demo"
tables = ["public.*"]
heartbeat_seconds = 2

[kafka]
bootstrap = "{bootstrap}"
prefix = "shop"

[dashboard]
port = {page_port}
"""
_STORES = """
[stores.search]
kind = "elasticsearch"
url = "{search}"

[stores.cache]
kind = "redis"
url = "{cache}"

[stores.warehouse]
kind = "iceberg"
path = "{warehouse}"
trigger_milliseconds = 5000
"""

STORES = ("search", "cache", "warehouse")
_START_SECONDS = 300.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.2
# Print what the start waits for only after this time. The first reports do not show yet that a snapshot is due.
_TELL_SECONDS = 3.0


def write_config(file: Path, addresses: Mapping[str, str], *, dsn: str, page_port: int, with_stores: bool) -> None:
    """Write the demo's config file. `addresses`: the addresses of the local servers by name."""
    text = _CONFIG.format(file=file, dsn=dsn, bootstrap=addresses["kafka"], page_port=page_port)
    if with_stores:
        warehouse = file.absolute().parent / "warehouse"
        text += _STORES.format(search=addresses["elasticsearch"], cache=addresses["redis"], warehouse=warehouse)
    file.write_text(text, encoding="utf-8")


class PipelineProcess:
    """The pipeline. `start` returns when capture streams changes and every store serves data."""

    name = "pipeline"

    def __init__(self, config_file: Path, logs: Path, *, stores: Sequence[str], say: Callable[[str], None]) -> None:
        self._config_file = config_file
        self._logs = logs
        self._stores = tuple(stores)
        self._say = say
        self._lines: InFiles | None = None
        self._child: Child | None = None
        self._state: dict[str, Any] = {}

    @property
    def healthy(self) -> bool:
        return self._child is not None and self._child.poll() is None and not self._refusals()

    def start(self) -> None:
        self._lines = InFiles(self._logs)
        arguments = ["run", "--json", "--config", str(self._config_file), "--logs", str(self._logs)]
        self._child = Child(arguments, self._take)
        give_up_at = time.monotonic() + _START_SECONDS
        said = seen = ""
        seen_at = 0.0
        while (missing := self._missing()) is not None:
            if missing != seen:
                seen, seen_at = missing, time.monotonic()
            if missing != said and time.monotonic() - seen_at > _TELL_SECONDS:
                self._say(f"pipeline: waiting for {missing}")
                said = missing
            if not self.healthy or time.monotonic() > give_up_at:
                self.stop()
                raise TransientError("The pipeline did not start in time.", remedy=f"See {self._logs}.")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop the pipeline. Raises the cause if it ended early or one of its parts refused."""
        child, self._child = self._child, None
        if child is None:
            return
        died = child.poll()
        child.terminate()
        give_up_at = time.monotonic() + _STOP_SECONDS
        while child.poll() is None and time.monotonic() < give_up_at:
            time.sleep(_POLL_SECONDS)
        if child.poll() is None:
            child.kill()
        if self._lines is not None:
            self._lines.close()
        if died is not None:
            words = child.exit_reason()
            raise TailraceError(f"`tailrace run` ended with exit code {died}: {words.reason}", remedy=words.remedy)
        for refusal in self._refusals():
            raise RefusedError(refusal)

    def figures(self) -> Sequence[Figure]:
        state = self._state
        if not state:
            return [Figure("pipeline", "starting")]
        slot = state["slot"]
        parts = [part for part in state["parts"] if part["condition"] == "waiting" or part["note"]]
        return [
            Figure("capture", f"{slot['bytes'] / 1000:,.1f} kB behind" if slot else "waiting for the servers"),
            *(Figure(each["name"], _behind(each)) for each in state["stores"]),
            *(Figure(part["name"], f"{part['condition']}: {part['note']}") for part in parts),
        ]

    def _take(self, line: str) -> None:
        """Handle an output line. Another thread calls this, so it replaces the state as a whole."""
        event = as_event(line)
        if event is not None and event.get("event") == "state":
            self._state = event
        elif self._lines is not None:
            self._lines.write("run", line)

    def _missing(self) -> str | None:
        """Return what the start still waits for; None when the pipeline is complete."""
        state = self._state
        if not state or state["slot"] is None or state["topics_lsn"] is None:
            return "capture"
        if state["initial_snapshot_due"]:
            return "the initial snapshot"
        serving = {each["name"] for each in state["stores"] if each["lsn"] is not None}
        return ", ".join(name for name in self._stores if name not in serving) or None

    def _refusals(self) -> list[str]:
        state = self._state
        if not state:
            return []
        parts = [
            f"{part['name']}: {part['note']} {part['remedy']}"
            for part in state["parts"]
            if part["condition"] == "refused"
        ]
        return parts + [
            f"{name}: {words['reason']} {words['remedy']}" for name, words in state["refused_stores"].items()
        ]


def _behind(store: Mapping[str, Any]) -> str:
    if store["seconds"] is None:
        return str(store["problem"] or "nothing is served yet")
    return f"{store['seconds']:.1f} s behind"
