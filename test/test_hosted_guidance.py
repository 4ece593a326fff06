"""Real-time chunking of hosted objects: their samplers are drawn to the chunk under way.

An object whose sampler is our own flow must act, guided, to the bit as that flow does without
being hosted. In LeRobot's flow policies the guide takes the place of LeRobot's; their samplers run
the other way in time, and are held against the formula of ``guide`` here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lerobot_stand_in
import pytest
import torch
from flow_policy import KEY, SCALE, STEPS, Flow, flow
from flow_policy import A as FLOW_A
from flow_policy import H as FLOW_H
from language_files import CHUNK, WIDE, A, write_language
from lerobot_files import STATE
from test_hosted_lerobot import KINDS, observation
from test_real_time import OPTIONS, seen
from test_relative import make_relative
from torch import nn

from flashrt_ros.errors import InvalidArgumentError, SpecError, UnsupportedError
from flashrt_ros.policies.guidance import Prefix, guide, prefix_weights
from flashrt_ros.policies.hosted.description import HostedAction, HostedInput, HostedNoise
from flashrt_ros.policies.hosted.flow_guide import FlowGuide
from flashrt_ros.policies.hosted.policy import HostedPolicy
from flashrt_ros.policies.hosted.predictor import NOISE
from flashrt_ros.policies.real_time import CHUNK as UNDER_WAY
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.policies.splice import TemporalEnsemble
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

RTC = {"enabled": True, "execution_horizon": 5, "max_guidance_weight": 4.0}


class FlowObject(nn.Module):
    """The network of ``flow_policy`` with a sampler of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Flow().net

    def predict_action_chunk(
        self, batch: dict[str, torch.Tensor], noise: torch.Tensor, prefix: Prefix | None = None
    ) -> torch.Tensor:
        sample_HA = noise[0]
        for step in range(STEPS):
            now = torch.full((1,), step / STEPS, device=noise.device)

            def velocity(x: torch.Tensor, now: torch.Tensor = now) -> torch.Tensor:
                given = torch.cat((x.flatten(), batch[KEY][0], now))
                return torch.as_tensor(self.net(given)).view(FLOW_H, FLOW_A)

            if prefix is None:
                flow_HA = velocity(sample_HA)
            else:
                flow_HA = guide(sample_HA, step / STEPS, velocity, prefix)
            sample_HA = sample_HA + flow_HA / STEPS
        return sample_HA


class Keeping(FlowObject):
    def predict_action_chunk(self, *args: Any, **given: Any) -> torch.Tensor:
        found = super().predict_action_chunk(*args, **given)
        self.last = found.clone()
        return found


class Unguided(FlowObject):
    def predict_action_chunk(  # type: ignore[override]
        self, batch: dict[str, torch.Tensor], noise: torch.Tensor
    ) -> torch.Tensor:
        return super().predict_action_chunk(batch, noise)


def hosted(thing: nn.Module, first_row: int = 0, **options: Any) -> HostedPolicy:
    return HostedPolicy(
        thing,
        [HostedInput(KEY, (3,))],
        HostedAction(FLOW_A, FLOW_H - first_row, first_row=first_row),
        noise=HostedNoise((1, FLOW_H, FLOW_A)),
        **options,
    )


def test_a_hosted_flow_is_guided_as_our_own_to_the_bit() -> None:
    runs = []
    for policy in (hosted(FlowObject(), guidance=OPTIONS), flow(OPTIONS), flow()):
        session = PolicySession(policy, seed=5)
        runs.append(torch.stack([session.step(seen(step), 4).values for step in range(50)]))
    found, expected, free = runs
    assert torch.equal(found * SCALE, expected)
    assert not torch.equal(expected, free)


def test_it_conforms_and_its_capsules_have_the_chunk_under_way() -> None:
    report = check_policy(hosted(FlowObject(), guidance=OPTIONS, n_action_steps=6))
    assert report.ok, str(report)
    assert UNDER_WAY not in report.inert


@pytest.mark.cuda
def test_it_is_captured_with_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    report = check_policy(hosted(FlowObject(), guidance=OPTIONS, n_action_steps=6), device="cuda")
    assert report.ok, str(report)
    session = PolicySession(hosted(FlowObject(), guidance=OPTIONS), device="cuda")
    assert session.plain == ""


def test_what_it_keeps_of_a_prefix_is_found() -> None:
    with pytest.raises(SpecError, match=r"it keeps the object\.last"):
        PolicySession(hosted(Keeping(), guidance=OPTIONS))


