"""The servers of the test run, started when a test first needs them and stopped however the run ends.

With `pytest -n`, each worker has its own servers, so a test that stops or freezes them disturbs no other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from deploy.progress import lines_on_stderr
from deploy.stack import ALL_NAMES, Server, Stack, open_stack

# Names the folder of a stack that runs already and is left running: quick when tests are run again and again.
# It cannot be shared, so that of several workers only the first uses it.
REUSE_VARIABLE: Final = "TAILRACE_TEST_STACK"
_WORKER_VARIABLE: Final = "PYTEST_XDIST_WORKER"
_FIRST_WORKER: Final = "gw0"

# Nothing here must survive a power cut; two-phase commit is off by default.
POSTGRES_SETTINGS: Final = {"fsync": "off", "full_page_writes": "off", "max_prepared_transactions": "10"}


class Servers:
    """`stack` is the whole of it, for tests that stop and start servers; `server` gives what it is asked for.

    `expected` are started in the background at once: one test need not wait for the server of another.
    """

    def __init__(self, environ: Mapping[str, str], expected: Iterable[str] = ()) -> None:
        first = environ.get(_WORKER_VARIABLE, _FIRST_WORKER) == _FIRST_WORKER
        reused = environ.get(REUSE_VARIABLE) if first else None
        self._guardian: subprocess.Popen[bytes] | None = None
        if reused:
            folder = Path(reused)
        else:
            folder = Path(tempfile.mkdtemp(prefix="tailrace-test-"))
            folder.chmod(0o755)  # as root, servers run as somebody else
            self._guardian = _guard(folder)
        self.stack: Stack = open_stack(folder, postgres_settings=POSTGRES_SETTINGS, progress=lines_on_stderr())
        self._starters = ThreadPoolExecutor(max_workers=len(ALL_NAMES))
        self._starting: dict[str, Future[None]] = {}
        for name in expected:
            self._start(name)

    def server(self, name: str) -> Server:
        """A healthy server; a server that cannot be started is an error, never a skip."""
        self._start(name).result()
        return self.stack.server(name)

    def close(self) -> None:
        self._starters.shutdown(wait=True)
        if self._guardian is not None:
            self._guardian.communicate()
            assert self._guardian.returncode == 0, "the servers of this run could not be stopped"

    def _start(self, name: str) -> Future[None]:
        if name not in self._starting:
            self._starting[name] = self._starters.submit(self.stack.up, [name])
        return self._starting[name]


def _guard(folder: Path) -> subprocess.Popen[bytes]:
    """A process that stops the servers when our end of the pipe closes: at the end, or when this run is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.harness.servers.shared_servers import guard; guard()", str(folder)],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[3],
        start_new_session=True,  # Ctrl-C is for the tests, not for those who clean up behind them
    )


def guard() -> None:
    """The guardian process: wait for the end of input, then stop the servers and remove their folder."""
    folder = Path(sys.argv[1])
    sys.stdin.read()
    open_stack(folder).down(wipe=True)
    shutil.rmtree(folder, ignore_errors=True)
