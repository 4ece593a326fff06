"""Starts the processes of the benchmarks that need ROS, and ends every one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flashrt_ros
from flashrt_ros.bench.harness import Options
from flashrt_ros.errors import DeadlineError, NotFoundError
from flashrt_ros.process import Domain, node_command, private_environment, with_this_package

PATIENCE_S = 120.0
CONTROL_HZ = 50.0
JOINTS = 14
"""Joints of the stand-in robot; the policy commands the first seven of them."""

CAMERA_SIZE = (480, 640)
CAMERA_HZ = 30.0
PROFILE = "config/fastdds_large_messages.xml"
PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")

CONTRACT = """\
version: 1
robot: bench
control_rate_hz: {rate}
on_time_jump: hold
observations:
  - key: observation.state
    max_age_ms: 1000
    parts:
      - {{topic: joint_states, type: sensor_msgs/msg/JointState, field: position, names: {all}}}
{cameras}actions:
  - topic: joint_command
    type: sensor_msgs/msg/JointState
    field: position
    names: {commanded}
    index: [0, 1, 2, 3, 4, 5, 6]
    on_limit: clamp
    on_miss: hold
start: unchecked
"""
CAMERA = """\
  - key: observation.images.{name}
    max_age_ms: 1000
    image:
      topic: {name}/image_raw
      type: sensor_msgs/msg/Image
      size: {size}
      {steps}
"""
STEPS = "steps: [{resize: [240, 320]}, {crop: [224, 224]}]"
"""From the camera's image to that of ``camera_policy``."""


def joint_names(count: int) -> list[str]:
    """Returns ``j0`` and so on."""
    return [f"j{index}" for index in range(count)]


def node_options(options: Options) -> dict[str, object]:
    """Returns the node's parameters that follow from how it is to be measured."""
    return {"device": options.device, "warm_up_replays": options.warm()}


def settle_s(options: Options) -> float:
    """Returns how long the node runs before anything is timed, in seconds."""
    return max(1.0, options.warm(0) / CONTROL_HZ)


class Stage:
    """Processes in one ROS domain of their own, on this machine only.

    Attributes:
        folder: For contract and logs; gone at the end.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="flashrt_ros_bench_")
        self.folder = Path(self._folder.name)
        self._processes: list[subprocess.Popen[str]] = []
        self._domain = Domain()
        private = private_environment(self._domain.id, self.folder / "log")
        self._environment = {
            **with_this_package(private),
            # Threads of an operator that wait for each other would be measured, not the node.
            "OMP_NUM_THREADS": "1",
            **_large_messages(),
        }

    def contract(self, cameras: Sequence[str] = (), steps: str = STEPS) -> Path:
        """Writes the stand-in robot's contract, with these cameras and steps for their images."""
        path = self.folder / "bench.contract.yaml"
        names = joint_names(JOINTS)
        size = list(CAMERA_SIZE)
        entries = "".join(CAMERA.format(name=name, size=size, steps=steps) for name in cameras)
        path.write_text(
            CONTRACT.format(rate=CONTROL_HZ, all=names, commanded=names[:7], cameras=entries)
        )
        return path

    def cameras(self, names: Sequence[str]) -> None:
        """Starts a camera of each name, every one a process of its own."""
        height, width = CAMERA_SIZE
        for name in names:
            self.peer(
                "camera",
                topic=f"{name}/image_raw",
                height=height,
                width=width,
                rate_hz=CAMERA_HZ,
            )

    def node(
        self, policy: str, contract: Path | str, **parameters: object
    ) -> subprocess.Popen[str]:
        """Starts the policy node."""
        values = {"policy": policy, "contract": contract, "autostart": True, **parameters}
        return self._start(node_command("flashrt_ros.ros.policy_node", values), quiet=True)

    def peer(self, role: str, **options: object) -> subprocess.Popen[str]:
        """Starts a peer of the node, see ``flashrt_ros.ros.bench_peer``."""
        return self._start(
            [sys.executable, "-m", "flashrt_ros.ros.bench_peer", role, json.dumps(options)]
        )

    def python(self, module: str, *arguments: object) -> subprocess.Popen[str]:
        """Starts a module that needs no ROS."""
        return self._start([sys.executable, "-m", module, *map(str, arguments)])

    def first_line(self, process: subprocess.Popen[str]) -> None:
        """Waits until a process says that it begins.

        Raises:
            DeadlineError: It ended before; with its last words.
        """
        assert process.stdout is not None
        if not process.stdout.readline():
            raise DeadlineError(f"{_name(process)}: ended early: {self.last_words(process)}")

    def result(
        self, process: subprocess.Popen[str], patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Waits for a process to end and returns the JSON line that it printed last.

        Raises:
            DeadlineError: It did not end in time, or printed none; with its last words.
        """
        try:
            output, _ = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired as late:
            raise DeadlineError(
                f"{_name(process)}: no result in {patience_s:.0f} s: {self.last_words(process)}"
            ) from late
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if process.returncode or not lines:
            raise DeadlineError(
                f"{_name(process)}: ended with {process.returncode}: {self.last_words(process)}"
            )
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def end(self, process: subprocess.Popen[str]) -> None:
        """Ends one process."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def __enter__(self) -> Stage:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends every process, the newest first."""
        for process in reversed(self._processes):
            self.end(process)
        self._domain.close()
        self._folder.cleanup()

    def _start(self, command: list[str], quiet: bool = False) -> subprocess.Popen[str]:
        # Words of error go to a file: a pipe that nobody reads would fill and stop the process.
        errors = (self.folder / f"{len(self._processes)}.err").open("w")
        process = subprocess.Popen(
            command,
            env=self._environment,
            stdout=errors if quiet else subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        errors.close()
        self._processes.append(process)
        return process

    def words(self, process: subprocess.Popen[str]) -> str:
        """All that a process said on its standard error; of the node, also its output."""
        path = self.folder / f"{self._processes.index(process)}.err"
        return path.read_text(errors="replace")

    def last_words(self, process: subprocess.Popen[str]) -> str:
        """The end of it."""
        return "\n".join(self.words(process).splitlines()[-8:])


def _large_messages() -> dict[str, str]:
    """Variables that name our Fast DDS profile, as the launch files set them."""
    if any(os.environ.get(variable) for variable in PROFILE_VARIABLES):
        return {}
    prefixes = [sys.prefix, *os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)]
    places = [Path(flashrt_ros.__file__).resolve().parents[1]]
    places += [Path(prefix) / "share/flashrt_ros" for prefix in prefixes if prefix]
    found = [place / PROFILE for place in places if (place / PROFILE).is_file()]
    if not found:
        raise NotFoundError(f"{PROFILE}: expected in one of {[str(p) for p in places]}, no file")
    return dict.fromkeys(PROFILE_VARIABLES, str(found[0]))


def _name(process: subprocess.Popen[str]) -> str:
    words = process.args if isinstance(process.args, list) else [process.args]
    return " ".join(str(word) for word in words[1:4])[:80]
