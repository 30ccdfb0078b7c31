"""A part of `tailrace run` with a scripted process, on a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cdc.supervisor.child import ExitReason, TakeLine
from cdc.supervisor.parts.part import PipelinePart


class ScriptedProcess:
    """One process of a part, ended by the test."""

    def __init__(self, arguments: Sequence[str], take_line: TakeLine) -> None:
        self.arguments = list(arguments)
        self.say = take_line
        self.pid = 4242
        self.code: int | None = None
        self.signals: list[str] = []
        self.words = ExitReason("its reason", "its remedy")

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.signals.append("terminate")

    def kill(self) -> None:
        self.signals.append("kill")

    def exit_reason(self) -> ExitReason:
        return self.words


class Bench:
    """A part on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[ScriptedProcess] = []
        self.due = True
        self.lines: list[tuple[str, str]] = []

    def settings(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "write_line": lambda part, line: self.lines.append((part, line)),
            "clock": lambda: self.now,
            "is_due": lambda: self.due,
        }

    def start(self, arguments: Sequence[str], take_line: TakeLine) -> ScriptedProcess:
        self.processes.append(ScriptedProcess(arguments, take_line))
        return self.processes[-1]

    def end(self, part: PipelinePart, code: int) -> None:
        self.processes[-1].code = code
        part.poll()

    def said(self, part: PipelinePart, event: str, **more: object) -> None:
        self.processes[-1].say(json.dumps({"event": event, **more}))
        part.poll()
