"""The record format of incremental chunks' rows on `<prefix>.__copy`. Spark tasks write and capture reads them."""

from __future__ import annotations

from typing import NamedTuple

TOPIC_HEADER, CHUNK_HEADER, SIZE_HEADER = "topic", "chunk", "size"


#: The value of a record whose key the source does not have.
GONE = b"null"


class SnapshotRow(NamedTuple):
    """A row read from `__copy`.

    `size`: if the row is too large to be published, its size in bytes. `row` is then empty.
    """

    topic: str
    key: bytes
    row: bytes
    size: int = 0


def chunk_tag(copy: str, number: int, attempt: int, reading: str) -> bytes:
    """Return the header value that identifies the chunk, the attempt and the run that wrote a row to `__copy`."""
    return f"{copy}.{number}.{attempt}.{reading}".encode()
