"""The file in which `tailrace run` reports the errors of its parts to the dashboard.

`tailrace run` writes the file, in the state folder beside the config, each time it shows its status. The dashboard
reads it, and ignores a file that is older than 30 seconds.
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
#: The prefix of every refusal's reason.
REFUSED = "Refused: "


def parts_path(config: Config) -> Path:
    """Return the path of the pipeline's file."""
    return state_folder(config) / f"run-{config.kafka.prefix}.json"


def write_parts(path: Path, report: Mapping[str, Any]) -> None:
    """Write the file. `report`: one line of `tailrace run --json`. Errors of the file system are ignored."""
    kept = {name: report[name] for name in ("parts", "refused_stores")}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(path.name + ".new")
        aside.write_text(json.dumps({"written": time.time(), **kept}), encoding="utf-8")
        aside.replace(path)


def read_process_errors(path: Path) -> list[ProcessError]:
    """Return the parts that refused, died or retry after an error, and the stores that are left out."""
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
    """Return BEHIND for a part that retries: such an error usually ends without help."""
    return HealthLevel.DOWN if part["condition"] in ("refused", "waiting") else HealthLevel.BEHIND


def _sentence(part: Mapping[str, Any]) -> str:
    word = {"refused": REFUSED, "waiting": "Died: "}.get(part["condition"], "Retrying: ")
    return redact(f"{word}{part['note']}")
