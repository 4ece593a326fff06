"""Can a policy run on this GPU: asked before a capture would fail in words of its own."""

from __future__ import annotations

from dataclasses import replace

from flashrt_ros.errors import UnsupportedError
from flashrt_ros.hardware.facts import Driver, Torch
from flashrt_ros.hardware.finding import Finding
from flashrt_ros.hardware.gpu_rules import judge_additions, judge_fit


def check_gpu(
    name: str, index: int, driver: Driver, torch: Torch, architecture: str
) -> tuple[Finding, ...]:
    """Judges one GPU by the rules of ``flashrt_ros doctor``; a pure function of its arguments.

    Args:
        name: The device as it was asked for.
        index: Which of the GPUs that this process sees.
        driver: The driver and all GPUs.
        torch: The installed torch.
        architecture: As ``uname -m`` says.

    Returns:
        What is worth a line in the log; empty if the driver could not be asked although torch
        sees a GPU.

    Raises:
        UnsupportedError: No policy can run on it; in the doctor's words, with its cure.
    """
    if torch.available and not driver.gpus:
        return ()
    if driver.gpus and index >= len(driver.gpus):
        raise UnsupportedError(f"device {name!r}: expected an index below {len(driver.gpus)}")
    chosen = replace(driver, gpus=driver.gpus[index : index + 1])
    findings = judge_fit(chosen, torch)
    for finding in findings:
        if finding.blocks_gpu:
            cure = "use 'cpu', or install a CUDA build of torch and an NVIDIA driver"
            if finding.cure:
                cure = f"{finding.cure}; or use 'cpu'"
            raise UnsupportedError(f"device {name!r}: {finding.subject}: {finding.text}; {cure}")
    return (*findings, *judge_additions(torch, architecture))
