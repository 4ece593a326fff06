"""A GPU on which nothing can run is refused at the start, in the doctor's words.

A torch without kernels for the GPU fails within a capture with an error that names neither the
wheel nor the cure, and leaves the process's CUDA context broken. Nobody has all these machines:
the facts are written down, the rules are the doctor's own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_doctor import CU12, CUDA13, THOR, TORCH13
from toy_policies import ToyRecurrent

from flashrt_ros.doctor.command import judge
from flashrt_ros.doctor.facts import Facts
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.hardware.facts import Driver, Gpu, Torch
from flashrt_ros.hardware.finding import Finding, Level
from flashrt_ros.runtime import device as devices
from flashrt_ros.runtime.device.startup import check_gpu
from flashrt_ros.runtime.session import PolicySession

CPU_TORCH = Torch()
HIDDEN = Driver(hardware=True, loaded=True, cuda=(13, 0), visible="")
SILENT = Driver(hardware=True, error="libcuda.so.1: cannot open")
SLICE = Gpu(name="NVIDIA H200 MIG 1g.18gb", virtual_memory=False)

OBSTACLES: dict[str, tuple[Driver, Torch, str]] = {
    "Thor, cu12": (replace(CUDA13, gpus=(THOR,)), CU12, "no kernels for sm_110"),
    "old driver": (
        replace(CUDA13, cuda=(12, 4)),
        replace(TORCH13, available=False),
        "built for CUDA 13.0, but the driver runs CUDA up to 12.4",
    ),
    "CPU torch": (CUDA13, CPU_TORCH, "this torch has no CUDA"),
    "hidden": (HIDDEN, replace(TORCH13, available=False), "hides every GPU"),
    "silent": (SILENT, replace(TORCH13, available=False), "does not answer"),
    "no GPU": (Driver(), CPU_TORCH, "no NVIDIA GPU"),
    "no GPU, CUDA": (Driver(), replace(TORCH13, available=False), "no NVIDIA GPU"),
}


def check(driver: Driver, torch: Torch = TORCH13, index: int = 0) -> tuple[Finding, ...]:
    return check_gpu("cuda", index, driver, torch, "x86_64")


@pytest.mark.parametrize("name", OBSTACLES)
def test_obstacle_is_refused_in_the_words_of_the_doctor(name: str) -> None:
    driver, torch, words = OBSTACLES[name]
    with pytest.raises(UnsupportedError, match=words) as caught:
        check(driver, torch)
    said = [f for f in judge(Facts(driver=driver, torch=torch)) if f.blocks_gpu]
    assert len(said) == 1
    assert said[0].text in str(caught.value)
    assert said[0].cure in str(caught.value)
    assert "'cpu'" in str(caught.value)
    assert str(caught.value).startswith("device 'cuda': ")


def test_session_meets_the_check_first(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, torch, _ = OBSTACLES["Thor, cu12"]
    monkeypatch.setattr(devices, "read_driver", lambda: driver)
    monkeypatch.setattr(devices, "read_torch_build", lambda: torch)
    with pytest.raises(UnsupportedError, match=r"no kernels for sm_110.*NVIDIA Thor.*whl/cu130"):
        PolicySession(ToyRecurrent(), device="cuda:0")
    PolicySession(ToyRecurrent(), device="cpu")  # the CPU is not the GPU's business


@pytest.mark.parametrize("gpu", [Gpu(), THOR, SLICE], ids=["h200", "thor", "slice"])
def test_sound_gpu_passes_and_is_described(gpu: Gpu) -> None:
    findings = check(replace(CUDA13, gpus=(gpu,)))
    assert not [f for f in findings if f.blocks_gpu or f.level is Level.FAIL]
    text = next(f.text for f in findings if f.subject == gpu.name)
    assert ("integrated" in text) is gpu.integrated
    assert ("MIG slice" in text) is ("MIG" in gpu.name)
    warned = {f.subject: f.cure for f in findings if f.level is Level.WARN}
    assert set(warned) == ({"memory mapping"} if gpu is SLICE else set())
    assert all(warned.values())


def test_only_the_gpu_that_is_asked_for_counts() -> None:
    driver = replace(CUDA13, gpus=(Gpu(), THOR))
    assert check(driver, CU12, index=0)
    with pytest.raises(UnsupportedError, match="sm_110"):
        check(driver, CU12, index=1)
    with pytest.raises(UnsupportedError, match="expected an index below 2"):
        check(driver, index=2)


def test_torch_is_believed_where_the_driver_cannot_be_asked() -> None:
    assert check(Driver(error="odd library"), TORCH13) == ()


@pytest.mark.cuda
def test_this_gpu_passes() -> None:
    opened = devices.open_device("cuda")
    assert any("sm_" in finding.text for finding in opened.findings)
    assert not any(finding.blocks_gpu for finding in opened.findings)
