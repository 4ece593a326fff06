"""Relative actions: the numbers of LeRobot's processors, anchored to the state of the plan.

The formula is LeRobot's, written out again here. What LeRobot keeps in an attribute must be in the
capsule: a restore in the middle of a chunk, after the arm has moved and another chunk has begun,
goes on as before.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from act_files import CAMERA, SMALL, VARIANTS, observations, write_act
from diffusion_files import write as write_diffusion
from hosted_objects import STATE as HOSTED_STATE
from hosted_objects import A, S, host
from lerobot_files import STATE, edit_json

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.policies.relative import REFERENCE, RelativeActions
from flashrt_ros.policies.splice import TemporalEnsemble
from flashrt_ros.runtime.policy import Port
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

NAMES = ["shoulder.pos", "elbow.pos", "wrist.pos", "Gripper.pos", "a", "b", "c", "d"]


def make_relative(directory: Path, **options: Any) -> Path:
    """Adds both steps where LeRobot puts them."""
    settings = {"enabled": True, "exclude_joints": [], "action_names": None, **options}

    def before(value: Any) -> None:
        value["steps"].insert(
            2, {"registry_name": "relative_actions_processor", "config": settings}
        )

    def behind(value: Any) -> None:
        step = {"registry_name": "absolute_actions_processor", "config": {"enabled": True}}
        value["steps"].insert(1, step)

    edit_json(directory / "policy_preprocessor.json", before)
    edit_json(directory / "policy_postprocessor.json", behind)
    return directory


def rows(variant: dict[str, Any], count: int) -> list[dict[str, torch.Tensor]]:
    features = {**SMALL, **variant}["input_features"]
    return list(itertools.islice(observations(features), count))


def mask(directory: Path) -> torch.Tensor:
    config = json.loads((directory / "policy_preprocessor.json").read_text())["steps"][2]["config"]
    size = load_policy(directory).ports().action.shape[0]
    names = [str(n).lower() for n in (config["action_names"] or [])[:size]]
    tokens = [t.lower() for t in config["exclude_joints"]]
    keep = [not any(t in n for t in tokens) for n in names]
    return torch.tensor(keep + [True] * (size - len(keep)), dtype=torch.float32)


@pytest.mark.parametrize("excluded", [[], ["gripper"]])
@pytest.mark.parametrize("variant", ["vectors", "ensemble"])
def test_actions_are_the_plain_ones_plus_the_state_of_their_plan(
    tmp_path: Path, variant: str, excluded: list[str]
) -> None:
    plain = PolicySession(load_policy(write_act(tmp_path / "plain", **VARIANTS[variant])))
    directory = write_act(tmp_path / "relative", **VARIANTS[variant])
    make_relative(directory, exclude_joints=excluded, action_names=NAMES)
    relative = PolicySession(load_policy(directory))
    size, seen = plain.policy.ports().action.shape[0], torch.zeros(0)
    moved = False
    for row in rows(VARIANTS[variant], 14):
        if relative.plan_due:
            seen = row[STATE][:size]
        moved = moved or not torch.equal(seen, row[STATE][:size])
        expected = plain.step(row).values + seen * mask(directory)
        assert torch.equal(relative.step(row).values, expected)
        assert torch.equal(relative.arena.state[REFERENCE], seen)
    # The control: within a chunk the arm's own state is another than the plan's.
    assert moved == (variant == "vectors")


@pytest.mark.parametrize("variant", ["vectors", "ensemble"])
def test_a_capsule_keeps_what_its_chunk_is_relative_to(tmp_path: Path, variant: str) -> None:
    directory = make_relative(write_act(tmp_path, **VARIANTS[variant]))
    session = PolicySession(load_policy(directory))
    given = rows(VARIANTS[variant], 30)
    for row in given[:6]:
        session.step(row)
    session.snapshot("middle")
    reference = session.arena.state[REFERENCE].clone()
    first = torch.stack([session.step(row).values for row in given[6:16]])
    unlike = torch.stack([session.step(row).values for row in given[6:16]])
    assert not torch.equal(session.arena.state[REFERENCE], reference)
    session.restore("middle")
    assert torch.equal(session.arena.state[REFERENCE], reference)
    assert torch.equal(torch.stack([session.step(row).values for row in given[6:16]]), first)
    assert not torch.equal(first, unlike)


def test_conforms(tmp_path: Path) -> None:
    for name, directory in {
        "act": write_act(tmp_path / "act"),
        "ensemble": write_act(tmp_path / "ensemble", **VARIANTS["ensemble"]),
        "diffusion": write_diffusion(tmp_path / "diffusion"),
    }.items():
        policy = load_policy(make_relative(directory))
        assert any(spec.name == REFERENCE for spec in policy.layout())
        report = check_policy(policy)
        assert report.ok, f"{name}: {report}"
        # A queue holds absolute actions already, and an ensemble plans before each action.
        assert REFERENCE in report.inert


def test_an_average_of_late_plans_becomes_absolute_by_the_reference_in_the_state(
    tmp_path: Path,
) -> None:
    made = load_policy(make_relative(write_act(tmp_path)))
    assert isinstance(made, ChunkedPolicy)
    splice = TemporalEnsemble(0.01, made.chunk_size)
    policy = ChunkedPolicy(made._predictor, 3, splice, beside=True, relative=made._relative)
    report = check_policy(policy)
    assert report.ok, str(report)
    assert REFERENCE not in report.inert


def test_a_hosted_object_conforms_and_is_relative() -> None:
    port = Port(HOSTED_STATE, HOSTED_STATE, (S,))
    policy = host(relative=RelativeActions(port, [True, False, True]))
    report = check_policy(policy)
    assert report.ok, str(report)
    observation = {HOSTED_STATE: torch.tensor([3.0, 5.0, 7.0, 9.0])}
    one, other = (PolicySession(p).step(observation).values for p in (policy, host()))
    assert torch.equal(one, other + torch.tensor([3.0, 0.0, 7.0]))
    assert A == 3


def test_steps_that_are_switched_off_change_nothing(tmp_path: Path) -> None:
    directory = make_relative(write_act(tmp_path / "off"), enabled=False)

    def off(value: Any) -> None:
        value["steps"][1]["config"]["enabled"] = False

    edit_json(directory / "policy_postprocessor.json", off)
    plain = PolicySession(load_policy(write_act(tmp_path / "plain")))
    session = PolicySession(load_policy(directory))
    assert session.state_fingerprint.id == plain.state_fingerprint.id


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("policy_postprocessor.json", lambda v: v["steps"].pop(1), "off by the robot's state"),
        ("policy_preprocessor.json", lambda v: v["steps"].pop(2), "off by the robot's state"),
        (
            "policy_preprocessor.json",
            lambda v: v["steps"].append(v["steps"].pop(2)),
            "expected it before 'normalizer_processor'",
        ),
        (
            "policy_postprocessor.json",
            lambda v: v["steps"].insert(0, v["steps"].pop(1)),
            "expected it behind 'unnormalizer_processor'",
        ),
        (
            "policy_preprocessor.json",
            lambda v: v["steps"][2]["config"].update(exclude_joints="gripper"),
            "exclude_joints: expected a list of names",
        ),
        (
            "policy_preprocessor.json",
            lambda v: v["steps"].insert(2, v["steps"][2]),
            "expected it once",
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(
    tmp_path: Path, file: str, change: Any, words: str
) -> None:
    directory = make_relative(write_act(tmp_path))
    edit_json(directory / file, change)
    with pytest.raises(CheckpointError, match=words):
        load_policy(directory)


def test_a_state_of_fewer_elements_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least the action's 3 elements"):
        RelativeActions(Port("observation.state", "observation.state", (2,)), [True] * 3)


def test_a_camera_alone_has_nothing_to_be_relative_to(tmp_path: Path) -> None:
    options = {**CAMERA, "input_features": dict(CAMERA["input_features"])}
    options["input_features"].pop(STATE, None)
    directory = make_relative(write_act(tmp_path, **options))
    with pytest.raises(CheckpointError, match="which actions are relative to"):
        load_policy(directory)
