"""Reads the facts from this machine; what may crash or hang is asked in another process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

import flashrt_ros
from flashrt_ros.doctor.facts import Facts, Machine, Package, Ros
from flashrt_ros.doctor.interfaces import differing, installed_share
from flashrt_ros.hardware.driver import read_driver
from flashrt_ros.hardware.facts import Torch
from flashrt_ros.hardware.memory import available_bytes

PROBE_SECONDS = 60


def gather() -> Facts:
    """Reads all facts; takes a few seconds, most of them for importing torch and rclpy."""
    return Facts(
        machine=read_machine(),
        driver=read_driver(),
        torch=read_torch(),
        ros=read_ros(os.environ),
        package=read_package(),
    )


def read_machine() -> Machine:
    """Reads processor, memory and system."""
    pattern = "devices/system/cpu/cpu*/cpufreq/scaling_governor"
    governors = [_text(path) for path in Path("/sys").glob(pattern)]
    shm = Path("/dev/shm")
    version = sys.version_info
    return Machine(
        python=(version.major, version.minor, version.micro),
        architecture=platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        free_bytes=available_bytes() or 0,
        governors=tuple(sorted({name for name in governors if name})),
        realtime_limit=max(resource.getrlimit(resource.RLIMIT_RTPRIO)[1], 0),
        shm_free_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        shm_leftovers=count_leftovers(shm),
        omp_threads=os.environ.get("OMP_NUM_THREADS", ""),
        jetson=_text(Path("/etc/nv_tegra_release")).partition(",")[0].lstrip("# "),
    )


def count_leftovers(folder: Path) -> int:
    """Counts shared-memory segments of Fast DDS participants that no longer run.

    A participant holds a lock on the ``_el`` file beside its segment for as long as it lives.
    """
    dead = 0
    for lock in folder.glob("fastrtps_*_el") if folder.is_dir() else ():
        with contextlib.suppress(OSError), lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            dead += 1
    return dead


def read_torch() -> Torch:
    """Reads torch's build and tries a capture."""
    found, error = _ask("flashrt_ros.doctor.torch_probe")
    if found is None:
        return Torch(version="", error=error)
    found["architectures"] = tuple(found["architectures"])
    if error and found["available"] and found["capture"] is None:
        found["capture_error"] = error  # the process died in the attempt
    return Torch(**found)


def read_ros(environment: Mapping[str, str]) -> Ros:
    """Reads ROS 2 and sends one message through it."""
    home = environment.get("ROS_HOME") or str(Path.home() / ".ros")
    log_dir = Path(environment.get("ROS_LOG_DIR") or Path(home) / "log")
    profiles = {
        name: Path(environment[name]).is_file()
        for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
        if environment.get(name)
    }
    sourced = "/rclpy" in _spec("rclpy") and not _spec("rclpy").startswith(sys.prefix)
    wheels = next((name for name in ("jazzy", "kilted") if _version(f"ros-{name}-rclpy")), "")
    library = environment.get("LD_LIBRARY_PATH", "")
    found, error = _ask("flashrt_ros.ros.probe")
    found = found or {"rclpy": "", "error": error, "rmw": "", "interfaces_error": ""}
    if error and found["rclpy"] and found.get("loop_ms") is None:
        found["loop_error"] = found.get("loop_error") or error
    tree = Path(flashrt_ros.__file__).parents[1]
    source_tree = (tree / "package.xml").is_file()
    share = installed_share(environment, sys.prefix) if source_tree else None
    return Ros(
        **{"loop_ms": None, "loop_error": "", **found},
        distro=environment.get("ROS_DISTRO") or wheels,
        source="sourced" if sourced else "wheels",
        source_tree=source_tree,
        interfaces_differing=differing(tree, share) if share is not None else (),
        domain=environment.get("ROS_DOMAIN_ID", ""),
        ephemeral=_ephemeral_ports(),
        discovery_range=environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE", ""),
        localhost_only=environment.get("ROS_LOCALHOST_ONLY", ""),
        profiles=profiles,
        security=(
            environment.get("ROS_SECURITY_ENABLE", ""),
            environment.get("ROS_SECURITY_STRATEGY", ""),
        ),
        rmem_max=_rmem_max(),
        log_dir=str(log_dir),
        log_dir_writable=_writable(log_dir),
        foreign_wheels=bool(environment.get("_ROS_WHEELS_BOOTSTRAP_COMPLETE"))
        and sys.prefix not in library,
    )


def _ephemeral_ports() -> tuple[int, int]:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return Ros.ephemeral


def _rmem_max() -> int:
    try:
        return int(Path("/proc/sys/net/core/rmem_max").read_text())
    except (OSError, ValueError):
        return Ros.rmem_max


def read_package() -> Package:
    """Reads our version and tries to find the factory of each registered policy."""
    from flashrt_ros.policies.registry import available_policies

    policies = {}
    for name, target in available_policies().items():
        module = target.partition(":")[0]
        try:
            missing = util.find_spec(module) is None
            policies[name] = f"its module {module!r} is not installed" if missing else ""
        except (ImportError, ValueError) as error:
            policies[name] = f"its module {module!r} cannot be found: {error}"
    return Package(version=flashrt_ros.__version__, policies=policies)


def _ask(module: str) -> tuple[dict[str, Any] | None, str]:
    """Runs a probe; returns the last JSON line that it printed, and its error if it failed."""
    root = str(Path(flashrt_ros.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    environment = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", **os.environ, "PYTHONPATH": path}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env=environment,
            check=False,
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        output, errors, code = _words(late.stdout), f"no answer in {PROBE_SECONDS} s", 1
    lines = [line for line in output.splitlines() if line.startswith("{")]
    last = errors.strip().splitlines()[-1:] or [f"ended with code {code}"]
    return (json.loads(lines[-1]) if lines else None), (last[0] if code else "")


def _words(output: bytes | str | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _writable(folder: Path) -> bool:
    """Whether ``folder`` can be written, or made where it does not exist; makes nothing."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _spec(module: str) -> str:
    spec = util.find_spec(module)
    return spec.origin or "" if spec else ""
