"""Devices: allocation, copies and prepared plans."""

from __future__ import annotations

import torch

from flashrt_ros.errors import InvalidArgumentError, UnsupportedError
from flashrt_ros.runtime.device.base import Device, Lane, Replay

__all__ = ["Device", "Lane", "Replay", "open_device"]


def open_device(name: str) -> Device:
    """Opens a device for one session.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InvalidArgumentError: The name is none of these.
        UnsupportedError: This machine or this build of torch has no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cpu":
        from flashrt_ros.runtime.device.cpu import CpuDevice

        return CpuDevice()
    if device.type != "cuda":
        raise InvalidArgumentError(f"device {name!r}: expected 'cpu', 'cuda' or 'cuda:0'")
    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"device {name!r}: torch {torch.__version__} finds no CUDA device here; use 'cpu', or"
            " install a CUDA build of torch and an NVIDIA driver"
        )
    index = device.index if device.index is not None else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise UnsupportedError(
            f"device {name!r}: expected an index below {torch.cuda.device_count()}"
        )
    from flashrt_ros.runtime.device.cuda import CudaDevice

    return CudaDevice(index)
