"""Pins how a policy is found: directory, registered name, factory; and that ours need no metadata.

A colcon install carries no entry points of ours, so the built-in table must stand alone; another
package's entry point must be found without a change here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flashrt_ros.errors import CheckpointError, InvalidArgumentError, NotFoundError
from flashrt_ros.policies.registry import BUILT_IN, available_policies, load_policy

MODULE = """
from toy_policies import ToyRecurrent

class Given(ToyRecurrent):
    directory = None

def make(directory):
    policy = Given()
    policy.directory = directory
    return policy

class Nested:
    make = staticmethod(make)

def bare():
    return Given()

number = 3
def other(directory):
    return "no policy"
"""


@pytest.fixture(autouse=True)
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed as pip installs one, by its files."""
    site = tmp_path / "site"
    info = site / "other_robot-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-robot\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[flashrt_ros.policies]\nother = other_robot:make\n"
        "recurrent = other_robot:make\nbare = other_robot:bare\n"
    )
    (site / "other_robot.py").write_text(MODULE)
    (site / "half_installed.py").write_text("import surely_not_there\n")
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in ("other_robot", "half_installed"):
        sys.modules.pop(name, None)


def test_an_entry_point_of_another_package_is_found() -> None:
    assert available_policies()["other"] == "other_robot:make"
    policy = load_policy("other")
    assert policy.family == "toy_recurrent"
    assert policy.directory is None


def test_our_own_names_cannot_be_taken() -> None:
    assert available_policies()["recurrent"] == BUILT_IN["recurrent"]


def test_a_directory_goes_to_the_factory_of_its_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"type": "other"}))
    assert load_policy(str(tmp_path)).directory == tmp_path
    assert load_policy(tmp_path).directory == tmp_path


def test_a_factory_is_named_directly() -> None:
    assert load_policy("other_robot:make").family == "toy_recurrent"
    assert load_policy("other_robot:Nested.make").family == "toy_recurrent"
    # A class whose arguments all have defaults, and a function without any.
    assert load_policy("other_robot:Given").directory is None
    assert load_policy("other_robot:bare").directory is None


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("no_such", NotFoundError, r"no registered policy; registered are \[.*'other'"),
        ("/no/such/directory", NotFoundError, "no directory of that path"),
        ("no_such:make", NotFoundError, "no module 'no_such'"),
        ("other_robot.deeper:make", NotFoundError, "no module 'other_robot.deeper'"),
        ("other_robot:absent", NotFoundError, "other_robot has no 'absent'"),
        ("half_installed:make", InvalidArgumentError, "imports 'surely_not_there'"),
        ("other_robot:number", InvalidArgumentError, "expected a callable, found int"),
        ("other_robot:other", InvalidArgumentError, "expected a flashrt_ros Policy, found str"),
        ("recurrent", CheckpointError, "needs weights: name the directory"),
    ],
)
def test_what_cannot_be_loaded_says_why(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load_policy(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"type": "no_such"}', "type: found 'no_such', expected one of .*'recurrent'"),
        ("{", "expected JSON"),
        ('{"type": "bare"}', "takes no argument, so it cannot read"),
        ("[]", "expected an object with the policy family"),
        ('{"type": 3}', "expected an object with the policy family"),
        (None, r"config.json: cannot be read \(No such file"),
    ],
)
def test_a_wrong_directory_says_why(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=words):
        load_policy(tmp_path)
