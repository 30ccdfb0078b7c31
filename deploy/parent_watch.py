"""Runs a program that must not outlive the one that wants it: `python parent_watch.py PROGRAM ARGUMENT...`.

Its standard input is a pipe from the wanting process. When that process ends, however it ends, the pipe closes, and
the program is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main() -> None:
    """Ends with the program's own exit code."""
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as program:

        def watch() -> None:
            while os.read(0, 1):
                pass
            program.kill()

        threading.Thread(target=watch, daemon=True).start()
        code = program.wait()
    os._exit(code if code >= 0 else 1)  # the watching thread may be inside its read


if __name__ == "__main__":
    main()
