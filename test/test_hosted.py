"""Hosted policies: an object's chunk under our queue, noise, history and tokens, all of it state.

What is pinned: the conformance suite passes; the object's own numbers come out; a capsule goes on
to the last bit; a task is an input and no recapture; and an object that keeps anything is refused
with the name of what it keeps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hosted_objects import (
    LENGTH,
    STATE,
    TOKENS,
    A,
    Asks,
    CountsInBuffer,
    Draws,
    DrawsInPython,
    Flow,
    H,
    Remembers,
    S,
    WarmStarts,
    Words,
    WritesInput,
    host,
)

from flashrt_ros.errors import InvalidArgumentError, SpecError
from flashrt_ros.policies.hosted.description import SAMPLED, HostedInput, HostedNoise
from flashrt_ros.policies.hosted.predictor import NOISE
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.policy import PlanKind
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy


def rows(count: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{STATE: torch.randn(S, generator=generator)} for _ in range(count)]


def run(session: PolicySession, observations: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    return torch.stack([session.step(row).values for row in observations])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"instruction": None},
        {"steps": 3},
        {"hosted": Draws(), "noise": HostedNoise(argument=SAMPLED)},
        {"hosted": Asks()},
    ],
    ids=["noise and words", "noise", "history", "sampled", "not capturable"],
)
def test_conforms(options: dict[str, Any]) -> None:
    policy = host(**options)
    assert policy.plan_kind is PlanKind.BESIDE
    report = check_policy(policy)
    assert report.ok, str(report)
    assert not report.inert


def test_a_reading_object_that_may_not_run_plain_is_found() -> None:
    """The control to the suite's leave to read in a plan: without it the same object fails."""
    policy = host(Asks())
    policy.may_run_plain = False
    assert any("item()" in problem for problem in check_policy(policy).failures["host"])


def test_the_chunk_is_the_object_s_own() -> None:
    flow = Flow()
    session = PolicySession(host(flow), seed=5)
    session.host.task = "lift"
    observation = rows(1)[0]
    first = session.step(observation)
    noise = session.arena.outputs[NOISE].clone()
    ids = Words().encode("lift")
    batch = {
        STATE: observation[STATE].unsqueeze(0),
        "observation.language.tokens": torch.tensor([ids + [0] * (LENGTH - len(ids))]),
        "observation.language.attention_mask": torch.arange(LENGTH).unsqueeze(0) < len(ids),
    }
    with torch.no_grad():
        expected = flow.predict_action_chunk(batch, noise)[0]
        other = flow.predict_action_chunk(batch, noise + 1)[0]
    assert torch.equal(first.values, expected[0])
    assert torch.equal(session.step(observation).values, expected[1])
    assert not torch.equal(first.values, other[0])


