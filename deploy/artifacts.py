"""Fetches pinned artifacts from the package registry into a cache folder, whole or not at all.

The resolver is Apache Ivy, which pyspark ships: a machine needs Python and Java, nothing else. Each artifact is one
folder of the cache, filled beside its final place and renamed when complete, so a broken download leaves nothing.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cdc.errors import TailraceError, TransientError
from deploy import parent_watch
from deploy.java import Java, find_java
from deploy.progress import ProgressDisplay
from deploy.versions import Coordinates

ATTEMPTS = 3
MARKER = ".complete"
RETRIEVE = "[artifact]-[revision](-[classifier]).[ext]"


class DownloadError(TransientError):
    """A registry could not be reached, or broke off, several times in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What to fetch and how to lay it out: `unpack` gets the downloaded files' folder and the folder to fill."""

    label: str
    coordinates: Sequence[Coordinates]
    unpack: Callable[[Path, Path], None] | None = None

    @property
    def folder_name(self) -> str:
        """Its place in the cache; any change of a pin is another place."""
        return "+".join(f"{part.name}-{part.version}" for part in self.coordinates)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`TAILRACE_CACHE`, else the user's cache folder."""
    if environ.get("TAILRACE_CACHE"):
        return Path(environ["TAILRACE_CACHE"]).expanduser().resolve()
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "tailrace"


def fetch(artifact: Artifact, *, cache: Path, progress: ProgressDisplay) -> Path:
    """The folder that holds the artifact, downloaded first where it is not there yet."""
    place = cache / artifact.folder_name
    if (place / MARKER).exists():
        return place
    _make_readable_folder(cache)
    with _locked(cache / f"{artifact.folder_name}.lock"):
        if not (place / MARKER).exists():
            _remove_parts(place)
            _fill(artifact, place, progress)
    return place


def _fill(artifact: Artifact, place: Path, progress: ProgressDisplay) -> None:
    java = find_java()
    for attempt in range(1, ATTEMPTS + 1):
        scratch = Path(tempfile.mkdtemp(prefix=f"{artifact.folder_name}.part-", dir=place.parent))
        try:
            _download_all(artifact, scratch, java, progress)
            progress.show(artifact.label, "unpacking")
            _lay_out(artifact, scratch, place)
        except DownloadError as error:
            if attempt == ATTEMPTS:
                raise
            progress.show(artifact.label, f"download broke, trying again: {error.message}")
            time.sleep(attempt)
        else:
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _remove_parts(place: Path) -> None:
    """What a killed command left; nobody fills it any more, since we hold the lock."""
    for part in place.parent.glob(f"{place.name}.part-*"):
        shutil.rmtree(part, ignore_errors=True)


def _lay_out(artifact: Artifact, scratch: Path, place: Path) -> None:
    ready = scratch / "ready"
    if artifact.unpack:
        ready.mkdir()
        artifact.unpack(scratch / "files", ready)
    else:
        (scratch / "files").rename(ready)
    ready.chmod(0o755)  # as root, another account runs what is in here
    (ready / MARKER).touch()
    shutil.rmtree(place, ignore_errors=True)  # left by a version that had no marker
    ready.rename(place)


def _download_all(artifact: Artifact, scratch: Path, java: Java, progress: ProgressDisplay) -> None:
    (scratch / "files").mkdir()
    for part in artifact.coordinates:
        command = [
            java.binary, "-jar", ivy_jar(),
            "-cache", scratch / "ivy",
            "-confs", "default",
            "-dependency", *part,
            "-retrieve", scratch / "files" / RETRIEVE,
            "-types", "jar", "bundle", "zip",
        ]  # fmt: skip  # option and value side by side
        _run_ivy([str(word) for word in command], part, scratch, artifact.label, progress)


def _run_ivy(command: Sequence[str], part: Coordinates, scratch: Path, label: str, progress: ProgressDisplay) -> None:
    output = scratch / "ivy.log"
    command_line = [sys.executable, "-S", "-E", parent_watch.__file__, *command]
    with (
        output.open("w") as log,
        subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=scratch) as ivy,
    ):
        while ivy.poll() is None:
            progress.show(label, f"downloading {part.name} {part.version} ({_megabytes(scratch)} MB)")
            time.sleep(0.2)
    text = output.read_text(errors="replace")
    if ivy.returncode != 0 or "UNRESOLVED" in text or "FAILED" in text:
        raise DownloadError(
            f"Could not download {part}: {_reason(text)}.",
            remedy="Check the network (and HTTPS_PROXY / Java's proxy settings), then run the same command again.",
        )


def _reason(text: str) -> str:
    """The one line of Ivy's output that says what went wrong."""
    lines = [line.strip(" \t:") for line in text.splitlines()]
    for wanted in ("UnknownHost", "Connection", "timed out", "SSL", "not found", "FAILED", "Exception"):
        for line in lines:
            if wanted.lower() in line.lower():
                return line[:160].rstrip(".")
    return "the resolver ended without saying why"


def _megabytes(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue  # Ivy renames its parts while we look
    return total // 1_000_000


def ivy_jar() -> Path:
    """The resolver inside pyspark, found without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    for folder in spec.submodule_search_locations or () if spec else ():
        for jar in sorted(Path(folder).glob("jars/ivy-*.jar")):
            return jar
    raise TailraceError("pyspark is not installed whole: its Ivy jar is missing.", remedy="Run: pip install pyspark")


def _make_readable_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TailraceError(
            f"Cannot create the cache folder {folder}: {error.strerror}.",
            remedy="Set TAILRACE_CACHE to a folder that you may write to.",
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
