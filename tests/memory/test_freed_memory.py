"""What is asked of the allocator at every swap must not grow anything itself."""

from __future__ import annotations

import ctypes
import gc

import psutil

from colocate.adapters.freed_memory import return_freed_memory


def test_it_is_asked_again_and_again_without_a_trace() -> None:
    return_freed_memory()
    before = len(ctypes._CFuncPtr.__subclasses__())  # type: ignore[attr-defined]
    for _ in range(50):
        return_freed_memory()
    assert len(ctypes._CFuncPtr.__subclasses__()) == before  # type: ignore[attr-defined]


def test_pages_between_what_is_still_held_go_back_to_the_system() -> None:
    """Small pieces come from the heap, which keeps them when they are freed."""
    process = psutil.Process()
    held = [bytes(100_000) for _ in range(1000)]
    full = process.memory_info().rss
    kept = held[-1]
    del held
    gc.collect()
    return_freed_memory()
    given_back = full - process.memory_info().rss
    assert given_back > 50e6, kept
