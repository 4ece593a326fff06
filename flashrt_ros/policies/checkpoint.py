"""Policy directories: ``config.json`` beside ``model.safetensors``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from flashrt_ros.errors import CheckpointError, StorageError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"

_DISGUISES = {
    b"PK\x03\x04": "a zip archive, as torch.save writes it around a pickle",
    b"\x80": "a pickle",
}
"""First bytes of files that a safetensors file is taken for, and words for them."""


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration of a policy directory.

    Raises:
        CheckpointError: The file is missing, no JSON object or has no ``type``.
    """
    path = directory / CONFIG
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); a policy directory holds "
            f"{CONFIG} and {WEIGHTS}"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path}: expected JSON, found a fault: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("type"), str):
        raise CheckpointError(f"{path}: expected an object with the policy family under 'type'")
    return values


def read_weights(module: nn.Module, directory: Path) -> dict[str, torch.Tensor]:
    """The weights of a policy directory.

    Args:
        module: What they must fit; it may lie on the meta device.
        directory: Policy directory.

    Raises:
        CheckpointError: The file is missing or damaged, or its keys, shapes, dtypes or values do
            not fit the module.
    """
    path = directory / WEIGHTS
    found = read_tensors(path)
    expected = module.state_dict()
    missing = [key for key in expected if key not in found]
    unknown = [key for key in found if key not in expected]
    if missing or unknown:
        raise CheckpointError(
            f"{path}: missing keys {missing}, unknown keys {unknown}; does {CONFIG} belong to it?"
        )
    for key, tensor in expected.items():
        if found[key].shape != tensor.shape or found[key].dtype != tensor.dtype:
            raise CheckpointError(
                f"{path}: {key!r}: expected shape {tuple(tensor.shape)} of {tensor.dtype}, "
                f"found {tuple(found[key].shape)} of {found[key].dtype}"
            )
        if found[key].is_floating_point() and not bool(torch.isfinite(found[key]).all()):
            raise CheckpointError(
                f"{path}: {key!r}: expected finite values, found NaN or infinity"
            )
    return found


def read_weights_of(make: Callable[[], nn.Module], directory: Path) -> dict[str, torch.Tensor]:
    """As ``read_weights``, for the network that ``make`` makes.

    It is made without memory, since a configuration that is not the weights' may ask for any
    amount.
    """
    with torch.device("meta"):
        outline = make()
    return read_weights(outline, directory)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, on the CPU.

    Raises:
        CheckpointError: The file cannot be read, is a pickle or an archive of them, is cut off, or
            is no safetensors file for another reason.
    """
    try:
        # Read whole: a mapped file that changes later would change the weights under the policy.
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return dict(load(content))
    except (SafetensorError, ValueError, KeyError) as error:
        # Only now: a good file may begin with any byte.
        for beginning, words in _DISGUISES.items():
            if content.startswith(beginning):
                raise CheckpointError(
                    f"{path}: expected a safetensors file, found {words}, which can run code when "
                    "it is loaded and never is: save the weights with safetensors"
                ) from None
        raise CheckpointError(
            f"{path}: expected a safetensors file, found a damaged one: {error}{_cut(content)}"
        ) from None


def _cut(content: bytes) -> str:
    """Words for a file that ends too early; empty for others."""
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        ends = [item["data_offsets"][1] for key, item in header.items() if key != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""
    if len(content) >= expected:
        return ""
    return f" (cut off: expected {expected} bytes, found {len(content)}; copy it again)"


def save_directory(directory: Path, config: Mapping[str, Any], module: nn.Module) -> None:
    """Writes a policy directory; files that are there are replaced, each at once.

    Raises:
        StorageError: Writing failed.
    """
    # Cloned: on CUDA a recurrence keeps its weights as views of one block, which the format of
    # the file does not know.
    weights = {
        key: tensor.detach().cpu().clone().contiguous()
        for key, tensor in module.state_dict().items()
    }
    text = json.dumps(dict(config), indent=2, ensure_ascii=False) + "\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in ((WEIGHTS, save(weights)), (CONFIG, text.encode())):
            temporary = directory / f".{name}.{os.getpid()}"
            temporary.write_bytes(content)
            temporary.replace(directory / name)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error}") from None
