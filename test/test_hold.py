"""The hold policy commands what it reads, or what it first read, and is as sound as any other.

It is what a new robot is wired up with, so its configuration must refuse what it does not know.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.hold import HoldPolicy
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy


def directory(tmp_path: Path, **values: object) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"type": "hold", **values}))
    return tmp_path


def actions(policy: HoldPolicy, positions: list[list[float]]) -> list[list[float]]:
    session = PolicySession(policy, rollback_depth=0)
    return [
        session.step({"observation.state": np.array(p, np.float32)}).values.tolist()
        for p in positions
    ]


def test_it_commands_the_present_position() -> None:
    positions = [[0.0, 1.0], [0.5, 0.75], [-2.0, 3.0]]
    assert actions(HoldPolicy(2), positions) == positions


def test_latched_it_commands_the_first_position_of_the_episode() -> None:
    policy = HoldPolicy(2, latch=True)
    session = PolicySession(policy)

    def act(*position: float) -> list[float]:
        return session.step({"observation.state": np.array(position, np.float32)}).values.tolist()

    assert [act(1.0, 2.0), act(5.0, 5.0)] == [[1.0, 2.0], [1.0, 2.0]]
    session.snapshot("held")
    session.reset_()
    assert act(7.0, 8.0) == [7.0, 8.0]
    session.restore("held")
    assert act(0.0, 0.0) == [1.0, 2.0]  # what was held is part of the execution state


def test_it_is_registered_and_sized_by_its_directory(tmp_path: Path) -> None:
    assert load_policy("hold").ports().action.shape == (6,)
    assert load_policy(directory(tmp_path, size=3)).ports().action.shape == (3,)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": 0}, "size: expected 1 to 4096, found 0"),
        ({"size": "3"}, "size: expected 1 to 4096, found '3'"),
        ({"latch": 1}, "latch: expected true or false, found 1"),
        ({"sise": 3}, r"unknown keys \['sise'\]; expected type, size, latch"),
    ],
)
def test_wrong_configurations_are_refused(
    tmp_path: Path, values: dict[str, object], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_policy(directory(tmp_path, **values))


@pytest.mark.parametrize("latch", [False, True])
def test_it_passes_the_conformance_suite(latch: bool) -> None:
    report = check_policy(HoldPolicy(3, latch))
    assert report.ok, str(report)
    # Unlatched, nothing of the past matters; latched, the position does.
    assert ("hold.position" in report.inert) is not latch
