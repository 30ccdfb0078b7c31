"""Real snapshots of Elasticsearch, made and restored as an operator does it."""

from __future__ import annotations

from collections.abc import Sequence

from elasticsearch import Elasticsearch


class Snapshots:
    """An `fs` repository of a test's own on the stack's server, which allows them (`path.repo`)."""

    def __init__(self, client: Elasticsearch, name: str) -> None:
        self._client = client
        self._name = name
        client.snapshot.create_repository(name=name, repository={"type": "fs", "settings": {"location": name}})

    def make(self, snapshot: str, indices: Sequence[str]) -> None:
        self._client.snapshot.create(
            repository=self._name,
            snapshot=snapshot,
            indices=list(indices),
            include_global_state=False,
            wait_for_completion=True,
        )

    def restore(self, snapshot: str, indices: Sequence[str], *, wait: bool = True) -> None:
        """Over closed indices, or where they were deleted."""
        self._client.snapshot.restore(
            repository=self._name,
            snapshot=snapshot,
            indices=list(indices),
            include_global_state=False,
            wait_for_completion=wait,
        )

    def close(self) -> None:
        self._client.snapshot.delete(repository=self._name, snapshot="*")
        self._client.snapshot.delete_repository(name=self._name)
