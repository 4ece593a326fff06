"""Asks NVIDIA's driver directly, so that the answer does not depend on torch's build."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from flashrt_ros.hardware.facts import Driver, Gpu

# CUdevice_attribute of cuda.h.
MULTIPROCESSORS, INTEGRATED, MAJOR, MINOR = 16, 18, 75, 76
CONCURRENT_MANAGED, VIRTUAL_MEMORY = 89, 102
LIBRARIES = ("libcuda.so.1", "libcuda.so")
NVIDIA_VENDOR = "0x10de"


def read_driver() -> Driver:
    """Reads driver and devices; never raises."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hardware = _hardware()
    try:
        library = _open()
    except OSError as error:
        return Driver(hardware=hardware, error=str(error), visible=visible)
    status = library.cuInit(0)
    no_device = 100
    if status not in {0, no_device}:
        return Driver(hardware=hardware, error=f"cuInit answers {status}", visible=visible)
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    if status == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    return Driver(
        hardware=hardware or count.value > 0,
        loaded=True,
        error="no device" if not count.value else "",
        version=_release(),
        cuda=(version.value // 1000, version.value % 1000 // 10),
        gpus=tuple(_read_gpu(library, index) for index in range(count.value)),
        visible=visible,
    )


def _open() -> ctypes.CDLL:
    last = OSError("libcuda.so.1 is not installed")
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            last = error
    raise last


def _read_gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_int(0)
    library.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(128)
    library.cuDeviceGetName(name, len(name), device)
    total = ctypes.c_size_t(0)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    return Gpu(
        name=name.value.decode("utf-8", "replace"),
        capability=(attribute(MAJOR), attribute(MINOR)),
        multiprocessors=attribute(MULTIPROCESSORS),
        total_bytes=total.value,
        integrated=bool(attribute(INTEGRATED)),
        unified=bool(attribute(CONCURRENT_MANAGED)),
        virtual_memory=bool(attribute(VIRTUAL_MEMORY)),
    )


def _release() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _hardware() -> bool:
    """Whether an NVIDIA GPU is there, with or without a driver."""
    if any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/nvgpu").exists():
        return True
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if vendor == NVIDIA_VENDOR and kind.startswith("0x03"):
            return True
    return False
