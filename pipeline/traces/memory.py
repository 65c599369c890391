"""Memory that the decoding of one block frees, kept for the next one.

Owns what the C allocator and Arrow do with freed memory while a part is governed. By default both hand blocks of some
megabytes back to the kernel, which has to clear every page again for the next block: about a tenth of the map's CPU.
Refuses to keep it longer: the judge that comes next has a budget of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3), glibc
_DEFAULT = 128 << 10  # of both
KEPT = 512 << 20
"""Bytes of free memory at the top of the heap that are not handed back; a part in work holds less."""
LARGEST = 32 << 20
"""Bytes of the largest piece that comes from the heap; glibc allows no more on 64 bits."""


@contextmanager
def reused() -> Generator[None]:
    """Within the block freed memory is reused; after it all that is free goes back. Without glibc nothing changes."""
    libc: Any = ctypes.CDLL(None)
    mallopt: Callable[[int, int], int] | None = getattr(libc, "mallopt", None)
    trim: Callable[[int], int] | None = getattr(libc, "malloc_trim", None)
    if mallopt is None or trim is None:
        yield
        return
    before = pa.default_memory_pool()
    mallopt(_MMAP_THRESHOLD, LARGEST)
    mallopt(_TRIM_THRESHOLD, KEPT)
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        mallopt(_MMAP_THRESHOLD, _DEFAULT)
        mallopt(_TRIM_THRESHOLD, _DEFAULT)
        before.release_unused()
        trim(0)
