"""Says in one line that this Python is too old, instead of a SyntaxError or ImportError later.

Must itself run on any Python 3, so it uses nothing newer; `python deploy/check_python.py` works before anything is
installed.
"""

import sys

OLDEST = (3, 10)


def complaint(version: "tuple[int, ...]") -> "str | None":  # quoted: old Pythons must not evaluate it
    """The line to print for an interpreter of this version, or None where it is new enough."""
    if version[:2] >= OLDEST:
        return None
    return (
        "Tailrace needs Python 3.10 or newer, and this is Python %d.%d. "  # noqa: UP031  # old Pythons read this
        "Install a newer one (for example: apt-get install python3.11 python3.11-venv) and run it with that."
        % version[:2]
    )


def check_python() -> None:
    """Ends the program where Python is too old."""
    line = complaint(tuple(sys.version_info[:2]))
    if line:
        sys.stderr.write(line + "\n")
        raise SystemExit(2)


if __name__ == "__main__":
    check_python()
