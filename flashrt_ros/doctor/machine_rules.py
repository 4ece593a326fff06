"""Judges processor, memory, system and this package."""

from __future__ import annotations

from flashrt_ros.doctor.facts import Machine, Package
from flashrt_ros.hardware.facts import MIB
from flashrt_ros.hardware.finding import Area, Finding

PYTHONS = ((3, 10), (3, 13))
SHM_NEEDED_BYTES = 64 * MIB
MEMORY_NEEDED_BYTES = 1024 * MIB


def judge_machine(machine: Machine) -> list[Finding]:
    """Returns the findings on processor, memory and system."""
    area = Area("machine")
    _judge_python(area, machine)
    system = f"{machine.cores} cores, {machine.architecture}"
    if machine.jetson:
        system += f", Jetson ({machine.jetson})"
    if machine.cores < 2:
        area.warn(
            "cores",
            system,
            "give the process at least 2 cores: control loop and inference share 1",
        )
    else:
        area.ok("cores", system)
    free = f"{machine.free_bytes / MIB:.0f} MiB free"
    if machine.free_bytes < MEMORY_NEEDED_BYTES:
        area.warn("memory", free, "close other programs: torch and ROS alone take about 700 MiB")
    else:
        area.ok("memory", free)
    _judge_threads(area, machine)
    _judge_timing(area, machine)
    _judge_shm(area, machine)
    return area.findings


def judge_package(package: Package) -> list[Finding]:
    """Returns the findings on this package and the policies that it knows."""
    area = Area("package")
    area.ok("version", f"flashrt_ros {package.version}")
    for name, fault in package.policies.items():
        if fault:
            area.fail(
                f"policy {name}",
                fault,
                "correct the entry point of that name (group flashrt_ros.policies), or install "
                "what it imports",
            )
    sound = [name for name, fault in package.policies.items() if not fault]
    if sound:
        area.ok("policies", ", ".join(sound))
    elif not package.policies:
        area.fail("policies", "none found", "reinstall flashrt_ros: its own are missing")
    return area.findings


def _judge_python(area: Area, machine: Machine) -> None:
    version = ".".join(map(str, machine.python))
    oldest, newest = PYTHONS
    if not oldest <= machine.python[:2] <= newest:
        area.fail(
            "Python",
            f"{version}, expected 3.{oldest[1]} to 3.{newest[1]}",
            "make a virtual environment with python3.12 (`python3.12 -m venv`) and install there",
        )
    else:
        area.ok("Python", version)


def _judge_threads(area: Area, machine: Machine) -> None:
    words = machine.omp_threads
    if not words:
        area.ok("threads", "OMP_NUM_THREADS unset; the node's parameter torch_threads decides")
    elif not words.isdigit() or not 0 < int(words) <= machine.cores:
        area.warn(
            "threads",
            f"OMP_NUM_THREADS={words} on {machine.cores} cores",
            "export OMP_NUM_THREADS=1: threads that contend for a core make small calls many "
            "times slower",
        )
    else:
        area.ok("threads", f"OMP_NUM_THREADS={words}")


def _judge_timing(area: Area, machine: Machine) -> None:
    slow = sorted(set(machine.governors) & {"powersave", "ondemand", "conservative"})
    if slow:
        area.warn(
            "CPU frequency",
            f"governor {', '.join(slow)}: the first inference after a pause is slow",
            "sudo cpupower frequency-set -g performance (on a Jetson: sudo jetson_clocks)",
        )
    else:
        known = ", ".join(sorted(set(machine.governors)))
        area.ok("CPU frequency", f"governor {known}" if known else "governor cannot be read here")
    if machine.realtime_limit:
        area.ok("realtime", f"priorities up to {machine.realtime_limit} permitted")
    else:
        area.ok("realtime", "no realtime priority permitted to this user; the node asks for none")


def _judge_shm(area: Area, machine: Machine) -> None:
    if machine.shm_free_bytes is None:
        area.warn(
            "/dev/shm",
            "missing: Fast DDS falls back to the network stack",
            "mount it: sudo mount -t tmpfs tmpfs /dev/shm (docker: --ipc=host)",
        )
    elif machine.shm_free_bytes < SHM_NEEDED_BYTES:
        area.warn(
            "/dev/shm",
            f"{machine.shm_free_bytes / MIB:.0f} MiB free: Fast DDS may lose messages",
            "clear it (`fastdds shm clean`), or in docker start with --shm-size=1g or --ipc=host",
        )
    else:
        area.ok("/dev/shm", f"{machine.shm_free_bytes / MIB:.0f} MiB free")
    if machine.shm_leftovers:
        area.warn(
            "/dev/shm leftovers",
            f"{machine.shm_leftovers} files of Fast DDS participants that were killed",
            "fastdds shm clean",
        )
