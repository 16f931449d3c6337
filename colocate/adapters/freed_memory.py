"""Gives back to the system what the allocator keeps of memory that was freed."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def return_freed_memory() -> None:
    """Has glibc's allocator, or tcmalloc where it is preloaded, give freed pages to the system.

    Elsewhere (musl) there is nothing to ask, and nothing is done.
    """
    _trim()()


@functools.cache
def _trim() -> Callable[[], object]:
    """Found once: each ``ctypes.CDLL`` makes a class, which waits for the garbage collector."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "MallocExtension_ReleaseFreeMemory"):
        return functools.partial(libc.MallocExtension_ReleaseFreeMemory)
    if hasattr(libc, "malloc_trim"):
        return functools.partial(libc.malloc_trim, 0)
    return lambda: None
