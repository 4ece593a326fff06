"""Pins real-time chunking in operation: the chunk under way is state, and plans keep to it.

The reference keeps the last chunk and its cursor in plain Python and guides by the same formulas,
which test_guidance.py pins. A capsule that lacked either would plan against another prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusion_files import config, observations, write
from flow_policy import KEY, SCALE, STEPS, A, Flow, H, flow
from lerobot_files import edit_json
from test_diffusion_policy import given
from test_relative import make_relative

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.diffusion.checkpoint import make_predictor
from flashrt_ros.policies.guidance import GuidanceConfig, Prefix, guide, prefix_weights
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint
from flashrt_ros.policies.real_time import CHUNK, LENGTH, RealTimeChunking
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.engine import DELAY
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

OPTIONS = GuidanceConfig("LINEAR", 12, 6.0)
RTC = {"enabled": True, "execution_horizon": 9, "max_guidance_weight": 5.0}


def seen(step: int) -> dict[str, Any]:
    return {KEY: torch.randn(3, generator=torch.Generator().manual_seed(step))}


def draw(count: int, seed: int) -> Iterator[torch.Tensor]:
    """The noise of one plan after another."""
    counter = torch.zeros(1, dtype=torch.int64)
    key = torch.tensor([seed])
    for _ in range(count):
        drawn_HA = torch.empty(H, A)
        noise.normal_(drawn_HA, {"noise.key": key, "noise.counter": counter})
        yield drawn_HA


@torch.no_grad()
def reference(steps: int, delay: int, seed: int, options: GuidanceConfig) -> torch.Tensor:
    """Actions of a flow policy, planned with ``delay`` rows left and joined ``delay`` later."""
    net, noises = Flow(), draw(99, seed)
    last: torch.Tensor | None = None
    coming: torch.Tensor | None = None
    cursor, age, actions = 0, 0, []
    for step in range(steps):
        if coming is not None and age == delay:
            last, coming, cursor = coming, None, delay
        left = 0 if last is None else H - cursor
        if coming is None and left <= delay:
            weights = torch.zeros(H)
            rows = torch.zeros(H, A)
            if left and last is not None:
                end = torch.tensor([min(options.execution_horizon, left)])
                late = torch.tensor([min(delay, left)])
                weights = prefix_weights(options.prefix_attention_schedule, late, end, H)
                rows[:left] = last[cursor:]
            prefix = Prefix(rows, weights, options.max_guidance_weight)
            sample = next(noises)
            for number in range(STEPS):
                time = number / STEPS

                def velocity(x: torch.Tensor, time: float = time, step: int = step) -> Any:
                    return net.velocity(x, time, seen(step)[KEY])

                sample = sample + guide(sample, time, velocity, prefix) / STEPS
            coming, age = sample, 0
            if not left:
                last, coming, cursor = sample, None, 0
        assert last is not None
        actions.append(last[cursor] * SCALE)
        cursor, age = cursor + 1, age + 1
    return torch.stack(actions)


@pytest.mark.parametrize("delay", [0, 1, 4, 7])
def test_actions_come_as_from_a_chunk_kept_in_python(delay: int) -> None:
    session = PolicySession(flow(OPTIONS), seed=5)
    found = torch.stack([session.step(seen(step), delay).values for step in range(60)])
    torch.testing.assert_close(found, reference(60, delay, 5, OPTIONS), rtol=1e-5, atol=1e-6)
    plain = PolicySession(flow(), seed=5)
    free = torch.stack([plain.step(seen(step), delay).values for step in range(60)])
    assert torch.equal(found[:H], free[:H]), "the first chunk has nothing to keep to"
    assert torch.equal(found, free) == (delay == 0), "nor has one planned with no rows left"


def test_a_guided_chunk_agrees_with_the_one_that_it_takes_over_from() -> None:
    def disagreement(options: GuidanceConfig | None) -> float:
        """Of two chunks on the three control steps after the newer one was adopted."""
        session = PolicySession(flow(options), seed=1)
        far, old_HA, began = [], torch.zeros(H, A), -1
        for step in range(300):
            action = session.step(seen(step), 5, 9)
            if action.index == step - began:
                continue
            new_HA = session.arena.state["chunk.actions"].clone()
            if began >= 0:
                at = step - began
                far.append((new_HA[5:8] - old_HA[at : at + 3]).abs().mean())
            old_HA, began = new_HA, step - action.index
        assert len(far) > 20
        return float(torch.stack(far).mean())

    free = disagreement(None)
    assert disagreement(GuidanceConfig("ONES", 12, 4.0)) < 0.3 * free
    assert disagreement(GuidanceConfig("EXP", 12, 4.0)) < 0.8 * free


def test_the_delay_decides_how_many_rows_are_frozen() -> None:
    session = PolicySession(flow(OPTIONS), seed=5)
    for step in range(6):
        session.step(seen(step))
    chunks = []
    for delay in (0, 2, 8):
        ticket = session.begin_plan(seen(6), delay)
        session.run_plan(ticket)
        assert session.arena.inputs[DELAY].item() == delay
        chunks.append(session.arena.outputs["rtc.next"].clone())
    assert not torch.equal(chunks[0], chunks[1])
    assert not torch.equal(chunks[1], chunks[2])
    rows = session.arena.state[CHUNK][6:]
    far = [float((chunk[2:8] - rows[2:8]).abs().mean()) for chunk in chunks]
    assert far[2] < far[0], "frozen rows are kept to more closely"


def test_the_chunk_under_way_is_the_network_s_and_whole() -> None:
    session = PolicySession(flow(OPTIONS), seed=5)
    assert session.arena.state[LENGTH].item() == 0
    session.step(seen(0))
    state = session.arena.state
    assert state[LENGTH].item() == H
    assert torch.equal(state[CHUNK] * SCALE, state["chunk.actions"])
    session.reset_()
    assert state[LENGTH].item() == 0


@pytest.mark.parametrize("left_out", [CHUNK, LENGTH])
def test_a_capsule_without_it_would_go_on_otherwise(left_out: str) -> None:
    session = PolicySession(flow(OPTIONS), seed=5)
    for step in range(6):
        session.step(seen(step), 5)
    session.snapshot("cut")
    expected = [session.step(seen(step), 5).values for step in range(6, 40)]
    session.restore("cut")
    assert all(
        torch.equal(session.step(seen(step), 5).values, value)
        for step, value in zip(range(6, 40), expected, strict=True)
    )
    session.restore("cut")
    session.arena.state[left_out].zero_()
    others = [session.step(seen(step), 5).values for step in range(6, 40)]
    assert not torch.equal(torch.stack(others), torch.stack(expected))


@pytest.mark.parametrize("schedule", ["ZEROS", "EXP"])
@pytest.mark.parametrize("n_action_steps", [6, H])
def test_conforms(schedule: str, n_action_steps: int) -> None:
    report = check_policy(flow(GuidanceConfig(schedule, 12, 6.0), n_action_steps))
    assert report.ok, str(report)
    # Where the chunk is used up before a plan begins, there is nothing to keep to.
    whole = n_action_steps == H or schedule == "ZEROS"
    assert (CHUNK in report.inert) == whole


# Diffusion


def diffusion(directory: Path, rtc: dict[str, Any] | None = None, **options: Any) -> Path:
    """A checkpoint whose configuration asks for real-time chunking."""
    path = write(directory, **options)
    if rtc is not None:
        edit_json(path / "config.json", lambda values: values.update(rtc_config=rtc))
    return path


def actions(policy: Policy, steps: int, delay: int, ahead: int) -> torch.Tensor:
    session = PolicySession(policy, seed=3)
    taken = [session.step(o, delay, ahead).values for o in observations(config(), steps)]
    return torch.stack(taken)


@pytest.mark.parametrize("sampler", ["DDIM", "DDPM"])
def test_a_diffusion_policy_keeps_to_its_chunk(tmp_path: Path, sampler: str) -> None:
    options = {"noise_scheduler_type": sampler}
    plain = load_policy(str(diffusion(tmp_path / "a", **options)))
    disabled = load_policy(str(diffusion(tmp_path / "b", {**RTC, "enabled": False}, **options)))
    guided = load_policy(str(diffusion(tmp_path / "c", RTC, **options)))
    free = actions(plain, 30, 3, 4)
    assert torch.equal(actions(disabled, 30, 3, 4), free)
    kept = actions(guided, 30, 3, 4)
    assert torch.equal(kept[:7], free[:7])
    assert not torch.equal(kept, free)
    assert disabled.config() == plain.config() != guided.config()


def test_a_diffusion_plan_is_the_guided_sample(tmp_path: Path) -> None:
    predictor = make_predictor(read_checkpoint(diffusion(tmp_path, RTC)))
    noise_NBHA = given(predictor)
    session = PolicySession(ChunkedPolicy(predictor, predictor.n_action_steps))
    seen_all = list(observations(config(), 9))
    for observation in seen_all[:5]:
        session.step(observation)
    last_HA = session.arena.state[CHUNK].clone()
    assert session.host.cursor == 5
    ticket = session.begin_plan(seen_all[5], 3)
    session.run_plan(ticket)
    network, normaliser = predictor.module()["diffusion"], predictor.module()["normaliser"]
    both = {k: torch.stack([seen_all[4][k], seen_all[5][k]]) for k in seen_all[0]}
    rows = {name: normaliser.normalise(name, value) for name, value in both.items()}
    state, environment = rows["observation.state"], rows["observation.environment_state"]
    # Row 0 of the horizon belongs to the observation before, row 1 to the present one.
    prefix_BHA, weights_H = torch.zeros(1, 16, 2), torch.zeros(16)
    prefix_BHA[0, 1:11] = last_HA[5:]
    weights_H[1:] = prefix_weights("LINEAR", torch.tensor([3]), torch.tensor([9]), 15)
    with torch.no_grad():
        condition = network.condition(state, [], environment)
        prefix = Prefix(prefix_BHA, weights_H, 5.0)
        expected = network.sample(condition, noise_NBHA, prefix)[0, 1:]
        free = network.sample(condition, noise_NBHA)[0, 1:]
    assert torch.equal(session.arena.outputs["rtc.next"], expected)
    assert not torch.equal(expected, free)


def test_a_diffusion_policy_conforms_and_restores_within_a_chunk(tmp_path: Path) -> None:
    path = str(diffusion(tmp_path, RTC, num_inference_steps=2))
    report = check_policy(load_policy(path))
    assert report.ok, str(report)
    assert CHUNK not in report.inert
    session = PolicySession(load_policy(path), seed=3)
    rows = list(observations(config(), 40))
    cuts = []
    for step, row in enumerate(rows[:20]):
        session.step(row, 3)
        if not session.planning:
            cuts.append(session.snapshot())
            following = rows[step + 1 : step + 20]
            first = [session.step(other, 3).values for other in following]
            digest = session.state_digest()
            session.restore(cuts[-1])
            again = [session.step(other, 3).values for other in following]
            assert torch.equal(torch.stack(again), torch.stack(first))
            assert session.state_digest() == digest
            session.restore(cuts[-1])
    assert {cut.host.cursor for cut in cuts if cut.host.chunk > 1} >= {4, 6, 7}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"execution_horizon": 16}, "execution_horizon: expected a whole number from 1 to 15"),
        ({"execution_horizon": 0}, "execution_horizon: expected a whole number from 1 to 15"),
        (
            {"prefix_attention_schedule": "FLAT"},
            "prefix_attention_schedule: expected one of ZEROS",
        ),
        ({"max_guidance_weight": 0}, "max_guidance_weight: expected a number above 0"),
        ({"enabled": "yes"}, "enabled: expected true or false"),
    ],
)
def test_wrong_options_of_a_checkpoint_are_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = diffusion(tmp_path, {**RTC, **change})
    with pytest.raises(CheckpointError, match=f"rtc_config: {words}"):
        load_policy(str(path))


def test_a_horizon_longer_than_a_chunk_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="execution_horizon: expected at most 8"):
        RealTimeChunking(GuidanceConfig("EXP", 9), 8, 2)


# GPU


@pytest.mark.cuda
@pytest.mark.parametrize("family", ["flow", "diffusion", "relative"])
def test_captured_plans_are_guided_the_same_way_each_time(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Guidance feeds each chunk into the next: with random weights a change in the seventh digit
    # grows a thousandfold in 54 steps, and the three digits of TF32 to all of an action.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    def make() -> Policy:
        if family == "flow":
            return flow(OPTIONS)
        path = diffusion(tmp_path, RTC)
        return load_policy(str(make_relative(path) if family == "relative" else path))

    rows = [seen(step) for step in range(60)]
    if family != "flow":
        rows = list(observations(config(), 60))
    traces = {}
    for device in ("cuda", "cpu"):
        session = PolicySession(make(), device=device, seed=3)
        for row in rows[:6]:
            session.step(row, 3, 5)
        session.withdraw_plan()
        session.snapshot("cut")
        runs = []
        for _ in range(3):
            runs.append(torch.stack([session.step(row, 3, 5).values for row in rows[6:]]))
            session.restore("cut")
        assert torch.equal(runs[1], runs[2])
        assert torch.equal(runs[0], runs[1])
        traces[device] = runs[0]
        session.close()
    torch.testing.assert_close(traces["cuda"].cpu(), traces["cpu"], rtol=3e-2, atol=3e-2)
