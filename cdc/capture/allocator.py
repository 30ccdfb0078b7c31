"""Tunes glibc's malloc for capture, in which two threads allocate and free the same few megabytes of records.

By default, malloc returns large blocks to the operating system and then faults them in again, page by page. It also
keeps one arena per thread, so the thread that encodes records cannot reuse the memory that librdkafka's thread frees.
Measured on updates of 1 kB: 7.7 µs of CPU time per row with these settings, 10.4 µs without.
"""

from __future__ import annotations

import ctypes

# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 64 << 20  # how much free memory the process keeps; the queues are bounded far below this


def share_memory() -> None:
    """Limit malloc to one arena for all threads. Call this before the process starts a second thread."""
    _set_malloc_options((_M_ARENA_MAX, 1))


def keep_memory(reserve_bytes: int) -> None:
    """Keep freed memory in the process, and allocate `reserve_bytes` now, before a large transaction needs them."""
    share_memory()
    _set_malloc_options((_M_MMAP_THRESHOLD, _KEPT_BYTES // 2), (_M_TRIM_THRESHOLD, _KEPT_BYTES))
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    block = libc.malloc(reserve_bytes)
    if block:
        ctypes.memset(block, 0, reserve_bytes)
        libc.free(block)


def _set_malloc_options(*settings: tuple[int, int]) -> None:
    """Call `mallopt` for each setting. Without glibc (musl, macOS) do nothing: capture is then only slower."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for setting, value in settings:
            libc.mallopt(setting, value)
