"""How the rows of an incremental chunk travel on `<prefix>.__copy`, from the Spark task to capture."""

from __future__ import annotations

from typing import NamedTuple

TOPIC_HEADER, CHUNK_HEADER, SIZE_HEADER = "topic", "chunk", "size"


#: Instead of a row: the source has none under this key.
GONE = b"null"


class CopiedRow(NamedTuple):
    """`size`: of a row that is too large to be published, and so did not come along."""

    topic: str
    key: bytes
    row: bytes
    size: int = 0


def chunk_tag(copy: str, number: int, attempt: int, reading: str) -> bytes:
    """Which reading of which chunk a row on `__copy` belongs to."""
    return f"{copy}.{number}.{attempt}.{reading}".encode()