@pytest.mark.parametrize(
    ("thing", "options", "words"),
    [
        (Unguided, {}, "takes no argument 'prefix'"),
        (FlowObject, {"first_row": 1}, "expected first_row 0, found 1"),
        (
            FlowObject,
            {"splice": TemporalEnsemble(0.1, FLOW_H)},
            "expected chunks to be joined by a queue, found TemporalEnsemble",
        ),
    ],
)
def test_what_cannot_be(thing: type[nn.Module], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"guidance: .*{words}"):
        hosted(thing(), guidance=OPTIONS, **options)


# LeRobot's


@pytest.fixture(autouse=True)
def _lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    lerobot_stand_in.install(monkeypatch)


def actions(directory: Path, steps: int = 14) -> torch.Tensor:
    session = PolicySession(load_policy(directory), seed=3)
    return torch.stack([session.step(observation(step), 2, 3).values for step in range(steps)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_is_the_guided_sample(tmp_path: Path, kind: str) -> None:
    policy = load_policy(write_language(tmp_path, kind, rtc_config=RTC))
    report = check_policy(policy, steps=6)
    assert report.ok, str(report)
    session = PolicySession(policy, seed=3)
    session.step(observation(0))
    session.run_plan(session.begin_plan(observation(1), 2))
    arena = session.arena
    planned = arena.outputs["rtc.next"].clone()
    predictor: Any = policy._predictor  # type: ignore[attr-defined]
    model = predictor.hosted.model
    batch: dict[str, torch.Tensor] = {}
    predictor.called = lambda given, **_: batch.update(given) or torch.zeros(1, CHUNK, A)
    predictor.call(arena.state, arena.inputs, arena.outputs, None)
    rows = torch.zeros(1, CHUNK, WIDE)
    rows[0, :-1, :A] = arena.state[UNDER_WAY][1:]
    weights = prefix_weights("LINEAR", torch.tensor([2]), torch.tensor([5]), CHUNK)

    @torch.no_grad()
    def sampled(weights_H: torch.Tensor) -> torch.Tensor:
        sight, sample = predictor.hosted.see(batch), arena.outputs[NOISE]
        prefix = Prefix(rows, weights_H, 4.0)
        for time in (0.0, 0.5):
            flow = guide(sample, time, lambda x: -model.velocity(sight, x), prefix)
            sample = sample + 0.5 * flow
        return sample[0, :, :A]

    torch.testing.assert_close(planned, sampled(weights))
    assert float((planned - sampled(torch.zeros(CHUNK))).abs().max()) > 0.1


def test_it_is_switched_on_by_the_configuration_alone(tmp_path: Path) -> None:
    free = actions(write_language(tmp_path / "a", "pi0"))
    off = actions(write_language(tmp_path / "b", "pi0", rtc_config={**RTC, "enabled": False}))
    guided = actions(write_language(tmp_path / "c", "pi0", rtc_config=RTC))
    assert torch.equal(off, free)
    assert torch.equal(guided[:3], free[:3])
    assert not torch.equal(guided, free)


def test_relative_rows_are_told_from_the_present_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[torch.Tensor] = []
    step = FlowGuide.denoise_step

    def spy(self: FlowGuide, **given: Any) -> torch.Tensor:
        told.append(given["prev_chunk_left_over"].clone())
        return step(self, **given)

    policy = load_policy(make_relative(write_language(tmp_path, "pi0", rtc_config=RTC)))
    session = PolicySession(policy, seed=3)
    for number in range(3):
        session.step(observation(number))
    monkeypatch.setattr(FlowGuide, "denoise_step", spy)
    present = observation(9)
    session.run_plan(session.begin_plan(present, 1))
    left_HA = session.arena.state["chunk.actions"][3:] - present[STATE][:A]
    normaliser: Any = policy.module()["predictor"]["normaliser"]
    torch.testing.assert_close(told[0][: CHUNK - 3], normaliser.action.normalise(left_HA))
    assert not torch.allclose(told[0], session.arena.state[UNDER_WAY].roll(-3, 0), atol=1e-2)


def test_a_sampler_without_a_place_for_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_language(tmp_path / "a", "smolvla", rtc_config=RTC, adapt_to_pi_aloha=True)
    with pytest.raises(UnsupportedError, match="adapt_to_pi_aloha"):
        load_policy(path)
    made = lerobot_stand_in.Sampler.__init__

    def without(self: Any, config: Any) -> None:
        made(self, config)
        del self.rtc_processor

    monkeypatch.setattr(lerobot_stand_in.Sampler, "__init__", without)
    with pytest.raises(UnsupportedError, match="rtc_config: expected a sampler of LeRobot that"):
        load_policy(write_language(tmp_path / "b", "smolvla", rtc_config=RTC))
