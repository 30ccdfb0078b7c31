"""glibc's malloc, told what capture does: the same few megabytes of records, over and over, in two threads.

Left to itself it gives large blocks back to the system and asks for them again, page by page, and keeps an arena for
each thread, so that what librdkafka's thread frees is of no use to the one that makes the next records. Measured on
updates of 1 kB: 7.7 against 10.4 µs of processor for a row.
"""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 64 << 20  # of what is free; queues are bounded far below


def keep_memory(reserve_bytes: int) -> None:
    """For the whole process, before it has threads. Does nothing where there is no glibc.

    `reserve_bytes` are taken at once: memory that the first large transaction would take is there before it comes.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):  # musl has none
        return
    for setting, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _KEPT_BYTES // 2),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
    ):
        libc.mallopt(setting, value)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    block = libc.malloc(reserve_bytes)
    if block:
        ctypes.memset(block, 0, reserve_bytes)
        libc.free(block)
