"""Facts on GPU, driver and torch, as the doctor and a session at its start judge by them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One GPU, as the driver describes it.

    Attributes:
        name: Product name; of a MIG slice, it says so.
        capability: Compute capability.
        multiprocessors: Streaming multiprocessors.
        total_bytes: Memory of the device.
        integrated: Shares its memory with the host.
        unified: Managed memory may be touched by both at once.
        virtual_memory: Memory can be reserved and mapped by hand.
    """

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    total_bytes: int = 143_000 * MIB
    integrated: bool = False
    unified: bool = True
    virtual_memory: bool = True


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        hardware: An NVIDIA device is on the bus or a device node exists.
        loaded: The driver's library could be opened and initialised.
        error: Why not.
        version: Release, e.g. ``570.86.15``; empty where it cannot be read.
        cuda: Newest CUDA that it can run.
        gpus: Devices visible to this process.
        visible: ``CUDA_VISIBLE_DEVICES``, None where unset.
    """

    hardware: bool = False
    loaded: bool = False
    error: str = ""
    version: str = ""
    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[Gpu, ...] = ()
    visible: str | None = None


@dataclass(frozen=True)
class Torch:
    """The installed torch.

    Attributes:
        version: Empty where it cannot be imported.
        error: Why not.
        cuda: CUDA that it was built with, None for a CPU build.
        architectures: Kernel images that it holds, e.g. ``sm_90``, ``compute_90``.
        available: ``torch.cuda.is_available()``.
        threads: Threads that one operation takes on the CPU.
        triton: Version of Triton, empty where absent.
        capture: Milliseconds of a small capture and replay; None where it was not tried.
        capture_error: Why it failed; empty where it did not.
        free_bytes: Free memory of the GPU.
        bindings: Version of cuda.bindings, empty where absent.
    """

    version: str = "2.9.0"
    error: str = ""
    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    available: bool = False
    threads: int = 1
    triton: str = ""
    capture: float | None = None
    capture_error: str = ""
    free_bytes: int = 0
    bindings: str = ""
