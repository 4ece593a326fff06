"""Convolutions over time by the library's kernels, without what torch and the library put around.

With a batch of one, reading weights is all that counts. The library's tensor core kernels want
channels innermost: as torch lays weights out, they may be transposed in every call. So they are
laid out anew, once. That, and leaving the bias to the next kernel, is done where it was found to
give every bit of the plain call (see ``proof``), since the library could take another kernel.

Tensor suffixes: B batch, C channels, H rows over time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.exact import proof

Way = Callable[[nn.Conv1d, torch.Tensor], torch.Tensor]


def convolve(conv: nn.Conv1d, x_BCH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Convolves, and returns the bias, too, where it is still to be added.

    Args:
        conv: Its weights may be laid out anew.
        x_BCH: Whichever of channels and rows is the inner one.
    """
    if conv.bias is not None and proof.reachable(x_BCH):
        for way in WAYS:
            sizes = (conv.weight.shape, conv.stride, conv.padding, conv.dilation, conv.groups)
            key = (way, *proof.key(x_BCH), *sizes)
            if proof.verdict(key, lambda way=way: _agrees(way, conv, x_BCH)):  # type: ignore[misc]
                if way is _channels_inside:
                    _lay_out_(conv)
                return way(conv, x_BCH), conv.bias
    return _plainly(conv, x_BCH, conv.bias), None


def _plainly(conv: nn.Conv1d, x_BCH: torch.Tensor, bias_C: torch.Tensor | None) -> torch.Tensor:
    return functional.conv1d(
        x_BCH,
        conv.weight.contiguous(),
        bias_C,
        conv.stride,
        cast(tuple[int, ...], conv.padding),
        conv.dilation,
        conv.groups,
    )


def _without_bias(conv: nn.Conv1d, x_BCH: torch.Tensor) -> torch.Tensor:
    return _plainly(conv, x_BCH, None)


def _channels_inside(conv: nn.Conv1d, x_BCH: torch.Tensor) -> torch.Tensor:
    # In two dimensions, as torch itself does it: only there it knows this layout.
    out = functional.conv2d(
        x_BCH.unsqueeze(2),
        conv.weight.unsqueeze(2).contiguous(memory_format=torch.channels_last),
        None,
        (1, *conv.stride),
        (0, *cast(tuple[int, ...], conv.padding)),
        (1, *conv.dilation),
        conv.groups,
    )
    return out.squeeze(2)


WAYS: tuple[Way, ...] = (_channels_inside, _without_bias)
"""The first that gives the same bits is taken."""


def _agrees(way: Way, conv: nn.Conv1d, x_BCH: torch.Tensor) -> bool:
    (given,) = proof.drawn([x_BCH])
    assert given is not None
    assert conv.bias is not None
    apart = way(conv, given) + conv.bias.view(-1, 1)
    return proof.same_bits(apart, _plainly(conv, given, conv.bias))


def _lay_out_(conv: nn.Conv1d) -> None:
    """Puts the weights' channels inside; their shape and values stay."""
    plain = conv.weight.unsqueeze(2)
    laid = plain.contiguous(memory_format=torch.channels_last)
    if laid is not plain and not torch.cuda.is_current_stream_capturing():
        conv.weight.data = laid.squeeze(2)
        torch.cuda.current_stream().synchronize()  # what held them may be given away now
