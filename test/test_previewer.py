"""``~/preview`` on the control thread, without ROS: what it answers, when branches run, who waits.

A preview must never make an arm miss a command, and never leave its client without an answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from control_rig import PERIOD_NS, Rig, plan_ready
from node_policies import Follow, FollowChunks
from test_plans_ahead import Ramp

from flashrt_ros.errors import ErrorCode
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.verbs import Answer, Verb
from flashrt_ros.runtime.policy import Buffers

MS = 1_000_000


class Timed(Follow):
    """Lets the rig's clock go on at each act."""

    rig: Rig | None = None
    took_ns = 0

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        if self.rig is not None:
            self.rig.now_ns += self.took_ns


def turn(rig: Rig, left_ns: int = PERIOD_NS) -> bool:
    """What the control thread does when it has nothing else to do."""
    return rig.stepper.previewer.turn(rig.now_ns, rig.now_ns + left_ns)


def rows(answer: Answer | None) -> list[list[list[float]]]:
    assert answer is not None
    assert answer.code is ErrorCode.NONE, answer.message
    return [record.chunk.rows_HA.round(6).tolist() for record in answer.fields["chunks"]]


def finish(rig: Rig, verb: Verb) -> Answer | None:
    while rig.stepper.previewer.waiting:
        assert turn(rig)
    return verb.result


def test_branches_are_tried_and_nothing_moves() -> None:
    rig = Rig()
    rig.tick(3)
    rig.ask("snapshot", name="three")
    rig.tick(4)
    sent, digest = len(rig.out.sent), rig.session.state_digest()
    tick, host = rig.session.tick, vars(rig.session.host).copy()
    verb, answer = rig.call("preview", names=["three", rig.session.store.get("three").parent_id])
    assert answer is not None
    assert answer.code is ErrorCode.NOT_FOUND  # the parent is no capsule
    rig.ask("fork", name="three", names=["other"])
    verb, answer = rig.call("preview", names=["three", "other"])
    assert answer is None
    answer = finish(rig, verb)
    # Measured positions, plus a hundredth for each step so far.
    assert rows(answer) == [[[0.13, 0.23]], [[0.13, 0.23]]]
    assert answer is not None
    first = answer.fields["chunks"][0]
    assert first.stamp_ns == rig.out.stamp_ns()
    chunk = first.chunk
    assert (chunk.capsule, chunk.period_s, list(chunk.names)) == ("three", 0.02, ["a", "b"])
    assert (chunk.generation, chunk.chunk_id) == (rig.session.generation, 1)
    assert "2 branches: 'three', 'other'; the live state is as it was" in answer.message
    assert (len(rig.out.sent), rig.session.state_digest()) == (sent, digest)
    assert (rig.session.tick, vars(rig.session.host)) == (tick, host)
    verb, _ = rig.call("preview")
    live = finish(rig, verb)
    assert rows(live) == [[[0.17, 0.27]]]
    assert live is not None
    assert live.fields["chunks"][0].chunk.capsule == ""
    assert "preview of the live state" in live.message
    rig.tick()
    np.testing.assert_allclose(rig.positions[-1], [0.17, 0.27], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"names": ["x"]}, ErrorCode.NOT_FOUND, "'x'"),
        ({"names": ["a", "a"]}, ErrorCode.INVALID_ARGUMENT, "'a' is given twice"),
        ({"names": ["a"] * 65}, ErrorCode.INVALID_ARGUMENT, "at most 64 branches"),
    ],
)
def test_refusals_before_anything_runs(
    changes: dict[str, Any], code: ErrorCode, words: str
) -> None:
    rig = Rig()
    rig.tick()
    rig.ask("snapshot", name="a")
    answer = rig.ask("preview", **changes)
    assert answer.code is code
    assert words in answer.message
    assert not rig.stepper.previewer.waiting


def test_without_fresh_input_nothing_runs() -> None:
    rig = Rig()
    rig.tick()
    rig.now_ns += 5000 * MS
    answer = rig.ask("preview")
    assert answer.code is ErrorCode.STALE_INPUT
    assert "observation.state" in answer.message
    rig.tick()
    rig.ask("reset_episode")  # what was heard before a reset does not count after it
    assert rig.ask("preview").code is ErrorCode.STALE_INPUT


