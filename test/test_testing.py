"""Pins the conformance suite: each way of hiding state is caught by the check that names it.

A suite that passes everything is worse than none, so most policies here are broken on purpose, in
one way each. The sound ones show that the suite does not cry wolf.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from chunk_predictors import Looking
from sly_policies import (
    BehindAWeight,
    Entropic,
    OfTheHour,
    RareLatch,
    Reloading,
    Startled,
    Workspace,
)
from suspect_policies import (
    ACTION,
    MEMORY,
    OBSERVATION,
    SCRATCH,
    ActReadsInput,
    BoundAnew,
    ClassCounter,
    Counter,
    Deque,
    Environment,
    Generating,
    Global,
    GlobalNumpy,
    GlobalPython,
    GlobalTorch,
    HalfReset,
    HalfWritten,
    HiddenBuffer,
    IdleNoise,
    Item,
    Iterating,
    KeepsFirstBuffer,
    Learning,
    Mask,
    Moved,
    Nested,
    Noisy,
    NotANumber,
    OldOutput,
    OldScratch,
    OverDeclared,
    OwnGenerator,
    Planned,
    PlanWritesState,
    Raising,
    Rebind,
    ScratchOverAdopt,
    Sound,
    UndeclaredNoise,
    WritesInput,
    closure,
)
from toy_policies import ToyChunk, ToyRecurrent

from flashrt_ros.errors import SpecError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.testing import check_policy

SOUND = [Sound, Planned, Noisy, UndeclaredNoise, Workspace, ToyRecurrent, ToyChunk]


@pytest.mark.parametrize("policy", SOUND)
def test_sound_policies_pass(policy: type[Policy]) -> None:
    report = check_policy(policy())
    assert report.ok, str(report)
    assert "19 of 19 rules: all kept" in str(report)
    quiet = policy in (Sound, Planned, Workspace)
    assert set(report.inert) == ({"noise.key", "noise.counter"} if quiet else set())


def test_an_observation_that_is_given_is_used() -> None:
    rows = [{OBSERVATION: np.full(3, step, dtype=np.float32)} for step in range(7)]
    assert check_policy(Sound(), observations=rows).ok
    constant = [{OBSERVATION: np.zeros(3, dtype=np.float32)}] * 3
    # With nothing ever observed the memory never differs between episodes.
    assert (
        "same value in every episode" in check_policy(Sound(), observations=constant).inert[MEMORY]
    )
    with pytest.raises(
        SpecError, match=r"'observation.state': expected shape \(3,\), found \(4,\)"
    ):
        check_policy(Sound(), observations=[{OBSERVATION: np.zeros(4)}] * 3)


def test_global_generators_are_left_as_found() -> None:
    policy = Sound()
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())
    check_policy(policy)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()


BROKEN: list[tuple[Callable[[], Policy], str, str]] = [
    (Deque, "attributes", "policy.recent[0]"),
    (Deque, "restore", "in the action"),
    (Rebind, "attributes", "policy.hidden"),
    (Nested, "attributes", "trackers['a'][0].last"),
    (Counter, "attributes", "policy.count"),
    (Counter, "restore", "in the action"),
    (ClassCounter, "attributes", "ClassCounter.count"),
    (Iterating, "attributes", "policy.ticks"),
    (Generating, "attributes", "policy.walk"),
    (Global, "attributes", "_seen"),
    (closure, "attributes", "closure variable steps"),
    (OwnGenerator, "attributes", "policy.generator"),
    (OwnGenerator, "reset", "in the action"),
    (Learning, "parameters", "weight has other bytes"),
    (HiddenBuffer, "parameters", "gain has other bytes"),
    (Environment, "reset", "the same episode after another reset differs"),
    (Environment, "restore", "in the action"),
    (Environment, "forks", "cold run"),
    (GlobalTorch, "global_rng", "torch's global generator moved"),
    (GlobalTorch, "global_rng", "in the action"),
    (GlobalPython, "global_rng", "python's global generator moved"),
    (GlobalNumpy, "global_rng", "numpy's global generator moved"),
    (OldOutput, "garbage", "read before it is written"),
    (OldScratch, "garbage", "memory.x"),
    (HalfWritten, "garbage", "not written whole"),
    (ScratchOverAdopt, "garbage", "chunk.actions"),
    (ActReadsInput, "garbage", "read beside its plan"),
    (BoundAnew, "addresses", "memory.x"),
    (Moved, "addresses", "memory.x"),
    (KeepsFirstBuffer, "plain", "fresh buffers differ"),
    (WritesInput, "inputs", "act writes to input observation.state"),
    (HalfReset, "reset", "memory.x"),
    (PlanWritesState, "plan_kind", "plan writes to state memory.x"),
    (RareLatch, "foreign", "act: aten::copy_ on [1] torch.float32: no buffer of its layout"),
    (BehindAWeight, "foreign", "reset_: aten::zero_ on [1] torch.float32"),
    (OfTheHour, "outside", "act: reads a clock (time)"),
    (Entropic, "outside", "act: reads the system's entropy (urandom)"),
    (Reloading, "outside", "act: opens a file (open)"),
    (Startled, "attributes", "policy.startled: False became True"),
    (Item, "host", "item()"),
    (Mask, "host", "boolean mask"),
    (IdleNoise, "seeds", "another seed gives the same run"),
    (NotANumber, "runs", "finite action"),
    (Raising, "runs", "raised RuntimeError: no such layer"),
]


@pytest.fixture(autouse=True)
def _no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHRT_TEST_COUNT", "0")


@pytest.mark.parametrize(
    ("make", "check", "words"), BROKEN, ids=[f"{make.__name__}-{name}" for make, name, _ in BROKEN]
)
def test_is_caught(make: Callable[[], Policy], check: str, words: str) -> None:
    report = check_policy(make())
    assert not report.ok
    assert check in report.failures, str(report)
    assert words in "\n".join(report.failures[check]), str(report)
    assert words in str(report)


def declaring(change: Callable[[BufferSpec], BufferSpec | None]) -> Policy:
    class Declaring(Sound):
        def layout(self) -> tuple[BufferSpec, ...]:
            changed = (change(spec) for spec in super().layout())
            return tuple(spec for spec in changed if spec is not None)

    return Declaring()


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        (ACTION, {"dtype": torch.float64}, "expected a float32 buffer of shape (A,)"),
        (ACTION, {"role": Role.SCRATCH}, "expected a buffer of role"),
        (OBSERVATION, {"shape": (4,)}, "shape (3,), but its buffer has (4,)"),
        (OBSERVATION, {"name": "observation.other"}, "no buffer 'observation.state' is declared"),
        (SCRATCH, {"role": Role.INPUT}, "an input that no port feeds"),
        (SCRATCH, {"name": MEMORY}, "is declared twice"),
        (MEMORY, {"name": "noise.key"}, "noise.key"),
    ],
)
def test_a_wrong_declaration_is_caught(name: str, changed: dict[str, object], words: str) -> None:
    report = check_policy(declaring(lambda s: replace(s, **changed) if s.name == name else s))
    assert words in "\n".join(report.failures["specs"]), str(report)
    # Nothing can be said of a policy whose buffers are unknown.
    assert len(report.skipped) == len(report.results) - 1


def test_more_wrong_declarations_are_caught() -> None:
    policy = Planned()
    policy.n_action_steps = 4
    assert "expected 1 to chunk_size (3), found 4" in str(check_policy(policy))
    policy = Sound()
    policy.config = lambda: {"weights": torch.zeros(1)}  # type: ignore[method-assign]
    assert "expected JSON values" in str(check_policy(policy))


def test_a_buffer_that_matters_to_the_next_plan_alone_is_not_inert() -> None:
    """Between any other boundary and the plan it is overwritten."""
    report = check_policy(ChunkedPolicy(Looking(8), 8))
    assert report.ok, str(report)
    assert not report.inert


def test_a_buffer_that_changes_nothing_is_listed_as_inert() -> None:
    report = check_policy(OverDeclared())
    assert report.ok, str(report)
    assert set(report.inert) == {"memory.log", "memory.constant", "noise.key", "noise.counter"}
    assert "changed no action and no other buffer" in report.inert["memory.log"]
    assert "same value in every episode" in report.inert["memory.constant"]
    assert "inert   memory.log" in str(report)
