"""What a copy costs a memory of some bandwidth: the one definition of bytes per second here."""

from __future__ import annotations

PASSES = 2
"""A copy reads every byte and writes every byte: both load the memory, and both are counted."""


def gb_per_s(size_bytes: int, took_us: float) -> float:
    """Returns the bandwidth, bytes read and bytes written, of a copy.

    Args:
        size_bytes: Bytes copied.
        took_us: Microseconds that it took, above 0.
    """
    return PASSES * size_bytes / took_us / 1e3


def copy_us(size_bytes: int, bandwidth_gb_per_s: float) -> float:
    """Returns the microseconds of a copy at a bandwidth of reads and writes together."""
    return PASSES * size_bytes / bandwidth_gb_per_s / 1e3


def in_words(size_bytes: int) -> str:
    """Returns a size of a whole number of KiB, MiB or GiB in the largest of them that fits."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << shift and not size_bytes % (1 << shift):
            return f"{size_bytes >> shift} {unit}"
    return f"{size_bytes} B"
