"""Whom a server runs as. Postgres and Elasticsearch refuse root, so as root they get an account without rights."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from cdc.errors import UsageError

PREFERRED = ("tailrace-stack", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user to change to before a server starts."""

    name: str
    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Whether every folder down to this one (the part that exists) lets the account through."""
        return all(self._may_search(part) for part in (folder, *folder.parents) if part.exists())

    def _may_search(self, folder: Path) -> bool:
        facts = folder.stat()
        if facts.st_uid == self.uid:
            return bool(facts.st_mode & stat.S_IXUSR)
        if facts.st_gid == self.gid:
            return bool(facts.st_mode & stat.S_IXGRP)
        return bool(facts.st_mode & stat.S_IXOTH)

    def own(self, folder: Path) -> None:
        """Makes the folder, and hands it and what is in it to the account."""
        folder.mkdir(parents=True, exist_ok=True)
        for parent, folders, files in os.walk(folder):
            os.chown(parent, self.uid, self.gid)
            for name in (*folders, *files):
                os.chown(Path(parent) / name, self.uid, self.gid, follow_symlinks=False)


def unprivileged_account() -> Account | None:
    """None where we are not root: then everything runs as oneself."""
    if os.geteuid() != 0:
        return None
    for name in PREFERRED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise UsageError(
        "Postgres and Elasticsearch do not run as root, and there is no user `nobody`.",
        remedy="Run: useradd --system tailrace-stack, or run this command as another user.",
    )
