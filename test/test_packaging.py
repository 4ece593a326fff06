"""Pins what colcon, pip and a reader of the manifests each take for the truth about the package.

Two builds and three lists of requirements can drift apart without any code failing: a robot then
misses a package at its first import. So the lists are held against each other and against the
imports themselves.
"""

import ast
import importlib
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

import flashrt_ros

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = ElementTree.parse(ROOT / "package.xml").getroot()
EXECUTABLES = {"policy_node", "policy_nodes", "arm_node", "flashrt_ros"}

# What an import is called, where that is not the name it is installed by.
DISTRIBUTION = {
    "PIL": "pillow",
    "cuda": "cuda-bindings",
    "yaml": "pyyaml",
}
# Imported only where torch has brought it (CUDA builds do), or while training.
BROUGHT_BY_TORCH = {"triton"}
ROS_CORE = {"rclpy", "ament_index_python", "launch", "launch_ros"}


@pytest.fixture
def requirements(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delenv("FLASHRT_ROS_DISTRO", raising=False)
    return importlib.import_module("requirements")


def imported_packages() -> dict[str, set[str]]:
    """Top-level packages that flashrt_ros imports, each with the files that do."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "flashrt_ros").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names and top != "flashrt_ros":
                    found.setdefault(top, set()).add(str(path.relative_to(ROOT)))
    return found


def is_ros(name: str) -> bool:
    return name in ROS_CORE or name.endswith(("_msgs", "_interfaces", "_srvs"))


def test_version_is_said_once() -> None:
    assert MANIFEST.findtext("version") == flashrt_ros.__version__


def test_changelog_begins_with_this_version() -> None:
    heads = re.findall(r"^(\S.*)\n-+$", (ROOT / "CHANGELOG.rst").read_text(), re.MULTILINE)
    assert heads, "CHANGELOG.rst has no section"
    assert heads[0].startswith(("Forthcoming", str(MANIFEST.findtext("version"))))


def test_every_import_of_ros_is_in_package_xml() -> None:
    declared = {e.text for e in MANIFEST if e.tag in ("depend", "exec_depend")}
    missing = {n: f for n, f in imported_packages().items() if is_ros(n) and n not in declared}
    assert not missing, f"imported but not declared in package.xml: {missing}"


def test_every_import_of_python_is_required_from_pip(requirements: ModuleType) -> None:
    required = {
        re.split(r"[<>=\[]", line)[0].lower().replace("_", "-")
        for group in requirements.GROUPS.values()
        for line in group
    }
    missing = {}
    for name, files in imported_packages().items():
        if is_ros(name) or name in BROUGHT_BY_TORCH:
            continue
        if DISTRIBUTION.get(name, name).lower().replace("_", "-") not in required:
            missing[name] = files
    assert not missing, f"imported but not in scripts/requirements.py: {missing}"


def test_readme_names_what_rosdep_cannot_bring(requirements: ModuleType) -> None:
    page = (ROOT / "README.md").read_text()
    line = re.search(r"pip install (.*?) +# no rosdep keys", page)
    assert line is not None
    with_key = {"numpy", "pyyaml"}
    assert set(line[1].split()) == set(requirements.GROUPS["run"]) - with_key
    pinned = re.search(r'torch_cpu="(.*)"', (ROOT / "scripts/setup.sh").read_text())
    assert pinned is not None
    assert f'"{pinned[1]}+cpu"' in page, "the page and the set-up take different builds of torch"


def test_cmake_installs_every_executable() -> None:
    rule = re.search(r"install\(PROGRAMS (.*?)\n", (ROOT / "CMakeLists.txt").read_text())
    assert rule is not None
    assert {Path(word).name for word in rule[1].split()} == EXECUTABLES
    for name in EXECUTABLES:
        script = ROOT / "scripts" / name
        assert os.access(script, os.X_OK), f"{script} is not executable"
        module = re.search(r"^from (flashrt_ros\S+) import main", script.read_text(), re.MULTILINE)
        assert module is not None
        source = ROOT / (module[1].replace(".", "/") + ".py")
        assert source.is_file(), f"{script} starts {source}, which does not exist"


def test_interfaces_are_importable_and_as_in_this_tree() -> None:
    """The installed messages have the fields that msg/ and srv/ of this tree declare."""
    pytest.importorskip("flashrt_ros.msg", reason="the generated messages are not installed")
    for path in sorted([*ROOT.glob("msg/*.msg"), *ROOT.glob("srv/*.srv")]):
        module = importlib.import_module(f"flashrt_ros.{path.suffix[1:]}")
        kind = getattr(module, path.stem)
        parts = [kind] if path.suffix == ".msg" else [kind.Request, kind.Response]
        for part, text in zip(
            parts, re.split(r"^---$", path.read_text(), flags=re.M), strict=True
        ):
            declared = [
                words[1]
                for words in (line.split("#")[0].split() for line in text.splitlines())
                if len(words) >= 2 and "=" not in words[1]
            ]
            fields = [
                f for f in part.get_fields_and_field_types() if not f.startswith("structure_")
            ]
            assert fields == declared, f"{path.name}: install this tree again"


@pytest.mark.parametrize("name", ["jazzy", "kilted"])
def test_wheels_are_named_by_distribution(
    name: str, requirements: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AMENT_PREFIX_PATH", raising=False)
    monkeypatch.setenv("FLASHRT_ROS_DISTRO", name)
    wheels = [w for w in requirements.build_requirements() if w.startswith("ros-")]
    wheels += requirements.ros_requirements()
    assert wheels
    assert all(w.startswith(f"ros-{name}-") for w in wheels)


def test_unknown_distribution_is_refused(
    requirements: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AMENT_PREFIX_PATH", raising=False)
    monkeypatch.setenv("FLASHRT_ROS_DISTRO", "noetic")
    with pytest.raises(SystemExit, match=r"noetic.*expected jazzy or kilted"):
        requirements.ros_requirements()


def sourced(tmp_path: Path, minor: int) -> str:
    """A prefix that looks like a sourced ROS 2 for Python 3.minor."""
    (tmp_path / "share/rosidl_default_generators").mkdir(parents=True)
    (tmp_path / f"lib/python3.{minor}/site-packages/rclpy").mkdir(parents=True)
    return str(tmp_path)


def test_sourced_ros_needs_no_wheel_of_ros(
    requirements: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AMENT_PREFIX_PATH", sourced(tmp_path, sys.version_info.minor))
    assert requirements.ros_requirements() == []
    assert not [w for w in requirements.build_requirements() if w.startswith("ros-")]


def test_sourced_ros_of_another_python_is_refused(
    requirements: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AMENT_PREFIX_PATH", sourced(tmp_path, sys.version_info.minor + 1))
    other = rf"python3\.{sys.version_info.minor + 1}"
    with pytest.raises(SystemExit, match=f"{other}.*use that Python"):
        requirements.ros_requirements()


def test_own_environment_is_not_a_sourced_ros(
    requirements: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMENT_PREFIX_PATH", sys.prefix)
    assert requirements.sourced_prefixes() == []


def pip_install() -> metadata.Distribution:
    """This tree as pip installed it; the test is skipped where pip did not."""
    try:
        found = metadata.distribution("flashrt_ros")
    except metadata.PackageNotFoundError:
        pytest.skip("flashrt_ros is not installed here")
    source = json.loads(found.read_text("direct_url.json") or "{}").get("url")
    if source != ROOT.as_uri():
        pytest.skip("pip has not installed flashrt_ros from this tree")
    return found


def test_pip_installs_what_the_tree_holds() -> None:
    """Sources and data, launch, config, messages, executables; and nothing of the build."""
    found = pip_install()
    places = [os.path.normpath(found.locate_file(f)) for f in found.files or []]
    packages = str(found.locate_file(""))
    modules = {os.path.relpath(p, packages) for p in places if p.startswith(packages)}
    others = {os.path.relpath(p, sys.prefix) for p in places if not p.startswith(packages)}
    files = [path for path in (ROOT / "flashrt_ros").rglob("*") if path.is_file()]
    sources = {str(f.relative_to(ROOT)) for f in files if "__pycache__" not in f.parts}
    assert sources <= modules, f"not installed: {sorted(sources - modules)}"
    for folder in ("launch", "config", "msg", "srv"):
        for path in (ROOT / folder).rglob("*.*"):
            if "__pycache__" not in path.parts:
                assert f"share/flashrt_ros/{path.relative_to(ROOT)}" in others
    assert {f"lib/flashrt_ros/{name}" for name in EXECUTABLES} <= others
    stray = [
        p for p in modules | others if p.startswith("include") or p.endswith((".c", ".cmake"))
    ]
    assert not stray


def test_pip_entry_points() -> None:
    scripts = {e.name: e.value for e in pip_install().entry_points}
    assert scripts["flashrt_ros"] == "flashrt_ros.cli:main"


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda page: page.name
)
def test_what_a_page_points_at_exists(page: Path) -> None:
    """Links, and in the architecture page also files by name."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [target for target in targets if not (page.parent / target).exists()]
    if page.name == "ARCHITECTURE.md":
        named = re.findall(r"`([\w/]+(?:/|\.py|\.sh|\.yaml|\.srv|\.txt))`", text)
        known = [f.as_posix() for f in ROOT.rglob("*") if ".venv" not in f.parts]
        for name in named:
            if not any(f.endswith("/" + name.rstrip("/")) for f in known):
                missing.append(name)
        assert len(named) > 20, "no names found: has the page's form changed?"
    assert not missing, f"{page.name} names what does not exist: {missing}"
