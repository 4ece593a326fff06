"""Restores that leave something out: what is found, and what must be.

The full restore is compared with the same eyes as the wrong ones, so a policy that remembers
something outside its buffers must be found by it; and a buffer that changes nothing must not be
said to matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hybrid_robot import episode, robot_policy
from torch import nn

from flashrt_ros import ablate_command, cli
from flashrt_ros.bench.random_hybrid import random_hybrid
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.policy import Buffers, Policy, Port, Ports
from flashrt_ros.testing.ablation import FULL, NOTHING, ROWS_ALONE, Ablation, ablate, room

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
on_devices = pytest.mark.parametrize("device", DEVICES)


class Adder(Policy):
    """Adds up what it sees; ``idle`` is written and never read."""

    family: ClassVar[str] = "adder"

    def __init__(self, leaks: bool = False) -> None:
        self._leaks, self._seen = leaks, 0.0
        self._module = nn.Module()

    def config(self) -> Mapping[str, object]:
        return {}

    def module(self) -> nn.Module:
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("sum", (2,), torch.float32, Role.STATE),
            BufferSpec("idle", (1,), torch.float32, Role.STATE),
            BufferSpec("late", (1,), torch.int64, Role.STATE),
            BufferSpec("seen", (2,), torch.float32, Role.INPUT),
            BufferSpec("action", (3,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        return Ports((Port("seen", "seen", (2,)),), Port("action", "action", (3,)))

    def reset_(self, state: Buffers) -> None:
        for name in ("sum", "idle", "late"):
            state[name].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["sum"].add_(inputs["seen"])
        state["idle"].copy_(inputs["seen"][:1])
        # Only a sum whose count is high shows in the last element.
        state["late"].add_((state["sum"][:1] > 0).to(torch.int64))
        self._seen += 1.0 if self._leaks else 0.0
        last = torch.where(state["late"] > 3, state["late"].float(), 0.0)
        outputs["action"].copy_(torch.cat((state["sum"], last)) + self._seen)


def leaking() -> Policy:
    return Adder(leaks=True)


def steps_of(index: int, steps: int) -> Sequence[dict[str, torch.Tensor]]:
    sign = 1.0 if index == 0 else -1.0
    return [{"seen": torch.tensor([sign, 0.25 * sign])} for _ in range(steps)]


def test_where_an_action_diverges_is_told_to_the_element() -> None:
    report = ablate(Adder(), cuts=3, steps=5, episode=steps_of, latest=1)
    assert report.ok
    assert report.has_force
    assert (report.cuts, report.unit) == ([1], "element"), "one behind each step at most"
    whole = report.find("sum")
    assert (whole.verdict, whole.actions, whole.alike) == ("diverges", 1, 0)
    assert whole.first is not None
    # Four steps of -1, which the other episode has taken, in the place of one of 1.
    assert (whole.first.cut, whole.first.step, whole.first.element) == (1, 0, 0)
    assert (whole.first.expected, whole.first.found) == (2.0, -3.0)
    # The counter stood at 1 in this episode and at 0 in the other: it shows when it passes 3.
    late = report.find("late").first
    assert late is not None
    assert (late.step, late.element, late.expected, late.found) == (2, 2, 4.0, 0.0)
    assert report.find("idle").verdict == "inert"
    assert report.find("noise.counter").verdict == "same value"
    assert report.find(FULL).verdict == "equal"
    assert [finding.name for finding in report.findings][:2] == [FULL, NOTHING]


def test_a_policy_that_remembers_elsewhere_is_found() -> None:
    report = ablate(leaking(), cuts=2, steps=4, episode=steps_of)
    assert not report.ok
    full = report.find(FULL)
    assert (full.verdict, full.actions) == ("diverges", 2)
    assert "NOT equal" in ablate_command.table(report)


@on_devices
def test_each_buffer_of_a_hybrid_robot(device: str) -> None:
    def observations(index: int, steps: int) -> Sequence[Mapping[str, torch.Tensor]]:
        return episode(steps, seed=index)

    report = ablate(robot_policy(2), device, 2, 6, observations, latest=8)
    check_hybrid(report)
    assert report.find(ROWS_ALONE).verdict == "diverges"
    # Rewritten in each step before it is read.
    assert report.find("action.tokens").verdict == "inert"


@on_devices
def test_each_buffer_of_a_random_hybrid(device: str) -> None:
    policy = random_hybrid("tiny", device)
    report = ablate(policy, device, cuts=4, steps=4, latest=4)
    check_hybrid(report)
    assert report.latest == 4
    far = ablate(policy, device, cuts=1, steps=4, latest=10**6, controls_alone=True)
    assert (
        4 < far.latest < far.steps + far.latest <= room(policy, complete_layout(policy).capacity)
    )
    assert f"of the first {far.latest} control steps" in ablate_command.table(far)
    assert report.find("token.last").verdict == "diverges"
    assert report.find("mtp.*").verdict == "acceptance changes"


def check_hybrid(report: Ablation) -> None:
    assert report.ok, ablate_command.table(report)
    assert report.has_force
    for name in (ROWS_ALONE, "layers.*.recurrent", "layers.*.conv", "layers.3.v", "all rows"):
        found = report.find(name)
        assert found.verdict == "diverges", name
        assert found.first is not None
    # The model corrects every draft of a head that has lost its memory.
    for name in ("mtp.k", "mtp.v", "mtp.hidden", "mtp.*"):
        found = report.find(name)
        assert found.actions == 0, name
    assert report.find("mtp.*").state
    assert report.find("mtp.accepted").verdict == "inert"


def test_the_command_prints_writes_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    options = ["--cuts", "2", "--steps", "4", "--json", str(tmp_path / "found.json")]
    good = ["test_ablation:Adder", "--episodes", "test_ablation:steps_of"]
    assert cli.main(["ablate", *good, *options]) == 0
    out = capsys.readouterr().out
    assert "first at step 0, element 0: " in out
    assert "equal to the last byte at every cut" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["ok"], found["has_force"], found["steps"]) == (True, True, 4)
    assert {item["name"]: item["verdict"] for item in found["findings"]}["sum"] == "diverges"
    assert cli.main(["ablate", "test_ablation:leaking", *options]) == 1
    assert "NOT equal" in capsys.readouterr().out
    assert json.loads((tmp_path / "found.json").read_text())["ok"] is False


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected a policy or --random-large"),
        (["hold", "--random-large"], "invalid choice|expected a policy or --random-large"),
        (["hold", "--cuts", "0"], "cuts: expected at least 1, found 0"),
        (["hold", "--episodes", "nowhere:x"], "expected module:function, found 'nowhere:x'"),
        (["hold", "--episodes", "json"], "expected module:function, found 'json'"),
    ],
)
def test_wrong_words_are_code_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ablate", *words]) == 2
    error = capsys.readouterr().err
    assert any(part in error for part in expected.split("|")), error


def test_more_steps_than_rows_are_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"expected at most \d+, for which there are rows"
    ):
        ablate(robot_policy(2), steps=500)
