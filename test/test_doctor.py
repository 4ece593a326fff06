"""Every fault that the doctor knows is provoked by facts alone, and names the right cure.

Nobody has all these machines; the rules are pure functions of facts, so that a Thor with the
wrong wheel, a driver that is too old or a container without shared memory are rows of a table.
"""

import fcntl
import json
from dataclasses import replace
from pathlib import Path

import pytest

from flashrt_ros.doctor.command import judge, report
from flashrt_ros.doctor.facts import Facts, Machine, Package, Ros
from flashrt_ros.doctor.gather import count_leftovers, read_machine, read_package, read_ros
from flashrt_ros.hardware.driver import read_driver
from flashrt_ros.hardware.facts import MIB, Driver, Gpu, Torch
from flashrt_ros.hardware.finding import Finding, Level
from flashrt_ros.hardware.gpu_rules import runs_on, wheel_for

THOR = Gpu(name="NVIDIA Thor", capability=(11, 0), integrated=True, multiprocessors=20)
CUDA13 = Driver(hardware=True, loaded=True, version="580.1", cuda=(13, 0), gpus=(Gpu(),))
TORCH13 = Torch(
    cuda="13.0",
    architectures=("sm_80", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120"),
    available=True,
    triton="3.5",
    capture=2.0,
    free_bytes=90_000 * MIB,
    bindings="13.0",
)
GPU_FACTS = Facts(driver=CUDA13, torch=TORCH13)
CU12 = replace(TORCH13, cuda="12.8", architectures=("sm_80", "sm_90", "sm_100", "sm_120"))


def with_ros(**changes: object) -> Facts:
    return Facts(ros=replace(Ros(), **changes))


def with_machine(**changes: object) -> Facts:
    return Facts(machine=replace(Machine(), **changes))


def with_gpu(driver: Driver = CUDA13, torch: Torch = TORCH13, **machine: object) -> Facts:
    return Facts(driver=driver, torch=torch, machine=replace(Machine(), **machine))


FAULTS: list[tuple[str, Facts, str, Level, str, str]] = [
    # name, facts, subject, level, words of the text, words of the cure
    ("old Python", with_machine(python=(3, 9, 1)), "Python", Level.FAIL, "3.9.1", "python3.12"),
    ("new Python", with_machine(python=(3, 14, 0)), "Python", Level.FAIL, "3.14", "python3.12"),
    ("one core", with_machine(cores=1), "cores", Level.WARN, "1 cores", "2 cores"),
    ("no memory", with_machine(free_bytes=MIB), "memory", Level.WARN, "1 MiB", "close other"),
    ("threads", with_machine(omp_threads="64"), "threads", Level.WARN, "64 on 8", "NUM_THREADS=1"),
    ("words", with_machine(omp_threads="x"), "threads", Level.WARN, "=x", "OMP_NUM_THREADS=1"),
    (
        "governor",
        with_machine(governors=("performance", "powersave")),
        "CPU frequency",
        Level.WARN,
        "governor powersave",
        "jetson_clocks",
    ),
    ("no shm", with_machine(shm_free_bytes=None), "/dev/shm", Level.WARN, "missing", "--ipc=host"),
    ("full shm", with_machine(shm_free_bytes=0), "/dev/shm", Level.WARN, "0 MiB", "--shm-size"),
    (
        "leftovers",
        with_machine(shm_leftovers=8),
        "/dev/shm leftovers",
        Level.WARN,
        "8 files",
        "fastdds shm clean",
    ),
    (
        "torch missing",
        Facts(torch=Torch(version="", error="No module named 'torch'")),
        "torch",
        Level.FAIL,
        "No module named 'torch'",
        "pip install",
    ),
    (
        "Thor, cu12",
        with_gpu(replace(CUDA13, gpus=(THOR,)), CU12),
        "torch build",
        Level.FAIL,
        "no kernels for sm_110",
        "cu130",
    ),
    (
        "old GPU, cu13",
        with_gpu(replace(CUDA13, gpus=(Gpu(capability=(6, 1)),))),
        "torch build",
        Level.FAIL,
        "no kernels for sm_61",
        "cu126",
    ),
    (
        "old driver",
        with_gpu(replace(CUDA13, cuda=(12, 4))),
        "torch build",
        Level.FAIL,
        "built for CUDA 13.0, but the driver runs CUDA up to 12.4",
        "whl/cu126",
    ),
    ("CPU torch", with_gpu(torch=Torch()), "torch build", Level.WARN, "no CUDA", "whl/cu130"),
    (
        "no driver",
        with_gpu(Driver(hardware=True, error="libcuda.so.1: cannot open")),
        "driver",
        Level.WARN,
        "libcuda.so.1",
        "--gpus all",
    ),
    (
        "hidden",
        with_gpu(Driver(hardware=True, loaded=True, cuda=(13, 0), visible="")),
        "driver",
        Level.WARN,
        "CUDA_VISIBLE_DEVICES=''",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    (
        "no mapping",
        with_gpu(replace(CUDA13, gpus=(Gpu(virtual_memory=False),))),
        "memory mapping",
        Level.WARN,
        "cannot map",
        "whole GPU",
    ),
    (
        "capture",
        with_gpu(torch=replace(TORCH13, capture=None, capture_error="CUDA out of memory")),
        "capture",
        Level.FAIL,
        "out of memory",
        "nvidia-smi",
    ),
    (
        "blind",
        with_gpu(torch=replace(TORCH13, capture=None, available=False)),
        "capture",
        Level.FAIL,
        "does not see",
        "reinstall",
    ),
    (
        "full GPU",
        with_gpu(torch=replace(TORCH13, free_bytes=MIB)),
        "GPU memory",
        Level.WARN,
        "1 MiB free",
        "nvidia-smi",
    ),
    (
        "no Triton",
        with_gpu(torch=replace(TORCH13, triton="")),
        "Triton",
        Level.WARN,
        "missing",
        "pip install triton",
    ),
    (
        "no Triton, Arm",
        with_gpu(torch=replace(TORCH13, triton=""), architecture="aarch64"),
        "Triton",
        Level.WARN,
        "missing",
        "NVIDIA's torch wheel",
    ),
    (
        "no rclpy",
        with_ros(rclpy="", error="No module named 'rclpy'"),
        "rclpy",
        Level.FAIL,
        "No module named",
        "ros-jazzy-rclpy[fastrtps]",
    ),
    (
        "no rmw",
        with_ros(rclpy="", error="librmw_fastrtps_cpp.so: cannot open shared object file"),
        "rclpy",
        Level.FAIL,
        "librmw",
        "ros-jazzy-rmw-fastrtps-cpp",
    ),
    (
        "other Python",
        with_ros(rclpy="", error="No module named 'rclpy._rclpy_pybind11'"),
        "rclpy",
        Level.FAIL,
        "pybind11",
        "/usr/bin/python3",
    ),
    (
        "other wheels",
        with_ros(rclpy="", error="librcl.so", foreign_wheels=True),
        "rclpy",
        Level.FAIL,
        "librcl",
        "unset LD_LIBRARY_PATH",
    ),
    (
        "Arm",
        Facts(
            ros=Ros(rclpy="", error="No module named 'rclpy'"),
            machine=Machine(architecture="aarch64"),
        ),
        "rclpy",
        Level.FAIL,
        "rclpy",
        "no wheels of rclpy for aarch64",
    ),
    (
        "source tree",
        with_ros(interfaces_error="No module named 'flashrt_ros.msg'", source_tree=True),
        "interfaces",
        Level.FAIL,
        "flashrt_ros.msg",
        "colcon build and source install/setup.bash (this is a source tree",
    ),
    ("domain", with_ros(domain="900"), "ROS_DOMAIN_ID", Level.FAIL, "'900'", "best 0 to 100 or"),
    ("no domain", with_ros(domain="-1"), "ROS_DOMAIN_ID", Level.FAIL, "from 0 to 232", "=N"),
    (
        "domain of ephemeral ports",
        with_ros(domain="151"),
        "ROS_DOMAIN_ID",
        Level.WARN,
        "32768 to 60999",
        "215 to 232",
    ),
    (
        "domain of other ephemeral ports",
        with_ros(domain="20", ephemeral=(10000, 65535)),
        "ROS_DOMAIN_ID",
        Level.WARN,
        "10000 to 65535",
        "0 to 9 for",
    ),
    (
        "subnet",
        with_ros(discovery_range=""),
        "ROS_AUTOMATIC_DISCOVERY_RANGE",
        Level.WARN,
        "multicast",
        "=LOCALHOST",
    ),
    (
        "range",
        with_ros(discovery_range="NEAR"),
        "ROS_AUTOMATIC_DISCOVERY_RANGE",
        Level.FAIL,
        "'NEAR'",
        "=LOCALHOST",
    ),
    (
        "off",
        with_ros(discovery_range="OFF"),
        "ROS_AUTOMATIC_DISCOVERY_RANGE",
        Level.FAIL,
        "find nobody",
        "=LOCALHOST",
    ),
    (
        "deprecated",
        with_ros(localhost_only="1"),
        "ROS_LOCALHOST_ONLY",
        Level.WARN,
        "deprecated",
        "ROS_AUTOMATIC_DISCOVERY_RANGE",
    ),
    ("lost", with_ros(loop_ms=None), "a message", Level.FAIL, "lost", "fastdds shm clean"),
    (
        "lost on CycloneDDS",
        with_ros(loop_ms=None, rmw="rmw_cyclonedds_cpp"),
        "a message",
        Level.FAIL,
        "lost",
        "CYCLONEDDS_URI",
    ),
    (
        "security misspelled",
        with_ros(security=("true", "enforce")),
        "security",
        Level.WARN,
        "'enforce': nodes start unprotected",
        "=Enforce",
    ),
    (
        "small receive buffers",
        with_ros(rmw="rmw_cyclonedds_cpp", rmem_max=212992),
        "receive buffers",
        Level.WARN,
        "212992: CycloneDDS loses",
        "sysctl",
    ),
    (
        "no profile",
        with_ros(profiles={"FASTDDS_DEFAULT_PROFILES_FILE": False}),
        "Fast DDS profile",
        Level.FAIL,
        "no such file",
        "unset",
    ),
    ("logs", with_ros(log_dir_writable=False), "logs", Level.FAIL, "/tmp/log", "ROS_LOG_DIR"),
    (
        "entry point",
        Facts(package=Package(policies={"mine": "its module 'm' is not installed"})),
        "policy mine",
        Level.FAIL,
        "'m'",
        "entry point",
    ),
    (
        "no policies",
        Facts(package=Package(policies={})),
        "policies",
        Level.FAIL,
        "none found",
        "reinstall",
    ),
]


def of(findings: list[Finding], subject: str) -> Finding:
    return next(finding for finding in findings if finding.subject == subject)


@pytest.mark.parametrize(
    ("facts", "subject", "level", "text", "cure"),
    [pytest.param(*row[1:], id=row[0]) for row in FAULTS],
)
def test_fault_is_named_with_its_cure(
    facts: Facts, subject: str, level: Level, text: str, cure: str
) -> None:
    findings = judge(facts)
    finding = of([f for f in findings if f.level is not Level.OK], subject)
    assert (finding.level, text in finding.text, cure in finding.cure) == (level, True, True), (
        finding
    )
    # One fault is one line: no other finding may complain as well.
    assert [f.subject for f in findings if f.level is Level.FAIL and f is not finding] == []


@pytest.mark.parametrize(
    "facts",
    [Facts(), GPU_FACTS, with_gpu(replace(CUDA13, gpus=(THOR,)))],
    ids=["cpu", "h200", "thor"],
)
def test_sound_machine_has_nothing_to_cure(facts: Facts) -> None:
    assert [finding for finding in judge(facts) if finding.level is not Level.OK] == []


def test_thor_and_slices_are_described() -> None:
    slice_ = Gpu(name="NVIDIA H200 MIG 1g.18gb")
    findings = judge(with_gpu(replace(CUDA13, gpus=(THOR, slice_))))
    assert "integrated" in of(findings, "NVIDIA Thor").text
    assert "MIG slice" in of(findings, slice_.name).text


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ("sm_90",), True),
        ((8, 6), ("sm_80",), True),  # same major, higher minor
        ((8, 0), ("sm_86",), False),  # same major, lower minor
        ((11, 0), ("sm_100", "sm_120"), False),
        ((11, 0), ("sm_100", "compute_100"), True),  # portable code
        ((11, 0), ("compute_120",), False),
        ((9, 0), ("sm_90a",), True),
        ((12, 1), ("sm_120a",), False),  # such images run on exactly their own
        ((10, 3), ("sm_100f",), True),
        ((9, 0), ("gfx942",), False),
        ((9, 0), (), False),
    ],
)
def test_which_images_run_where(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    assert runs_on(capability, architectures) is runs


@pytest.mark.parametrize(
    ("capability", "cuda", "wheel"),
    [
        ((11, 0), (13, 0), "cu130"),
        ((9, 0), (12, 8), "cu128"),
        ((9, 0), (12, 4), "cu126"),
        ((9, 0), (0, 0), "cu130"),
        ((12, 0), (12, 8), "cu128"),
        ((7, 0), (13, 0), "cu126"),
    ],
)
def test_which_wheel_fits(capability: tuple[int, int], cuda: tuple[int, int], wheel: str) -> None:
    assert wheel_for(capability, cuda) == wheel


def test_report_puts_the_cure_beneath_and_counts() -> None:
    lines = report(judge(with_machine(cores=1))).splitlines()
    index = next(i for i, line in enumerate(lines) if line.startswith("warn"))
    assert lines[index + 1].strip().startswith("-> give the process at least 2 cores")
    assert lines[-1].endswith("1 warn, 0 fail")


def test_leftovers_are_told_from_living_participants(tmp_path: Path) -> None:
    for name in ("fastrtps_dead_el", "fastrtps_alive_el", "fastrtps_dead", "other"):
        (tmp_path / name).write_bytes(b"")
    with (tmp_path / "fastrtps_alive_el").open("rb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert count_leftovers(tmp_path) == 1
    assert count_leftovers(tmp_path) == 2
    assert count_leftovers(tmp_path / "missing") == 0


def test_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"rclpy": "9", "error": "", "rmw": "rmw_x", "interfaces_error": "", "loop_ms": 1.5}
    monkeypatch.setattr("flashrt_ros.doctor.gather._ask", lambda module: (dict(answer), ""))
    ros = read_ros(
        {
            "ROS_LOG_DIR": str(tmp_path / "made" / "later"),
            "ROS_DOMAIN_ID": "7",
            "FASTDDS_DEFAULT_PROFILES_FILE": str(tmp_path / "none.xml"),
        }
    )
    assert (ros.rclpy, ros.rmw, ros.loop_ms, ros.domain) == ("9", "rmw_x", 1.5, "7")
    assert ros.profiles == {"FASTDDS_DEFAULT_PROFILES_FILE": False}
    assert ros.log_dir_writable
    assert not (tmp_path / "made").exists()


def test_a_probe_that_dies_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"rclpy": "9", "error": "", "rmw": "rmw_x", "interfaces_error": ""})
    monkeypatch.setattr(
        "flashrt_ros.doctor.gather._ask", lambda module: (json.loads(line), "ended with code -11")
    )
    ros = read_ros({})
    assert (ros.loop_ms, ros.loop_error) == (None, "ended with code -11")
    assert of(judge(Facts(ros=ros)), "a message").level is Level.FAIL


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert machine.cores >= 1
    assert machine.free_bytes > 0
    assert "recurrent" in read_package().policies
    assert read_driver().loaded in {True, False}
