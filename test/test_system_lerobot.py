"""A LeRobot checkpoint at a running node, as a user gets there: inspect, fill in, run, restore.

A camera and joints come over topics, and a capsule in the middle of a chunk or of an ensemble
brings back the same actions to the bit. What does not fit, or is spoiled, is named at configure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from act_files import write_act
from flashrt_ros.msg import PolicyStatus
from lerobot_files import ACTION, FRONT, STATE, feature
from lifecycle_msgs.msg import Transition
from node_peer import JOINTS, RELIABLE
from sensor_msgs.msg import Image, JointState
from stage import Stage
from test_lerobot_inspect import SPOILED

from flashrt_ros.contract.template import make_template
from flashrt_ros.policies.lerobot.changes import CHANGES
from flashrt_ros.policies.registry import load_policy

pytestmark = pytest.mark.ros
STEPS = 10
FEATURES = {
    "input_features": {STATE: feature("STATE", 2), FRONT: feature("VISUAL", 3, 32, 48)},
    "output_features": {ACTION: feature("ACTION", 2)},
}
ENSEMBLE = {"temporal_ensemble_coeff": 0.01}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("lerobot")) as stage:
        yield stage


def checkpoint(folder: Path, **changed: Any) -> Path:
    directory = write_act(folder, **FEATURES, **changed)
    names = [f"{joint}.pos" for joint in JOINTS]
    info = {"fps": 30, "features": {STATE: {"names": names}, ACTION: {"names": names}}}
    (directory / "info.json").write_text(json.dumps(info))
    return directory


def contract(directory: Path) -> dict[str, Any]:
    """The template, filled in for a robot of random weights on a busy machine."""
    found: dict[str, Any] = yaml.safe_load(make_template(load_policy(directory).ports(), 30.0))
    found["start"]["max_distance"] = 100.0
    for observation in found["observations"]:
        observation["max_age_ms"] = 10_000
    found["start"]["max_age_ms"] = 10_000
    return found


class Camera:
    """Publishes one image with every message of the joints."""

    def __init__(self, stage: Stage) -> None:
        self._publisher = stage.peer.node.create_publisher(Image, "/front/image_raw", RELIABLE)
        self._stage = stage
        self.shade = 60
        stage.robot.alter = self._publish

    def show(self, shade: int) -> None:
        """Another image from now on; returns when it has been published some times."""
        self.shade = shade
        before = len(self._stage.robot.published)
        published = self._stage.robot.published
        self._stage.peer.wait(lambda: len(published) > before + 5, "more images")

    def _publish(self, message: JointState) -> None:
        image = Image(height=32, width=48, encoding="rgb8", step=144, header=message.header)
        image.data = bytes(self.shade + i % 7 for i in range(32 * 144))
        self._publisher.publish(image)


def actions(stage: Stage, generation: int, step: int) -> list[tuple[str, list[float]]]:
    def found() -> Any:
        wanted = range(step, step + STEPS)
        steps = [s for s in stage.steps if s.generation == generation and s.step in wanted]
        return steps if len(steps) == STEPS else None

    steps = stage.peer.wait(found, f"{STEPS} steps from {step} on")
    return [(s.state_digest, list(s.action)) for s in steps]


@pytest.mark.parametrize("changed", [{}, ENSEMBLE], ids=["queue", "ensemble"])
def test_a_checkpoint_runs_and_comes_back(
    stage: Stage, tmp_path: Path, changed: dict[str, Any]
) -> None:
    directory = checkpoint(tmp_path / "model", new_in_0_9=1)
    (directory / CHANGES).write_text(json.dumps(changed))
    # When a plan that runs ahead is adopted depends on how long it took.
    stage.activate(str(directory), contract=contract(directory), plan_ahead=0)
    camera = Camera(stage)
    stage.wait_running()
    stage.wait_steps(6)
    said = [line for line in stage.process.output().splitlines() if str(directory) in line]
    assert any("config.json: nothing reads the keys new_in_0_9" in line for line in said)
    words = f"{CHANGES}: temporal_ensemble_coeff is 0.01 instead of null"
    assert any(words in line for line in said) is bool(changed)
    # An ensemble of one image alone would have settled: what is remembered must matter.
    stage.do("pause")
    cut = stage.do("snapshot", name="cut").capsule
    camera.show(200)
    stage.do("resume")
    first = actions(stage, cut.generation, cut.step)
    assert len({tuple(action) for _, action in first}) > 1
    restored = stage.do("restore", name="cut", publish=True)
    assert actions(stage, restored.generation, cut.step) == first
    # The control: with the same image, but nothing remembered.
    reset = stage.do("reset_episode")
    assert actions(stage, reset.generation, 0) != first
    # Chunks are published in the units of the action, so those of an ensemble are not.
    if not changed:
        stage.peer.wait(lambda: stage.chunks, "a chunk")
    assert bool(stage.chunks) is not bool(changed)


def test_no_image_no_motion(stage: Stage, tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "model")
    stage.activate(str(directory), contract=contract(directory))
    stage.wait_status(PolicyStatus.WAITING, "front/image_raw): no message")
    assert not stage.commands


def swap_sides(found: dict[str, Any]) -> None:
    found["observations"][1]["image"]["size"] = [48, 32]


def misname(found: dict[str, Any]) -> None:
    found["observations"][1]["key"] = "observation.images.font"


def permute(found: dict[str, Any]) -> None:
    found["observations"][0]["parts"][0]["names"] = list(reversed(JOINTS))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap_sides, "height and width are interchanged"),
        (misname, f"did you mean '{FRONT}'?"),
        (permute, "expected ['a.pos', 'b.pos'] as the policy calls its elements"),
    ],
)
def test_what_does_not_fit_is_named_at_configure(
    stage: Stage, tmp_path: Path, change: Any, words: str
) -> None:
    directory = checkpoint(tmp_path / "model")
    found = contract(directory)
    change(found)
    stage.prepare(str(directory), contract=found)
    stage.clear()
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    stage.peer.wait(lambda: words in stage.process.output(), f"{words!r} in the log")
    assert not stage.commands


@pytest.mark.parametrize(("spoil", "words"), SPOILED)
def test_a_spoiled_checkpoint_is_named_at_configure(
    stage: Stage, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    directory = checkpoint(tmp_path / "model")
    found = contract(directory)
    spoil(directory)
    stage.prepare(str(directory), contract=found)
    stage.clear()
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    lines = stage.peer.wait(
        lambda: [line for line in stage.process.output().splitlines() if str(directory) in line],
        "a line that names the checkpoint",
    )
    assert len(lines) == 1, "one sentence"
    assert words in lines[0]
    assert not stage.commands