def test_one_at_a_time() -> None:
    rig = Rig()
    rig.tick()
    verb, _ = rig.call("preview")
    busy = rig.ask("preview")
    assert busy.code is ErrorCode.BUSY
    assert "1 branches of it are to be run" in busy.message
    finish(rig, verb)
    verb, answer = rig.call("preview")
    assert answer is None
    assert rows(finish(rig, verb))


def test_a_branch_waits_for_a_period_that_has_room() -> None:
    policy = Timed()
    rig = Rig(policy)
    rig.tick(3)
    policy.rig, policy.took_ns = rig, 4 * MS
    verb, _ = rig.call("preview")
    assert not turn(rig, PERIOD_NS // 2 - 1)  # the first may take half a period
    assert turn(rig, PERIOD_NS // 2)
    assert rows(verb.result)
    verb, _ = rig.call("preview")
    assert not turn(rig, 6 * MS - 1)  # half as much again as it took
    assert verb.result is None
    assert turn(rig, 6 * MS)
    assert rows(verb.result)


def test_a_branch_that_never_fits_is_refused_while_the_arm_moves() -> None:
    policy = Timed()
    rig = Rig(policy)
    rig.tick(3)
    policy.rig, policy.took_ns = rig, 30 * MS
    verb, _ = rig.call("preview")
    assert turn(rig)  # nobody knew
    assert verb.result is not None
    verb, _ = rig.call("preview")
    assert turn(rig)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.BUSY
    for words in ("takes 30.0 ms", "periods of 20.0 ms", "~/pause"):
        assert words in verb.result.message
    # One slow branch does not count for good.
    policy.took_ns = MS
    verb, _ = rig.call("preview")
    assert turn(rig)
    assert rows(verb.result)
    # On hold nobody waits for a command.
    policy.took_ns = 30 * MS
    rig.motion.hold("a test says so")
    for _ in range(3):
        verb, _ = rig.call("preview")
        assert turn(rig, 0) or turn(rig)
        assert rows(verb.result)


def test_control_steps_that_leave_little_room_do_not_hold_it_up_for_ever() -> None:
    policy = Timed()
    rig = Rig(policy)
    rig.tick(3)
    policy.rig, policy.took_ns = rig, 8 * MS
    verb, _ = rig.call("preview")
    assert turn(rig)
    verb, _ = rig.call("preview")
    for _ in range(9):
        rig.now_ns += PERIOD_NS
        assert not turn(rig, 5 * MS)
        assert not turn(rig, 5 * MS)  # the same period is counted once
    rig.now_ns += PERIOD_NS
    assert not turn(rig, 5 * MS)
    assert verb.result is None
    assert turn(rig, 5 * MS)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.BUSY
    # The control: with room in one of them it runs.
    rig.hear()
    verb, _ = rig.call("preview")
    rig.now_ns += PERIOD_NS
    assert turn(rig)
    assert rows(verb.result)


def test_control_steps_run_between_branches() -> None:
    rig = Rig()
    rig.tick(2)
    for number in range(3):
        rig.ask("snapshot", name=f"s{number}")
        rig.tick()
    plain = Rig()
    plain.tick(5)
    verb, _ = rig.call("preview", names=["s0", "s1", "s2"])
    for number in (2, 1, 0):
        assert verb.result is None
        assert turn(rig)
        rig.tick()
        plain.tick()
        rig.ask("drop_capsule", name=f"s{number}")  # what is still to be run is held
    assert rows(verb.result) == [[[0.12, 0.22]], [[0.13, 0.23]], [[0.14, 0.24]]]
    assert rig.positions == plain.positions
    assert "s0" not in rig.session.store


def test_a_plan_beside_comes_first() -> None:
    rig = Rig(FollowChunks())
    rig.tick()
    plan_ready(rig)
    verb, answer = rig.call("preview")
    assert answer is None
    assert not turn(rig)  # it waits to be adopted
    rig.tick()
    assert rig.session.host.chunk == 1
    assert turn(rig)
    assert rows(verb.result) == [[[0.1, 0.2], [0.11, 0.21], [0.12, 0.22], [0.13, 0.23]]]
    assert verb.result is not None
    assert verb.result.fields["chunks"][0].chunk.chunk_id == 2
    # A plan that was dropped, as input faults drop it, does not hold up anything.
    while not rig.session.plan_due:
        rig.tick()
    rig.tick()
    plan_ready(rig)
    rig.stepper.forget_plan()
    verb, _ = rig.call("preview")
    assert turn(rig)
    assert rows(verb.result)
    rig.tick(3)
    assert rig.mode is Mode.RUNNING


@pytest.mark.parametrize("word", ["pause", "stop", "hold", "deactivate"])
def test_a_plan_that_nobody_will_adopt_holds_up_nothing(word: str) -> None:
    """BUSY sends its reader to ~/pause: there a preview must not wait for ever."""
    rig = Rig(ChunkedPolicy(Ramp(), 3), plan_ahead=2)
    while rig.session.host.chunk < 1 or not rig.session.planning:
        rig.tick()
        plan_ready(rig)
    verb, _ = rig.call("preview")
    assert not turn(rig), "control: as long as the arm moves the plan comes first"
    digest = rig.session.state_digest()
    {"hold": lambda: rig.motion.hold("a test says so")}.get(word, getattr(rig.motion, word))()
    for _ in range(3):
        if not turn(rig):
            plan_ready(rig)
    assert len(rows(verb.result)) == 1
    assert rig.session.state_digest() == digest


def test_plans_without_a_gap_end_in_an_answer() -> None:
    rig = Rig(ChunkedPolicy(Ramp(), 1), plan_ahead=1)
    while not rig.positions:
        rig.tick()
        plan_ready(rig)
    verb, _ = rig.call("preview")
    rig.stepper.plans.delay_periods.add(1)
    for _ in range(30):
        assert rig.mode is Mode.RUNNING
        if turn(rig):
            break
        rig.tick()
        plan_ready(rig)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.BUSY
    assert "4 plans beside came before a branch" in verb.result.message
    assert "~/pause" in verb.result.message
    rig.motion.pause()
    rig.tick()
    verb, _ = rig.call("preview")
    for _ in range(3):
        turn(rig)
    assert len(rows(verb.result)) == 1


def test_what_changes_the_live_state_overtakes_a_preview() -> None:
    rig = Rig()
    rig.tick(2)
    rig.ask("snapshot", name="a")
    verb, _ = rig.call("preview", names=["a"])
    rig.ask("restore", name="a")
    assert turn(rig)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.SUPERSEDED
    assert not rig.stepper.previewer.waiting


def test_time_that_is_up_and_the_end_of_the_node() -> None:
    rig = Rig()
    rig.tick(2)
    rig.ask("snapshot", name="a")
    holders = rig.session.store.get("a").segment.holders
    verb, _ = rig.call("preview", names=["a"])
    verb.expire(10**19)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.TIMEOUT
    again, answer = rig.call("preview", names=["a"])  # no turn was needed in between
    assert answer is None
    assert verb.settle()
    assert verb.result.code is ErrorCode.BUSY  # a retry with its id would begin anew
    again.expire(10**19)
    assert turn(rig)
    assert not turn(rig)
    assert rig.session.store.get("a").segment.holders == holders
    last, _ = rig.call("preview", names=["a"])
    rig.stepper.close()
    assert last.result is not None
    assert last.result.code is ErrorCode.SUPERSEDED


class Raising(Follow):
    raises = False

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        if self.raises:
            raise RuntimeError("told so")


def test_a_branch_that_raises_stops_nothing_else() -> None:
    policy = Raising()
    rig = Rig(policy)
    rig.tick(2)
    verb, _ = rig.call("preview")
    policy.raises = True
    assert turn(rig)
    policy.raises = False
    assert verb.result is not None
    assert verb.result.code is ErrorCode.INTERNAL
    assert "told so" in verb.result.message
    assert any("Traceback" in words for words in rig.out.words)
    rig.tick()
    assert rig.mode is Mode.RUNNING
    np.testing.assert_allclose(rig.positions[-1], [0.12, 0.22], atol=1e-6)
