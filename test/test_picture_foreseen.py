"""Pictures that cross ahead of the step that will see them: nothing else changes.

A step sees what it is given, whatever was foreseen before it, and computes the same to the bit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contract_examples import MS
from image_messages import camera_contract, noise, rgb_image
from picture_cases import FRONT, WRIST, apart, given, of

from flashrt_ros.bench import camera_policy
from flashrt_ros.contract import Sampler
from flashrt_ros.errors import NotConfiguredError, SpecError
from flashrt_ros.runtime.device.cpu import CpuDevice
from flashrt_ros.runtime.picture import BytePicture
from flashrt_ros.runtime.session import PolicySession


@pytest.mark.parametrize("crosses", [False, True])
def test_a_picture_that_is_there_does_not_cross_again(
    crosses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if crosses:
        apart(monkeypatch)
    session = PolicySession(camera_policy.make(), pictures=[FRONT, WRIST])
    wire = session._engine.inputs._wire
    assert wire is not None
    count, replay = [], wire._plan.replay
    monkeypatch.setattr(wire._plan, "replay", lambda: (count.append(1), replay()))
    first = given(of(session.policy, 0), {FRONT, WRIST})
    other = {**first, WRIST: given(of(session.policy, 1), {WRIST})[WRIST]}
    numbers = {**first, FRONT: np.asarray(first[FRONT])}
    for seen, expected in (
        (first, 1),
        (first, 1),
        (other, 2),
        (first, 3),  # the wrist's came back
        (numbers, 3),
        (first, 4),  # numbers stood in its place
    ):
        session.step(seen)
        assert len(count) == expected
    session.foresee(other)
    session.step(other)
    assert len(count) == 5


@pytest.mark.parametrize("ahead", [False, True])
def test_a_picture_whose_copy_has_failed_crosses_again(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart(monkeypatch)
    first, second = (PolicySession(camera_policy.make(), pictures=[FRONT, WRIST]) for _ in "ab")
    seen = given(of(first.policy, 0), {FRONT, WRIST})
    later = given(of(first.policy, 1), {FRONT, WRIST})
    for session in (first, second):
        session.step(seen)
    copy, failures = type(first.device).copy_, [1]

    def failing(device: CpuDevice, target: torch.Tensor, source: torch.Tensor) -> None:
        if failures:
            failures.pop()
            raise RuntimeError("out of luck")
        copy(device, target, source)

    with monkeypatch.context() as patched:
        patched.setattr(type(first.device), "copy_", failing)
        with pytest.raises(RuntimeError, match="out of luck"):
            (first.foresee if ahead else first.step)(later)
    assert not failures
    again, expected = (s.step(later).values.numpy() for s in (first, second))
    assert np.array_equal(again, expected)
    stale = second.step(seen).values.numpy()
    assert not np.array_equal(stale, expected), "control: other pictures, another action"


def test_a_glance_ahead_has_the_pictures_that_a_sample_would_have() -> None:
    contract = camera_contract(size=[4, 6])
    sampler, key = Sampler(contract, as_bytes=True), "observation.image"
    (observation,) = (o for o in contract.observations if o.key == key)
    assert sampler.pictures_now(1, 0) == {}
    sampler.put("camera", rgb_image(noise(4, 6, 3)), 100 * MS)
    seen = sampler.sample(100 * MS).observations[key]
    assert sampler.pictures_now(100 * MS, 0) == {key: seen}, "the very same"
    assert sampler.pictures_now(99 * MS, 0) == {}, "not received yet"
    assert sampler.pictures_now(100 * MS, 101 * MS) == {}, "from before a reset"
    late_ns = round((101 + observation.max_age_ms) * MS)
    assert sampler.pictures_now(late_ns, 0) == {}, "too old"
    sampler.put("camera", rgb_image(noise(4, 7, 3)), 100 * MS)
    assert sampler.pictures_now(100 * MS, 0) == {}, "of another size"
    assert Sampler(contract).pictures_now(100 * MS, 0) == {}, "none are bytes"


def test_a_closed_session_foresees_nothing() -> None:
    session = PolicySession(camera_policy.make(), pictures=[FRONT])
    assert session.foresees
    assert not PolicySession(camera_policy.make()).foresees
    session.close()
    with pytest.raises(NotConfiguredError):
        session.foresees  # noqa: B018
    with pytest.raises(NotConfiguredError):
        session.foresee({})


def test_only_what_fits_is_foreseen() -> None:
    session = PolicySession(camera_policy.make(), pictures=[FRONT, WRIST])
    before = session.arena.input_section.numpy().tobytes()
    for wrong in (
        {"elsewhere": BytePicture(noise(4, 6, 3))},
        {FRONT: BytePicture(noise(4, 6, 3))},
    ):
        with pytest.raises(SpecError):
            session.foresee(wrong)
        assert session.arena.input_section.numpy().tobytes() == before
    session.foresee(given(of(session.policy, 0), {FRONT, WRIST}))
    assert session.arena.input_section.numpy().tobytes() != before
