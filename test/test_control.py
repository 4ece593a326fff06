"""Holds what one control period does, in every situation that decides about motion.

Verbs are held by test_handlers.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from chunk_predictors import Straight
from control_rig import PERIOD_NS, Lists, Rig, close, plan_ready
from node_policies import STEP_RAD, Follow, FollowChunks

from flashrt_ros.errors import ErrorCode, FlashRTError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.ros.control import Control
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.planner import Planner
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.verbs import Verb
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.policy import Buffers, Port

LIMIT_S = 30.0
"""A generous limit: it only decides how long a failure takes."""


def test_runs_and_records() -> None:
    rig = Rig()
    rig.tick(3)
    assert rig.mode is Mode.RUNNING
    assert close(rig.positions[-1], 0.1 + 2 * STEP_RAD, 0.2 + 2 * STEP_RAD)
    last = rig.out.steps[-1]
    assert (last.tick, last.step, last.episode, last.published) == (2, 2, 0, True)
    assert last.names == ("a", "b")
    assert last.period_ms == pytest.approx(20.0)
    assert [stamp.sequence for stamp in last.stamps] == [3]
    assert [status.mode for status in rig.out.statuses] == [Mode.RUNNING]


def test_waits_for_input_newer_than_activation() -> None:
    rig = Rig(activate=False)
    rig.hear()
    rig.now_ns += 1
    rig.motion.activate(rig.now_ns)
    rig.tick(hear=False)
    assert rig.mode is Mode.WAITING
    assert "older than the last activate, resume, restore or reset" in rig.reason
    assert not rig.out.sent
    rig.tick()
    assert rig.mode is Mode.RUNNING


def test_inactive_does_nothing() -> None:
    rig = Rig(activate=False)
    rig.tick(2)
    assert not rig.out.sent
    assert rig.session.host.step == 0


def test_stale_input_repeats_then_stops_and_starts_anew() -> None:
    rig = Rig(miss_limit_s=0.2)
    rig.tick(2)
    rig.tick(5, hear=False)
    assert rig.mode is Mode.RUNNING, "100 ms old is fresh enough for this contract"
    before = rig.session.state_digest()
    rig.tick(2, hear=False)
    assert rig.mode is Mode.HOLDING
    assert "stale 140 ms > 100 ms" in rig.reason
    assert rig.session.state_digest() == before, "the policy must not step on stale input"
    held = rig.out.sent[-1]
    assert held.values.tolist() == rig.positions[6]
    rig.tick(20, hear=False)
    count = len(rig.out.sent)
    assert rig.out.sent[-1].fields["velocity"] == [0.0, 0.0], "the stop message is the last"
    rig.tick(5, hear=False)
    assert len(rig.out.sent) == count, "silence after it"
    assert rig.mode is Mode.WAITING
    rig.tick()
    assert rig.mode is Mode.RUNNING


def test_short_gap_goes_on_from_the_last_command() -> None:
    rig = Rig()
    rig.tick(2)
    rig.tick(6, hear=False)
    assert rig.mode is Mode.HOLDING
    last = rig.positions[-1][0]
    rig.tick(position=(2.0, 0.2))
    assert rig.mode is Mode.RUNNING
    assert rig.positions[-1][0] == pytest.approx(last + 0.2), "max_step holds"


def test_on_miss_stop_is_silent_and_checked_anew() -> None:
    rig = Rig(on_miss="stop")
    rig.tick(2)
    rig.tick(10, hear=False)
    stops = [command for command in rig.out.sent if command.fields["velocity"]]
    assert len(stops) == 1
    assert rig.mode is Mode.WAITING


def test_non_finite_input_stops_and_recovers() -> None:
    rig = Rig()
    rig.tick(2)
    rig.tick(position=(float("nan"), 0.2))
    assert rig.mode is Mode.HOLDING
    assert "non-finite position of a" in rig.reason
    rig.tick()
    assert rig.mode is Mode.RUNNING


def test_non_finite_action_holds_until_told() -> None:
    rig = Rig(Follow(bad_step=2))
    rig.tick(3)
    assert rig.mode is Mode.HOLDING
    assert "non-finite action for a, b" in rig.reason
    assert all(np.isfinite(values).all() for values in rig.positions)
    assert not rig.out.steps[-1].published
    assert rig.out.steps[-1].hold_reason
    steps = rig.session.host.step
    rig.tick(3)
    assert rig.session.host.step == steps, "held: the policy does not step"
    assert rig.ask("reset_episode").code is ErrorCode.NONE
    rig.tick()
    assert rig.mode is Mode.RUNNING


def test_unsafe_start_takes_the_step_back() -> None:
    rig = Rig(Follow(offset=1.0))
    before = rig.session.state_digest()
    rig.tick()
    assert rig.mode is Mode.HOLDING
    assert "unsafe start" in rig.reason
    assert "max_distance" in rig.reason
    assert rig.out.words == [f"error: holding: {rig.reason}"], "ModeLog knows it by these words"
    assert not rig.out.sent
    assert not rig.out.steps, "a step that was taken back is no control step"
    assert (rig.session.host.step, rig.session.tick) == (0, 0)
    assert rig.session.state_digest() == before


def test_control_of_the_above_a_safe_step_changes_the_state() -> None:
    rig = Rig()
    before = rig.session.state_digest()
    rig.tick()
    assert rig.session.state_digest() != before


def test_a_first_step_that_outlasts_its_input_is_taken_back_and_made_again() -> None:
    """A process that gets no processor for a while must not need somebody who calls ~/resume."""
    rig = Rig()
    step, before = rig.session.step, rig.session.state_digest()

    def long(observations: Any) -> Any:
        rig.now_ns += 100 * PERIOD_NS
        return step(observations)

    rig.session.step = long
    rig.tick()
    assert rig.mode is Mode.WAITING
    assert "start.measured (joint_states): stale 2000 ms" in rig.reason
    assert (rig.out.sent, rig.out.steps) == ([], [])
    assert (rig.session.state_digest(), rig.session.tick) == (before, 0)
    rig.session.step = step
    rig.tick()
    assert (rig.mode, rig.session.host.step, len(rig.out.sent)) == (Mode.RUNNING, 1, 1)


@pytest.mark.parametrize(("rule", "episode", "step"), [("hold", 0, 4), ("reset", 1, 1)])
def test_jump_back_in_time(rule: str, episode: int, step: int) -> None:
    rig = Rig(on_time_jump=rule)
    rig.tick(3)
    rig.now_ns += PERIOD_NS
    rig.hear(stamp_ns=5)
    rig.stepper.tick(rig.now_ns)
    assert rig.mode is Mode.RUNNING, "the message after the jump counts, the node carries on"
    assert (rig.session.host.episode, rig.session.host.step) == (episode, step)
    assert any("went back" in words for words in rig.out.words)


def test_dry_run_does_all_but_send() -> None:
    rig = Rig(dry_run=True)
    rig.tick(3)
    assert not rig.out.sent
    assert rig.mode is Mode.RUNNING
    assert [step.hold_reason for step in rig.out.steps] == ["dry run"] * 3
    assert close(rig.out.steps[-1].action, 0.12, 0.22)


def test_failing_policy_holds() -> None:
    rig = Rig()
    rig.tick(2)
    rig.stepper.fail(RuntimeError("device lost"))
    assert rig.mode is Mode.HOLDING
    assert "device lost" in rig.reason
    assert rig.out.words[-1].startswith(f"error: holding: {rig.reason}"), "with the traceback"


def test_plans_run_beside_and_are_adopted_at_a_boundary() -> None:
    rig = Rig(FollowChunks())
    rig.options.publish_chunk = True
    rig.tick()
    assert not rig.out.sent
    assert "no plan yet" in rig.reason
    planned_on = rig.stepper.sample
    plan_ready(rig)
    rig.tick(4, position=(0.15, 0.2))
    assert [step.chunk_index for step in rig.out.steps] == [0, 1, 2, 3]
    assert [step.chunk_id for step in rig.out.steps] == [1] * 4
    assert planned_on is not None
    assert rig.out.steps[-1].stamps == planned_on.stamps, "the chunk saw the older sample"
    assert close(rig.out.chunks[0].rows_HA[3], 0.13, 0.23)
    rig.tick()
    assert rig.mode is Mode.RUNNING, "a gap between chunks repeats the last command"
    assert rig.positions[-1] == rig.positions[-2]
    rig.stepper.close()


def test_first_chunk_begins_at_its_first_row_however_long_it_took() -> None:
    """Nothing was done while it was planned, so nothing of it is to be skipped."""
    ready = threading.Event()

    class Late(Straight):
        def predict(
            self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
        ) -> None:
            assert ready.wait(LIMIT_S)
            seen = inputs["observation.state"][:2]
            chunk_HA.copy_(seen + STEP_RAD * torch.arange(5.0)[:, None])

        def layout(self) -> tuple[BufferSpec, ...]:
            return (BufferSpec("observation.state", (4,), torch.float32, Role.INPUT),)

        def observations(self) -> tuple[Port, ...]:
            return (Port("observation.state", "observation.state", (4,)),)

    ready.set()  # for the warm-up
    rig = Rig(ChunkedPolicy(Late(5), 4))
    ready.clear()
    rig.tick(6)
    assert not rig.out.sent
    ready.set()
    plan_ready(rig)
    rig.tick()
    assert [step.chunk_index for step in rig.out.steps] == [0]
    assert close(rig.positions[0], 0.1, 0.2)
    rig.stepper.close()


def test_acts_observe_their_own_control_step_while_a_plan_sees_an_older_one() -> None:
    class Keeps(FollowChunks):
        act_observes = True

        def layout(self) -> tuple[BufferSpec, ...]:
            return (*super().layout(), BufferSpec("seen", (4,), torch.float32, Role.STATE))

        def reset_(self, state: Buffers) -> None:
            super().reset_(state)
            state["seen"].zero_()

        def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            super().act(state, inputs, outputs)
            state["seen"].copy_(inputs["state_in"])

    rig = Rig(Keeps())
    seen = rig.session.arena.state["seen"]
    rig.tick(position=(0.3, 0.3))
    plan_ready(rig)
    assert not seen.any(), "no control step yet"
    rig.tick(position=(0.31, 0.3))
    assert close(rig.positions[0], 0.3, 0.3)
    assert close(seen[:2].tolist(), 0.31, 0.3)
    rig.tick(position=(0.32, 0.3))
    assert close(seen[:2].tolist(), 0.32, 0.3)
    rig.stepper.close()


def test_plan_begun_before_a_reset_is_not_adopted() -> None:
    rig = Rig(FollowChunks())
    rig.tick(position=(0.3, 0.3))
    plan_ready(rig)
    rig.ask("reset_episode")
    rig.tick(position=(0.1, 0.1))
    plan_ready(rig)
    rig.tick(position=(0.1, 0.1))
    assert close(rig.positions[0], 0.1, 0.1)
    rig.stepper.close()


def test_failing_plan_is_raised_where_it_is_taken() -> None:
    class Broken:
        def run_plan(self, ticket: Any) -> None:
            raise RuntimeError("no plan today")

    planner = Planner(Broken())
    planner.begin("ticket", 0)
    while planner.busy:
        threading.Event().wait(0.001)
    with pytest.raises(RuntimeError, match="no plan today"):
        planner.take()
    assert planner.take() is None
    assert planner.close(LIMIT_S)


def test_control_thread_answers_verbs_while_inactive() -> None:
    rig = Rig(activate=False)
    control = Control(lambda: rig.stepper, rig.out, 0.02, 1)
    assert control.start() is rig.stepper
    answered = threading.Event()
    now_ns = 0
    verb = Verb(
        "snapshot",
        lambda handlers, verb: handlers.snapshot(
            SimpleNamespace(tier="", name="x", pin=False, replace=False), verb
        ),
        now_ns,
        10**18,
    )
    verb.listen(lambda answer: answered.set())
    control.queue.put(verb)
    assert answered.wait(LIMIT_S)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.NONE
    assert control.close(LIMIT_S)
    assert control.stepper is None


def test_control_thread_stays_in_the_control_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(activate=False)
    device = rig.stepper.session.device
    bound: list[Lane] = []

    @contextlib.contextmanager
    def bind(lane: Lane) -> Iterator[None]:
        bound.append(lane)
        yield
        bound.remove(lane)

    monkeypatch.setattr(device, "bind", bind)
    before: list[list[Lane]] = []
    looked = threading.Event()

    def look(*_: object) -> None:
        before.append(list(bound))
        looked.set()

    monkeypatch.setattr(rig.stepper, "publish_status", look)
    control = Control(lambda: rig.stepper, rig.out, 0.02, 1)
    control.start()
    assert looked.wait(LIMIT_S)
    assert control.close(LIMIT_S)
    assert before[0] == [Lane.CONTROL]  # outside of any verb or step
    assert bound == []


def test_control_thread_hands_a_failed_start_over() -> None:
    def broken() -> Stepper:
        raise FlashRTError("no such policy")

    with pytest.raises(FlashRTError, match="no such policy"):
        Control(broken, Lists(), 0.02, 1).start()
