"""Computes a snapshot's progress figures for the terminal, for JSON output and for the progress record in Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from cdc.clock import now_ms
from cdc.snapshot.records import ChunkState, SnapshotProgress, SnapshotState


class Meter:
    """Counts finished chunks, rows and bytes of a snapshot.

    The rate is that of this run. Chunks that an earlier run finished count as done, but not towards the rate.
    """

    def __init__(
        self, copy: SnapshotState, chunks: Collection[ChunkState], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._copy = copy
        self._clock = clock
        self._started = clock()
        done = [chunk for chunk in chunks if chunk.done]
        self._total_chunks = len(chunks)
        self._total_bytes = sum(chunk.size_bytes for chunk in chunks)
        self._before_rows = self._rows = sum(chunk.rows for chunk in done)
        self._before_bytes = self._bytes = sum(chunk.size_bytes for chunk in done)
        self._chunks = len(done)
        self._left_out: dict[str, str] = {}
        for chunk in done:
            self._left_out |= chunk.left_out

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def left_out(self) -> dict[str, str]:
        """Tables (by oid) that could not be read, with the reasons."""
        return self._left_out

    @property
    def is_complete(self) -> bool:
        return self._chunks == self._total_chunks

    def add(self, chunk: ChunkState) -> None:
        self._rows += chunk.rows
        self._bytes += chunk.size_bytes
        self._chunks += 1
        self._left_out |= chunk.left_out

    def progress(self, wal_held_bytes: int | None, *, paused: bool = False) -> SnapshotProgress:
        elapsed = max(self._clock() - self._started, 0.001)
        speed = (self._bytes - self._before_bytes) / elapsed
        left = self._total_bytes - self._bytes
        return SnapshotProgress(
            copy=self._copy.id,
            rows=self._rows,
            size_bytes=self._bytes,
            total_bytes=self._total_bytes,
            percent=round(100 * self._bytes / self._total_bytes, 1) if self._total_bytes else 100.0,
            chunks=self._chunks,
            total_chunks=self._total_chunks,
            rows_per_second=round((self._rows - self._before_rows) / elapsed, 1),
            seconds_left=0.0 if self.is_complete else round(left / speed, 1) if speed else None,
            wal_held_bytes=wal_held_bytes,
            written_ms=now_ms(),
            paused=paused,
        )
