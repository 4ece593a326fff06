"""Weights of a checkpoint into a module of ours, every name and shape accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from flashrt_ros.errors import CheckpointError


def load_into(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    prefix: str = "",
    ignored: Sequence[str] = (),
    where: str = "model.safetensors",
) -> None:
    """Copies weights; nothing is copied unless all of them fit.

    Weights in half precision are widened to the module's float32, which loses nothing.

    Args:
        module: Takes all tensors of its ``state_dict``.
        tensors: Names to tensors of the checkpoint.
        prefix: What the names have before the module's.
        ignored: Patterns (``*`` stands for anything) of names that are there but not needed, as
            those of parts that only training runs.
        where: Begins every message.

    Raises:
        CheckpointError: Names the first tensor that is missing, ill-shaped, of another kind, not
            finite or left over.
    """
    check_fit(module, tensors, prefix, ignored, where)
    with torch.no_grad():
        for name, target in module.state_dict().items():
            target.copy_(tensors[prefix + name])


def check_fit(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    prefix: str = "",
    ignored: Sequence[str] = (),
    where: str = "model.safetensors",
) -> None:
    """Checks the same without copying; the module may lie on the meta device.

    Raises:
        CheckpointError: As in ``load_into``.
    """
    expected = module.state_dict()
    for name, target in expected.items():
        found = tensors.get(prefix + name)
        if found is None:
            raise CheckpointError(
                f"{where}: {prefix + name!r} of shape {tuple(target.shape)} is missing; does "
                "config.json belong to it?"
            )
        if found.shape != target.shape:
            raise CheckpointError(
                f"{where}: {prefix + name!r}: expected shape {tuple(target.shape)}, found "
                f"{tuple(found.shape)}; does config.json belong to it?"
            )
        if not _widens(found.dtype, target.dtype):
            raise CheckpointError(
                f"{where}: {prefix + name!r}: expected {target.dtype}, found {found.dtype}"
            )
        if found.is_floating_point() and not bool(torch.isfinite(found).all()):
            raise CheckpointError(
                f"{where}: {prefix + name!r}: expected finite values, found NaN or infinity"
            )
    needed = {prefix + name for name in expected}
    for name in tensors:
        if name not in needed and not any(fnmatchcase(name, pattern) for pattern in ignored):
            raise CheckpointError(
                f"{where}: {name!r} is left over: nothing in this policy takes it; does "
                "config.json belong to it?"
            )


def _widens(found: torch.dtype, target: torch.dtype) -> bool:
    half = (torch.float16, torch.bfloat16)
    return found == target or (target == torch.float32 and found in half)
