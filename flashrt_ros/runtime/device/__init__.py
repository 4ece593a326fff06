"""Devices: allocation, copies and prepared plans."""

from __future__ import annotations

import platform

import torch

from flashrt_ros.errors import InvalidArgumentError, UnsupportedError
from flashrt_ros.hardware.driver import read_driver
from flashrt_ros.hardware.torch_build import read_torch_build
from flashrt_ros.runtime.device.base import STAGING_BYTES, Device, Lane, Pieces, Replay
from flashrt_ros.runtime.device.startup import check_gpu
from flashrt_ros.runtime.device.state_memory import LIVE, StateMemory

__all__ = [
    "LIVE",
    "STAGING_BYTES",
    "Device",
    "Lane",
    "Pieces",
    "Replay",
    "StateMemory",
    "open_device",
]


def open_device(name: str) -> Device:
    """Opens a device for one session.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InvalidArgumentError: The name is none of these.
        UnsupportedError: This machine or this build of torch has no such device, or it cannot
            run there; says what to do.
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
    driver, build = read_driver(), read_torch_build()
    index = device.index or 0
    if device.index is None and build.available:
        index = torch.cuda.current_device()
    findings = check_gpu(name, index, driver, build, platform.machine())
    if not build.available:
        raise UnsupportedError(
            f"device {name!r}: torch {torch.__version__} finds no CUDA device here; use 'cpu', or"
            " install a CUDA build of torch and an NVIDIA driver"
        )
    if index >= torch.cuda.device_count():
        raise UnsupportedError(
            f"device {name!r}: expected an index below {torch.cuda.device_count()}"
        )
    from flashrt_ros.runtime.device.cuda import CudaDevice

    opened = CudaDevice(index)
    opened.findings = findings
    opened.integrated = any(gpu.integrated for gpu in driver.gpus[index : index + 1])
    return opened
