"""What `tailrace run` knows of its parts, in a small file beside the config, so that the page can show their trouble.

Written by `run` whenever it shows its state, read by the dashboard; an old one says nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cdc.config import Config
from cdc.monitoring.state_folder import state_folder
from cdc.monitoring.status_record import HealthLevel, ProcessError
from cdc.secrets import redact

_OLD_SECONDS = 30.0
#: How a refusal is said everywhere; its reason follows.
REFUSED = "It refused: "


def parts_path(config: Config) -> Path:
    return state_folder(config) / f"run-{config.kafka.prefix}.json"


def write_parts(path: Path, report: Mapping[str, Any]) -> None:
    """`report`: a line of `tailrace run --json`. A folder that cannot be written is no reason to stop."""
    kept = {name: report[name] for name in ("parts", "refused_stores")}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(path.name + ".new")
        aside.write_text(json.dumps({"written": time.time(), **kept}), encoding="utf-8")
        aside.replace(path)


def read_troubles(path: Path) -> list[ProcessError]:
    """Parts that refused or died, stores that were left out, and what is being tried again."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if time.time() - found["written"] > _OLD_SECONDS:
            return []
        parts = [
            ProcessError(
                where=part["name"],
                reason=_sentence(part),
                remedy=redact(part["remedy"]),
                state=_state(part),
                refused=part["condition"] == "refused",
            )
            for part in found["parts"]
            if part["condition"] in ("refused", "waiting") or part["note"]
        ]
        return parts + [
            ProcessError(
                where=f"store {name}",
                reason=redact(f"{REFUSED}{said['reason']}"),
                remedy=redact(said["remedy"]),
                refused=True,
            )
            for name, said in found["refused_stores"].items()
        ]
    return []


def _state(part: Mapping[str, Any]) -> HealthLevel:
    """What is tried again mends itself, as a rule."""
    return HealthLevel.DOWN if part["condition"] in ("refused", "waiting") else HealthLevel.BEHIND


def _sentence(part: Mapping[str, Any]) -> str:
    word = {"refused": REFUSED, "waiting": "It died: "}.get(part["condition"], "It tries again: ")
    return redact(f"{word}{part['note']}")
