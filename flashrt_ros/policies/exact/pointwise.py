"""Chains of torch's operators between two products or convolutions, each as one call.

Elsewhere than on CUDA, while gradients are recorded, or without Triton a chain runs as it is
written here. On CUDA ``pointwise_kernel`` has a kernel of its name, which does the same operations
in the same order, each rounded as torch's kernels round it. That is not taken on trust: before it
is used on tensors of some shape, it and the chain are given random ones (see ``proof``).

Tensor suffixes: B batch, C channels, H rows over time, R and S rows and columns of a map.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.exact import proof

Chain = Callable[..., torch.Tensor]

_SPREADS = (0.0, 4.0)
"""Of the logarithms of random tensors' sizes: all of one order, and of many."""


def affine(
    x_BCRS: torch.Tensor,
    scale_C: torch.Tensor,
    shift_C: torch.Tensor,
    residual_BCRS: torch.Tensor | None = None,
    *,
    active: bool = False,
) -> torch.Tensor:
    """A scale, then a shift for each channel, then a residual, then a ReLU.

    Args:
        x_BCRS: Maps.
        scale_C: Factors.
        shift_C: Summands.
        residual_BCRS: Added at last; None: nothing.
        active: Whether there is a ReLU.
    """
    return _run(_affine, x_BCRS, scale_C, shift_C, residual_BCRS, active=active)


def affine_pool(
    x_BCRS: torch.Tensor, scale_C: torch.Tensor, shift_C: torch.Tensor
) -> torch.Tensor:
    """A scale, then a shift for each channel, a ReLU, and the largest of 3x3 at every other place.

    Args:
        x_BCRS: Maps.
        scale_C: Factors.
        shift_C: Summands.

    Returns:
        Maps of half as many rows and columns, rounded up.
    """
    return _run(_affine_pool, x_BCRS, scale_C, shift_C)


def norm_mish(
    x_BCH: torch.Tensor,
    bias_C: torch.Tensor | None,
    norm: nn.GroupNorm,
    film_BF: torch.Tensor | None = None,
    residual_BCH: torch.Tensor | None = None,
) -> torch.Tensor:
    """A bias, group norm, Mish, conditioning, a residual.

    Args:
        x_BCH: What a convolution left, whichever of channels and rows is the inner one.
        bias_C: Of that convolution; None: it is in there.
        norm: Group norm, with scale and shift.
        film_BF: Conditioning behind Mish: a factor and then a summand for each channel (F = 2 C),
            or the summands alone (F = C); None: none.
        residual_BCH: Added at last; None: nothing.
    """
    weights = (norm.weight, norm.bias)
    options = {"groups": norm.num_groups, "epsilon": norm.eps}
    return _run(_norm_mish, x_BCH, bias_C, *weights, film_BF, residual_BCH, **options)


def _affine(
    x_BCRS: torch.Tensor,
    scale_C: torch.Tensor,
    shift_C: torch.Tensor,
    residual_BCRS: torch.Tensor | None,
    *,
    active: bool,
) -> torch.Tensor:
    out_BCRS = x_BCRS * scale_C.view(-1, 1, 1) + shift_C.view(-1, 1, 1)
    if residual_BCRS is not None:
        out_BCRS += residual_BCRS
    return functional.relu_(out_BCRS) if active else out_BCRS


def _affine_pool(
    x_BCRS: torch.Tensor, scale_C: torch.Tensor, shift_C: torch.Tensor
) -> torch.Tensor:
    active_BCRS = _affine(x_BCRS, scale_C, shift_C, None, active=True)
    return functional.max_pool2d(active_BCRS, 3, stride=2, padding=1)


def _norm_mish(
    x_BCH: torch.Tensor,
    bias_C: torch.Tensor | None,
    weight_C: torch.Tensor,
    shift_C: torch.Tensor,
    film_BF: torch.Tensor | None,
    residual_BCH: torch.Tensor | None,
    *,
    groups: int,
    epsilon: float,
) -> torch.Tensor:
    channels = x_BCH.shape[1]
    if bias_C is not None:
        x_BCH = x_BCH + bias_C.view(-1, 1)
    out = functional.mish(functional.group_norm(x_BCH, groups, weight_C, shift_C, epsilon))
    if film_BF is not None:
        film_BF1 = film_BF.unsqueeze(-1)
        if film_BF.shape[1] == channels:
            out = out + film_BF1
        else:
            out = film_BF1[:, :channels] * out + film_BF1[:, channels:]
    return out if residual_BCH is None else out + residual_BCH


def _run(chain: Chain, *tensors: torch.Tensor | None, **options: float) -> torch.Tensor:
    """Runs the kernel of the chain if it gives the chain's bits, else the chain."""
    known = [tensor for tensor in tensors if tensor is not None]
    if proof.reachable(known[0]):
        from flashrt_ros.policies.exact import pointwise_kernel

        kernel: Chain = getattr(pointwise_kernel, chain.__name__.lstrip("_"))
        missing = tuple(tensor is None for tensor in tensors)
        key = (chain, *proof.key(*known), missing, *options.items())
        if proof.verdict(key, lambda: _agree(kernel, chain, tensors, options)):
            return kernel(*tensors, **options)
    return chain(*tensors, **options)


def _agree(
    kernel: Chain,
    chain: Chain,
    tensors: tuple[torch.Tensor | None, ...],
    options: dict[str, float],
) -> bool:
    for spread in _SPREADS:
        given = proof.drawn(tensors, spread)
        try:
            found = kernel(*given, **options)
        except Exception:  # Triton has no common ground for what its compiler raises.
            return False
        if not proof.same_bits(found, chain(*given, **options)):
            return False
    return True
