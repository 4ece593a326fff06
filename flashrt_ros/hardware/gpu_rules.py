"""Judges GPU, driver and torch together: each can be well and still not fit the others."""

from __future__ import annotations

from flashrt_ros.hardware.facts import MIB, Driver, Gpu, Torch
from flashrt_ros.hardware.finding import Area, Finding

INDEX = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
FREE_NEEDED_BYTES = 512 * MIB


def judge_gpu(driver: Driver, torch: Torch, architecture: str) -> list[Finding]:
    """Returns the findings on GPU, driver and torch, a trial capture and free memory included.

    Args:
        driver: The driver, and the GPUs that are to be judged.
        torch: The installed torch.
        architecture: As ``uname -m`` says.
    """
    findings = judge_fit(driver, torch)
    if not torch.cuda or any(finding.blocks_gpu for finding in findings):
        return findings
    area = Area("gpu")
    _judge_capture(area, torch)
    return [*findings, *area.findings, *judge_additions(torch, architecture)]


def judge_fit(driver: Driver, torch: Torch) -> list[Finding]:
    """Returns what can be said before anything runs: do GPU, driver and torch fit each other."""
    area = Area("gpu")
    if not torch.version:
        area.fail(
            "torch",
            f"cannot be imported: {torch.error}",
            f"{INDEX}cpu (or cu130, cu128)",
            blocks_gpu=True,
        )
        return area.findings
    build = f"CUDA {torch.cuda}" if torch.cuda else "CPU only"
    area.ok("torch", f"{torch.version} ({build}), {torch.threads} threads")
    if not _judge_driver(area, driver, torch):
        return area.findings
    for gpu in driver.gpus:
        _describe(area, gpu)
    if torch.cuda:
        _judge_build(area, driver, torch)
    else:
        newest = max(gpu.capability for gpu in driver.gpus)
        area.warn(
            "torch build",
            "this torch has no CUDA: policies run on the CPU",
            INDEX + wheel_for(newest, driver.cuda),
            blocks_gpu=True,
        )
    return area.findings


def wheel_for(capability: tuple[int, int], cuda: tuple[int, int]) -> str:
    """Returns the wheel index (``cu130``, ...) with kernels for a GPU that a driver can run.

    Args:
        capability: Compute capability of the GPU.
        cuda: Newest CUDA of the driver, (0, 0) where unknown.
    """
    if capability < (7, 5):
        return "cu126"  # CUDA 13 dropped what came before Turing
    if capability >= (11, 0) and capability < (12, 0):
        return "cu130"  # Thor: sm_110 exists from CUDA 13 on
    if capability >= (10, 0):
        return "cu130" if cuda >= (13, 0) or cuda == (0, 0) else "cu128"
    if cuda == (0, 0) or cuda >= (13, 0):
        return "cu130"
    return "cu128" if cuda >= (12, 8) else "cu126"


