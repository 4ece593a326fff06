"""What flashrt_ros needs from pip, said once: setup.py reads it, and so do the shell scripts.

    python scripts/requirements.py build        what building the interfaces needs
    python scripts/requirements.py ros          what running the nodes needs of ROS 2
    python scripts/requirements.py demo test    the Python packages of these groups
    python scripts/requirements.py lerobot      what to install without its dependencies, and
    python scripts/requirements.py lerobot-needs     those that the tests' use of it imports
    python scripts/requirements.py transformers      with its dependencies

Prints one requirement a line. With a ROS 2 sourced, ROS 2 itself is never among them.
"""

import os
import sys
from pathlib import Path
from xml.etree import ElementTree

GROUPS: dict[str, list[str]] = {
    "run": [
        "lz4",
        "mcap",
        "numpy",
        "pyyaml",
        "rosbags",
        "safetensors",
        "xxhash",
        "zstandard",
    ],
    # A lower bound only: robots bring a torch of their own.
    "torch": ["torch>=2.4"],
    "cuda": ["cuda-bindings"],
    "demo": ["mujoco>=3.3", "py_trees>=2.2"],
    # Behaviours for trees.
    "trees": ["py_trees>=2.2"],
    # BehaviorTree.CPP itself, to run its XML from Python; wheels for one architecture.
    "btcpp": ["behaviortreepy>=0.1.4;platform_machine=='x86_64'", "py_trees>=2.2"],
    # JPEG, PNG and compressed depth from cameras.
    "images": ["pillow"],
    # Task texts of hosted policies.
    "language": ["tokenizers"],
    # LeRobot's data sets.
    "datasets": ["av", "pillow", "pyarrow"],
    # Many recordings over a cluster.
    "ray": ["ray"],
    # Plots of the benchmarks and of evaluations, and their tables on a terminal.
    "report": ["plotly", "rich"],
    "test": [
        "av",
        "behaviortreepy>=0.1.4;platform_machine=='x86_64'",
        # Linters change their rules from one release to the next.
        "codespell~=2.4.3",
        "hypothesis",
        "jsonschema",
        # Reads back what is written for Foxglove.
        "mcap-ros2-support",
        "mypy~=2.4.1",
        "pillow",
        "plotly",
        "py_trees>=2.2",
        "pyarrow",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "ray",
        "rich",
        "ruff~=0.17.6",
        "tokenizers",
        "types-PyYAML",
    ],
    "colcon": ["colcon-common-extensions"],
}

# The last LeRobot for Python before 3.12. No extra: its pins exclude the torch that is used here.
LEROBOT: dict[str, list[str]] = {
    "lerobot": ["lerobot==0.4.4", "torchvision==0.28.0"],
    "lerobot-needs": [
        "accelerate",
        "av<16",
        "datasets",
        "deepdiff",
        "diffusers<0.36",
        "draccus==0.10.0",
        "einops",
        "gymnasium",
        "huggingface-hub<0.36",
        "imageio",
        "jsonlines",
        "num2words",
        "packaging<26",
        "pillow",
        "pyserial",
        "termcolor",
        "tqdm",
        "transformers>=4.57.1,<5",
    ],
}

# Its hybrid models are compared with ours; LeRobot's pins forbid it.
TRANSFORMERS: dict[str, list[str]] = {"transformers": ["transformers>=5.17"]}

# Generators that are plain Python packages. Wheels of the ROS 2 generators name them; a sourced
# ROS 2 has them from the system, which an isolated build does not see.
_GENERATOR_PYTHON = ["catkin_pkg", "empy", "lark"]

_BUILD_WHEELS = {
    "": [
        "ament-cmake",
        "ament-cmake-include-directories",
        "ament-package",
        "rosidl-core-generators",
        "rosidl-default-generators",
        "std-msgs",
    ],
    # Needed by find_package() and missing from the metadata of the wheels above.
    "jazzy": [
        "ament-cmake-gmock",
        "ament-cmake-gtest",
        "ament-cmake-pytest",
        "ament-cmake-ros",
        "fastrtps-cmake-module",
        "python-cmake-module",
    ],
    "kilted": ["ament-cmake-ros-core"],
}
_RUN_WHEELS = ["rclpy", "rmw-fastrtps-cpp", "common-interfaces"]


def sourced_prefixes() -> list[str]:
    """Prefixes of a sourced ROS 2 that can generate interfaces; empty where none is sourced.

    The environment that this Python runs in does not count, even if AMENT_PREFIX_PATH names it:
    what it holds of ROS 2 came from wheels.

    Raises:
        SystemExit: a ROS 2 is sourced whose rclpy is for another Python.
    """
    listed = [p for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    prefixes = [p for p in listed if Path(p).resolve() != Path(sys.prefix).resolve()]
    if not any((Path(p) / "share/rosidl_default_generators").is_dir() for p in prefixes):
        return []
    pythons = {
        found.parents[1].name
        for prefix in prefixes
        for found in Path(prefix).glob("**/python3.*/*-packages/rclpy")
    }
    mine = f"python3.{sys.version_info.minor}"
    if pythons and mine not in pythons:
        theirs = ", ".join(sorted(pythons))
        raise SystemExit(
            f"The sourced ROS 2 is for {theirs}, and this is {mine} ({sys.executable}): use that "
            "Python, or a shell without ROS 2 sourced."
        )
    return prefixes


def distro() -> str:
    """ROS 2 whose wheels to take: FLASHRT_ROS_DISTRO, else the one installed here, else jazzy."""
    wanted = os.environ.get("FLASHRT_ROS_DISTRO", "")
    if wanted:
        if wanted not in _BUILD_WHEELS:
            raise SystemExit(f"FLASHRT_ROS_DISTRO is {wanted!r}: expected jazzy or kilted.")
        return wanted
    manifest = Path(sys.prefix) / "share/rclpy/package.xml"
    if manifest.is_file():
        version = ElementTree.parse(manifest).findtext("version") or "0"
        return "kilted" if int(version.split(".")[0]) >= 9 else "jazzy"
    return "jazzy"


def _wheels(names: list[str]) -> list[str]:
    # A bare ros-std-msgs is the newest of any distribution; these names pin one.
    return [f"ros-{distro()}-{name}" for name in names]


def build_requirements() -> list[str]:
    """What CMake needs to generate and compile the interfaces."""
    if sourced_prefixes():
        return list(_GENERATOR_PYTHON)
    return ["catkin_pkg", *_wheels([*_BUILD_WHEELS[""], *_BUILD_WHEELS[distro()]])]


def ros_requirements() -> list[str]:
    """What the nodes need of ROS 2 at run time."""
    return [] if sourced_prefixes() else _wheels(_RUN_WHEELS)


def main(groups: list[str]) -> int:
    """Prints the requirements of the named groups."""
    named = {
        **GROUPS,
        **LEROBOT,
        **TRANSFORMERS,
        "build": ["cmake>=3.21", "ninja", "numpy", "setuptools>=65", "wheel"],
    }
    unknown = sorted(set(groups) - {*named, "ros"})
    if unknown or not groups:
        raise SystemExit(f"unknown group {unknown}: expected some of {[*named, 'ros']}")
    lines = []
    for group in groups:
        lines += named.get(group, [])
        lines += {"build": build_requirements, "ros": ros_requirements}.get(group, list)()
    print("\n".join(dict.fromkeys(lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
