"""Finds the machine's installed Chromium."""

from __future__ import annotations

import shutil

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str:
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise AssertionError("There is no Chromium here: apt-get install chromium (as root), or brew install chromium.")
