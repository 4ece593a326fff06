"""Kernels that begin while the one in front of them ends (programmatic dependent launch).

A kernel with a few tokens is short, so what its beginning costs counts. Here it is laid over the
end of the one in front: a program loads what that one does not write, and waits. The next may
begin only when all programs have waited, so whoever is before ``begin`` has none but the kernel
directly in front of it still running, and whoever is behind it has none. So before ``begin``
stands no store, and no load of what the kernel in front of it writes.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit  # type: ignore[untyped-decorator]
def begin(early: tl.constexpr):  # type: ignore[no-untyped-def]
    """Waits for the kernels in front, and lets the next one begin; once in every program."""
    if early:
        gdc_wait()
        gdc_launch_dependents()


@cache
def begins_early(device: torch.device) -> dict[str, bool]:
    """Returns the launch options of a kernel that calls ``begin``: devices from 9.0 on can."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"early": True, "launch_pdl": True} if can else {"early": False}
