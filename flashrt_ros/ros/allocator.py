"""Keeps memory that was freed, so that large messages do not take it from the kernel each time."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""``M_TRIM_THRESHOLD``, ``M_TOP_PAD`` and ``M_MMAP_THRESHOLD`` of glibc's ``malloc.h``."""
LARGEST = 32 << 20
"""Allocations up to this size come from memory that is kept; glibc takes no more."""
KEPT = 256 << 20
"""Free memory at the end of a heap from which on it goes back."""
STEP = 16 << 20
"""By this much a heap grows at a time."""


def keep_memory() -> bool:
    """Tells glibc's allocator to keep what was freed; call it before other threads allocate.

    By default each block of more than 128 KiB, such as the bytes of a camera image, is mapped and
    unmapped anew, and the kernel clears every page of it when it is first touched. That takes
    several times as long as the copy of the image, and its length varies.

    Returns:
        False where the C library has no such settings; nothing has changed then.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    settings = ((MMAP_THRESHOLD, LARGEST), (TRIM_THRESHOLD, KEPT), (TOP_PAD, STEP))
    taken = [mallopt(name, value) for name, value in settings]
    return all(taken)


def give_back() -> None:
    """Returns what is free to the kernel, wherever it lies in a heap.

    For once: after a policy was loaded, whose weights were on the host and now are on the device.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
        trim(0)
