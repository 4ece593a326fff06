"""The rooms of the package: who may import whom, how long files get, one set of error codes.

Rules that only stand in a document rot; these are read from the sources.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashrt_ros.cli import COMMANDS
from flashrt_ros.errors import ErrorCode, FlashRTError

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "flashrt_ros"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LINE_LIMIT = 450

# Room to the rooms that it may import; a missing room may import nothing of ours.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "exit_code": {"errors"},
    "process": {"errors"},
    "page": {"errors"},
    "hardware": set(),
    "runtime": {"errors", "hardware"},
    "policies": {"errors", "runtime"},
    "contract": {"errors", "runtime", "policies"},
    "testing": {"errors", "runtime", "policies"},
    "bench": {
        "errors",
        "process",
        "page",
        "runtime",
        "policies",
        "contract",
        "testing",
        "bag",
        "evaluate",
    },
    "bag": {"errors", "runtime", "policies", "contract"},
    "dataset": {"errors", "runtime", "policies", "contract"},
    "evaluate": {"errors", "page", "runtime", "policies", "contract", "bag", "dataset"},
    "ros": {"errors", "hardware", "runtime", "policies", "contract", "bag", "msg", "srv"},
    "trees": {"errors", "runtime", "policies", "contract", "ros", "bag", "msg", "srv"},
    "demo": {
        "errors",
        "exit_code",
        "process",
        "runtime",
        "policies",
        "contract",
        "ros",
        "bag",
        "trees",
        "msg",
        "srv",
    },
    "doctor": {"errors", "hardware", "runtime", "policies", "contract", "bag"},
}
DEVICES = [
    PACKAGE / "runtime" / "device" / name
    for name in ("cuda.py", "side_by_side.py", "virtual_memory.py")
]
ARMS = {command.module for command in COMMANDS}
ROS_ROOMS = {"ros", "trees", "demo"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def room_of(path: Path) -> str:
    inner = path.relative_to(PACKAGE)
    if inner.stem == "command" or inner.stem.endswith("_command"):
        return "cli"  # an arm of the command line, which may reach everything, but lazily
    return inner.parts[0] if len(inner.parts) > 1 else inner.stem


def imports(path: Path, text: str | None = None) -> list[tuple[str, int, bool]]:
    """Every import: dotted name, line, and whether the module runs it when it is itself imported.

    Imports under ``if TYPE_CHECKING`` never run and count as lazy.
    """
    found: list[tuple[str, int, bool]] = []

    def visit(node: ast.AST, eager: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = [*path.relative_to(ROOT).with_suffix("").parts][: -node.level or None]
            base = ".".join([*(package if node.level else []), *filter(None, [node.module])])
            found.extend((f"{base}.{alias.name}", node.lineno, eager) for alias in node.names)
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        for child in ast.iter_child_nodes(node):
            visit(child, eager and not lazy)

    visit(ast.parse(path.read_text(encoding="utf-8") if text is None else text), eager=True)
    return found


def test_imports_are_seen_wherever_they_stand() -> None:
    text = (
        "import rclpy.node\n"
        "from flashrt_ros.bag import reader\n"
        "from ..contract.sampler import Sampler\n"
        "if TYPE_CHECKING:\n    import triton\n"
        "def lazy():\n    from . import noise_kernel\n"
    )
    assert imports(PACKAGE / "runtime" / "probe.py", text) == [
        ("rclpy.node", 1, True),
        ("flashrt_ros.bag.reader", 2, True),
        ("flashrt_ros.contract.sampler.Sampler", 3, True),
        ("triton", 5, False),
        ("flashrt_ros.runtime.noise_kernel", 7, False),
    ]


def faults() -> list[str]:
    found = []
    for path in SOURCES:
        room = room_of(path)
        for name, line, eager in imports(path):
            parts = name.split(".")
            if parts[1:2] == ["cli"] and not eager and module_of(path) in ARMS:
                continue  # a subcommand that can be started without naming it
            if parts[0] != "flashrt_ros" or len(parts) < 2 or room in ("cli", "__init__"):
                continue
            if not (PACKAGE / parts[1]).exists() and not (PACKAGE / f"{parts[1]}.py").exists():
                continue  # a name of the package itself, such as __version__
            if parts[1] != room and parts[1] not in ALLOWED.get(room, set()):
                found.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {name}")
    return found


def test_rooms_are_imported_in_one_direction() -> None:
    assert faults() == []


def test_every_room_has_its_rule() -> None:
    rooms = {room_of(path) for path in SOURCES} - {"cli", "__init__", "__main__"}
    assert rooms <= set(ALLOWED), "a new room needs a line in ALLOWED"


def test_allowed_directions_have_no_circle() -> None:
    done: set[str] = {"msg", "srv"}
    while set(ALLOWED) - done:
        ready = [room for room, needs in ALLOWED.items() if room not in done and needs <= done]
        assert ready, f"circle among {set(ALLOWED) - done}"
        done.update(ready)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_ros_rooms_import_ros(path: Path) -> None:
    if room_of(path) in ROS_ROOMS:
        return
    for name, line, eager in imports(path):
        first = name.split(".")[0]
        ros = first in ("rclpy", "launch", "launch_ros", "ament_index_python") or first.endswith(
            ("_msgs", "_interfaces")
        )
        # The command line and its diagnosis look at ROS, but only when asked.
        excused = room_of(path) in ("cli", "doctor") and not eager
        assert not ros or excused, f"{path.relative_to(ROOT)}:{line}: imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_cuda_is_imported_where_it_belongs(path: Path) -> None:
    for name, line, eager in imports(path):
        where = f"{path.relative_to(ROOT)}:{line}: imports {name}"
        if name.split(".")[0] == "cuda":
            # A benchmark may stand the driver's own call beside ours.
            assert path in DEVICES or (room_of(path) == "bench" and not eager), where
        if name.split(".")[0] == "triton" and eager:
            assert path.name.endswith("_kernel.py") or path.parent.name == "kernels", where
        if name.endswith("_kernel") and room_of(path) == "runtime":
            assert not eager, where


def test_only_the_outermost_loops_spin() -> None:
    """A spin within a callback keeps every other callback waiting, or deadlocks."""
    loops = {
        "demo/client.py",
        "ros/bench_peer.py",
        "ros/client.py",
        "ros/play.py",
        "ros/probe.py",
        "ros/runner.py",
        "trees/bench_peer.py",
        "trees/runner.py",
    }
    spinning = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("spin")
    }
    assert spinning == loops


@pytest.mark.parametrize(
    "path", [*SOURCES, *sorted(ROOT.glob("test/*.py"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_files_stay_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LINE_LIMIT, f"{path.relative_to(ROOT)} has {lines} lines"


def test_the_command_line_reaches_the_rooms_lazily() -> None:
    cheap = {"errors", "cli", "hardware"}
    for path in SOURCES:
        if room_of(path) != "cli":
            continue
        for name, line, eager in imports(path):
            parts = name.split(".")
            if eager and parts[0] == "flashrt_ros" and (PACKAGE / parts[1]).is_dir():
                own = parts[1] == path.relative_to(PACKAGE).parts[0]
                where = (
                    f"{path.relative_to(ROOT)}:{line}: imports {name} when it is itself imported"
                )
                assert own or parts[1] in cheap, where


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_package_imports_next_to_nothing() -> None:
    assert not {"torch", "numpy", "rclpy", "rosbags", "mujoco"} & loaded_by("import flashrt_ros")
    assert "torch" in loaded_by("import flashrt_ros.runtime.session")  # the check can see it
    # The doctor judges a machine whose torch is missing or broken.
    rules = "from flashrt_ros.hardware import driver, finding, gpu_rules, memory, torch_build"
    assert not {"torch", "numpy"} & loaded_by(rules)


@pytest.mark.parametrize("room", ["runtime.session", "errors"])
def test_the_runtime_needs_neither_ros_nor_triton(room: str) -> None:
    found = loaded_by(f"import flashrt_ros.{room}")
    assert not {"rclpy", "triton", "cuda", "rosbags", "yaml"} & found


def test_services_have_exactly_our_error_codes() -> None:
    expected = {code.name: int(code) for code in ErrorCode}
    services = sorted((ROOT / "srv").glob("*.srv"))
    assert services
    for service in services:
        response = service.read_text(encoding="utf-8").split("\n---\n")[1]
        found = dict(re.findall(r"^uint16 ([A-Z][A-Z_]*)=(\d+)$", response, re.MULTILINE))
        assert {name: int(value) for name, value in found.items()} == expected, service.name
        fields = [line.split("#")[0].split() for line in response.splitlines()]
        assert fields[:3] == [
            ["bool", "success"],
            ["string", "message"],
            ["uint16", "error_code"],
        ], service.name


def test_every_code_but_none_has_a_class() -> None:
    def walk(kind: type[FlashRTError]) -> set[ErrorCode]:
        return {kind.code}.union(*(walk(child) for child in kind.__subclasses__()))

    assert walk(FlashRTError) == set(ErrorCode) - {ErrorCode.NONE}
