"""The benchmark of any policy: every call is timed, and LeRobot's steps are held against ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lerobot_stand_in
import pytest
import torch
from diffusion_files import write
from language_files import write_language

from flashrt_ros import cli
from flashrt_ros.bench import lerobot_peer, policy
from flashrt_ros.bench.harness import Options

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


class Slow:
    """Stands in for LeRobot."""

    made: tuple[Path, str] | None = None
    begun = 0

    def __init__(self, directory: Path, device: str) -> None:
        type(self).made = directory, device

    def reset(self) -> None:
        type(self).begun += 1

    def network(self, observation: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
        chunk = torch.zeros(9, 2)
        return lambda: chunk.add_(1)

    def step(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        assert set(observation) == {"observation.state", "observation.environment_state"}
        return torch.zeros(2)


@pytest.mark.parametrize("device", DEVICES)
def test_calls_and_steps_of_a_checkpoint(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lerobot_peer, "installed", lambda: True)
    monkeypatch.setattr(lerobot_peer, "LeRobotPeer", Slow)
    result = policy.run(Options(device, quick=True, policy=str(write(tmp_path))))
    assert Slow.made == (tmp_path, device)
    cases = {row.case: row for row in result.rows}
    assert {"plan", "adopt", "act", "first step", "second step"} <= set(cases)
    assert ("plan, not captured" in cases) == (device == "cuda")
    peer = "LeRobot" if device == "cpu" else "LeRobot, captured"
    assert cases["plan"].floor == f"{peer}: plan"
    most = "1.05" if device == "cpu" else "1.02"
    assert cases["plan"].target == f"<= {most} x floor"
    assert cases["LeRobot: plan"].target == cases["adopt"].target == ""
    assert any("LeRobot's plan as it is takes" in note for note in result.notes)
    for name in ("first step", "second step"):
        assert cases[name].floor == f"LeRobot: {name}"
        assert cases[name].ratio is not None
    assert Slow.begun >= 2 * cases["LeRobot: second step"].n


def test_without_lerobot_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_peer, "installed", lambda: False)
    result = policy.run(Options(quick=True, policy=str(write(tmp_path))))
    assert any("LeRobot is not installed" in note for note in result.notes)
    assert all(row.floor == "" for row in result.rows)


def test_what_lerobot_refuses_is_timed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.4 refuses what 0.6 wrote, and rtc_config in a Diffusion Policy."""

    def refuse(directory: Path, device: str) -> None:
        raise ValueError("The fields `pretrained_revision` are not valid\nand more")

    monkeypatch.setattr(lerobot_peer, "installed", lambda: True)
    monkeypatch.setattr(lerobot_peer, "LeRobotPeer", refuse)
    result = policy.run(Options(quick=True, policy=str(write(tmp_path))))
    (note,) = [note for note in result.notes if "LeRobot cannot load it" in note]
    assert note.endswith("ValueError: The fields `pretrained_revision` are not valid")
    assert {"plan", "act", "first step"} <= {row.case for row in result.rows}


def test_lerobot_is_not_beside_its_own_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    lerobot_stand_in.install(monkeypatch)
    monkeypatch.setattr(lerobot_peer, "installed", lambda: True)
    result = policy.run(Options(quick=True, policy=str(write_language(tmp_path, "smolvla"))))
    assert "The network is LeRobot's own, so LeRobot is not beside it." in result.notes
    assert {"plan", "act", "first step"} <= {row.case for row in result.rows}


def test_a_policy_without_plans_has_its_act_alone() -> None:
    result = policy.run(Options(quick=True, policy="cue_reach"))
    assert [row.case for row in result.rows] == ["act", "first step", "second step"]
    assert not any("LeRobot" in note for note in result.notes)


def test_state_that_grows_begins_anew_with_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 calls would need more rows than there are."""
    monkeypatch.setattr(policy, "FEWEST", 300)
    result = policy.run(Options(policy="flashrt_ros.policies.attention:make"))
    assert {row.case: row.n for row in result.rows}["act"] == 300


def test_the_command_takes_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "policy", "--quick", "--policy", str(write(tmp_path))]
    assert cli.main(words) == 0
    assert "== policy: " in capsys.readouterr().out