def runs_on(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Whether a torch with these kernel images runs on a GPU.

    A binary image (``sm_XY``) runs on the same major number and at least its minor; one with a
    suffix (``sm_90a``) on exactly its own; portable code (``compute_XY``) on anything newer.
    """
    for name in architectures:
        kind, _, digits = name.partition("_")
        number, suffix = digits.rstrip("af"), digits[len(digits.rstrip("af")) :]
        if not number.isdigit():
            continue
        image = (int(number) // 10, int(number) % 10)
        binary = kind == "sm" and image[0] == capability[0] and image[1] <= capability[1]
        if binary and (suffix != "a" or image == capability):
            return True
        if kind == "compute" and not suffix and image <= capability:
            return True
    return False


def _judge_driver(area: Area, driver: Driver, torch: Torch) -> bool:
    if driver.loaded and driver.gpus:
        cuda = ".".join(map(str, driver.cuda))
        area.ok("driver", f"{driver.version or 'unknown release'}, runs CUDA up to {cuda}")
        return True
    if driver.loaded and driver.visible is not None:
        area.warn(
            "driver",
            f"CUDA_VISIBLE_DEVICES={driver.visible!r} hides every GPU",
            "unset CUDA_VISIBLE_DEVICES",
            blocks_gpu=True,
        )
    elif driver.hardware or driver.loaded:
        area.warn(
            "driver",
            f"an NVIDIA GPU is there, but its driver does not answer: "
            f"{driver.error or 'no device'}",
            "install NVIDIA's driver; in docker start with --gpus all (Jetson: --runtime nvidia)",
            blocks_gpu=True,
        )
    elif torch.cuda:
        area.ok(
            "driver",
            "no NVIDIA GPU: policies run on the CPU (this torch carries CUDA unused)",
            blocks_gpu=True,
        )
    else:
        area.ok("driver", "no NVIDIA GPU: policies run on the CPU", blocks_gpu=True)
    return False


def _describe(area: Area, gpu: Gpu) -> None:
    major, minor = gpu.capability
    words = [f"sm_{major}{minor}, {gpu.multiprocessors} SMs, {gpu.total_bytes / MIB:.0f} MiB"]
    if gpu.integrated:
        words.append("integrated: capsules on host and device share one memory")
    if "MIG" in gpu.name:
        words.append("a MIG slice: timings are the slice's")
    words.append("unified memory" if gpu.unified else "no concurrent unified memory")
    area.ok(gpu.name, ", ".join(words))
    if gpu.virtual_memory:
        area.ok("memory mapping", "memory can be reserved and mapped by hand")
    else:
        area.warn(
            "memory mapping",
            "this device or slice cannot map memory by hand: switching between branches copies",
            "use a whole GPU where branches are previewed often",
        )


def _judge_build(area: Area, driver: Driver, torch: Torch) -> None:
    built = tuple(int(part) for part in (torch.cuda or "0.0").split(".")[:2])
    if built[0] > driver.cuda[0]:
        area.fail(
            "torch build",
            f"built for CUDA {torch.cuda}, but the driver runs CUDA up to "
            f"{driver.cuda[0]}.{driver.cuda[1]}",
            f"update the driver, or {INDEX}"
            + wheel_for(max(gpu.capability for gpu in driver.gpus), driver.cuda),
            blocks_gpu=True,
        )
        return
    for gpu in driver.gpus:
        if torch.architectures and not runs_on(gpu.capability, torch.architectures):
            area.fail(
                "torch build",
                f"no kernels for sm_{gpu.capability[0]}{gpu.capability[1]} ({gpu.name}); it has "
                f"{' '.join(torch.architectures)}",
                INDEX + wheel_for(gpu.capability, driver.cuda),
                blocks_gpu=True,
            )
            return
    area.ok("torch build", f"has kernels for every GPU here ({' '.join(torch.architectures)})")


def _judge_capture(area: Area, torch: Torch) -> None:
    if torch.capture_error:
        cure = "see the message; `flashrt_ros doctor --json` has it whole"
        if "memory" in torch.capture_error.lower():
            cure = "free GPU memory (nvidia-smi lists who holds it)"
        area.fail("capture", f"capturing a small graph failed: {torch.capture_error}", cure)
    elif torch.capture is not None:
        area.ok("capture", f"a small graph was captured and replayed in {torch.capture:.1f} ms")
    elif not torch.available:
        area.fail("capture", "torch does not see the GPU", "reinstall torch and the driver")
    free = f"{torch.free_bytes / MIB:.0f} MiB free"
    if torch.available and torch.free_bytes < FREE_NEEDED_BYTES:
        area.warn("GPU memory", free, "free GPU memory (nvidia-smi lists who holds it)")
    elif torch.available:
        area.ok("GPU memory", free)


def judge_additions(torch: Torch, architecture: str) -> list[Finding]:
    """Returns the findings on what makes a GPU faster, but is not needed."""
    area = Area("gpu")
    if torch.triton:
        area.ok("Triton", torch.triton)
    else:
        area.warn(
            "Triton",
            "missing: noise is drawn by about 100 small kernels instead of one",
            "pip install triton" if architecture == "x86_64" else "use NVIDIA's torch wheel",
        )
    if torch.bindings:
        area.ok("cuda.bindings", torch.bindings)
    else:
        area.ok("cuda.bindings", "absent: only benchmarks use them, as one more floor")
    return area.findings