@pytest.mark.parametrize("sampled", [False, True])
def test_a_capsule_goes_on_to_the_last_bit(sampled: bool) -> None:
    options: dict[str, Any] = {"steps": 3}
    if sampled:
        options |= {"hosted": Draws(), "noise": HostedNoise(argument=SAMPLED)}
    session = PolicySession(host(**options))
    observations = rows(30)
    run(session, observations[:7])
    session.snapshot("middle")
    first = run(session, observations[7:18])
    torch.manual_seed(99)
    unlike = run(session, observations[7:18])
    session.restore("middle")
    assert torch.equal(run(session, observations[7:18]), first)
    assert not torch.equal(first, unlike)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_another_task_is_another_input_and_no_capture(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = PolicySession(host(), device=device, seed=3)
    prepared: list[GraphPlan] = []
    prepare = GraphPlan.prepare

    def counted(plan: GraphPlan, *given: Any) -> None:
        prepared.append(plan)
        prepare(plan, *given)

    monkeypatch.setattr(GraphPlan, "prepare", counted)
    observation = rows(1)[0]
    seen = {}
    for task in ("lift", "push", "lift"):
        session.reset_(task, seed=3)
        action = session.step(observation).values
        assert torch.equal(seen.setdefault(task, action), action)
        ids = Words().encode(task)
        assert session.arena.inputs[TOKENS].tolist() == ids + [0] * (LENGTH - len(ids))
    assert not torch.equal(seen["lift"], seen["push"])
    assert not prepared
    # The control: this is what a capture comes through.
    PolicySession(host(), device=device)
    assert prepared


def test_a_capsule_brings_its_task_back() -> None:
    session = PolicySession(host())
    observations = rows(9)
    session.reset_("lift")
    session.snapshot("lifting")
    first = run(session, observations)
    session.reset_("push")
    unlike = run(session, observations)
    session.restore("lifting")
    assert torch.equal(run(session, observations), first)
    assert not torch.equal(first, unlike)


def test_a_preview_plans_for_the_task_of_its_branch() -> None:
    session = PolicySession(host())
    observation = rows(1)[0]
    session.reset_("lift", seed=1)
    session.snapshot("lifting")
    session.reset_("push", seed=1)
    there, here = session.preview(["lifting"], observation) + session.preview([], observation)
    assert not torch.equal(there.actions_HA, here.actions_HA)
    assert torch.equal(session.step(observation).values, here.actions_HA[0])
    session.restore("lifting")
    assert torch.equal(session.step(observation).values, there.actions_HA[0])


def test_a_task_of_too_many_tokens_is_refused_and_nothing_changes() -> None:
    session = PolicySession(host())
    session.reset_("lift")
    with pytest.raises(InvalidArgumentError, match=r"at most 8 tokens, found 15"):
        session.reset_("a long sentence"[:14])
    assert session.host.task == "lift"


@pytest.mark.parametrize(
    ("hosted", "words"),
    [
        (Remembers(), r"the object\.queue\[\d\]"),
        (WarmStarts(), r"the object\.last"),
        (CountsInBuffer(), r"weights or constants .*count"),
        (Draws(), r"draws from torch's global generator"),
        (DrawsInPython(), r"draws from Python's global generator"),
        (WritesInput(), r"writes to observation\.state"),
    ],
)
def test_an_object_that_keeps_something_is_refused_by_name(hosted: Flow, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        PolicySession(host(hosted))


def test_what_a_closure_keeps_is_found_too() -> None:
    flow, kept = Flow(), [torch.zeros(1)]

    def call(batch: Any, noise: torch.Tensor) -> torch.Tensor:
        chunk = flow.predict_action_chunk(batch, noise) + kept[0]
        kept[0] = batch[STATE].mean().reshape(1)
        return chunk

    with pytest.raises(SpecError, match="closure variable kept"):
        PolicySession(host(flow, call=call))


def test_a_probe_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    PolicySession(host())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"call": "predict"}, "name of a method of Flow, found 'predict'"),
        (
            {"hosted": object(), "call": Flow().predict_action_chunk},
            "pass module= with all weights",
        ),
        ({"hosted": torch.nn.Linear(S, A), "call": "forward"}, "takes no argument 'noise'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        host(**options)


def test_a_chunk_of_another_shape_is_refused() -> None:
    def call(batch: Any, noise: torch.Tensor) -> torch.Tensor:
        return noise[:, : H - 1]

    with pytest.raises(SpecError, match=rf"\(1, 5 or more, {A}\), found \(1, 4, {A}\)"):
        PolicySession(host(Flow(), call=call))


def test_other_weights_are_another_state() -> None:
    ids = [PolicySession(host(Flow(seed))).state_fingerprint.id for seed in (0, 0, 1)]
    assert ids[0] == ids[1] != ids[2]


def test_it_is_found_by_its_factory() -> None:
    assert load_policy("hosted_objects:make").family == "chunked.hosted.flow"


def test_steps_below_one_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="steps"):
        HostedInput(STATE, (S,), steps=0)
