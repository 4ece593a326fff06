"""How tensors must lie in memory for the kernels."""

from __future__ import annotations

import torch


def last_dense(x: torch.Tensor) -> torch.Tensor:
    """Returns ``x``, or a copy where the elements of its last dimension lie apart.

    All kernels read them in one piece; tokens and heads may be anywhere.
    """
    return x if x.stride(-1) == 1 else x.contiguous()
