"""Finds a Java that Spark, Kafka and Elasticsearch all run on. Starts nothing but `java -version`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cdc.errors import UsageError
from deploy.versions import JAVA_MAJORS

REMEDY = (
    "Install one (for example: apt-get install openjdk-17-jre-headless, or brew install openjdk@17) "
    "or point JAVA_HOME at it."
)
USUAL_FOLDERS = (Path("/usr/lib/jvm"), Path("/opt/homebrew/opt"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """One installation: `home` is what JAVA_HOME would be."""

    home: Path
    major: int

    @property
    def binary(self) -> Path:
        """The `java` to run."""
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None, folders: Sequence[Path] = USUAL_FOLDERS) -> Java:
    """JAVA_HOME's, else PATH's, else one under the usual folders; the first that has a fitting version."""
    seen: list[str] = []
    for binary in _candidates(os.environ if environ is None else environ, folders):
        major = _major(binary)
        if major in JAVA_MAJORS:
            return Java(home=binary.parent.parent, major=major)
        seen.append(f"{binary} is Java {major}" if major else f"{binary} does not run")
    found = "; ".join(dict.fromkeys(seen)) or "none found"
    wanted = " or ".join(str(major) for major in JAVA_MAJORS)
    raise UsageError(f"Java {wanted} is needed ({found}).", remedy=REMEDY)


def _candidates(environ: Mapping[str, str], folders: Sequence[Path]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve()
    for folder in folders:
        yield from sorted(folder.glob("*/bin/java"))


@cache
def _major(binary: Path) -> int | None:
    try:
        shown = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', shown.stderr)
    return int(found.group(1)) if found else None
