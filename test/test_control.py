"""Holds what one control period does, in every situation that decides about motion.

Session, contract and sampler are the real ones; time is a number that the test sets, and what
would be published lands in lists. No ROS, no thread but where the thread itself is tested.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contract_examples import MS, contract_dict, joint_state
from node_policies import STEP_RAD, Follow, FollowChunks

from flashrt_ros.contract import Command, Contract, Sample, Sampler
from flashrt_ros.errors import ErrorCode, FlashRTError
from flashrt_ros.ros.commander import Commander
from flashrt_ros.ros.control import Control
from flashrt_ros.ros.handlers import Handlers
from flashrt_ros.ros.motion import Mode, Motion
from flashrt_ros.ros.planner import Planner
from flashrt_ros.ros.records import (
    ChunkRecord,
    EventKind,
    EventRecord,
    StatusRecord,
    StepRecord,
)
from flashrt_ros.ros.resumption import Options
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.verbs import Answer, Verb, refusal
from flashrt_ros.runtime.policy import PlanKind, Policy
from flashrt_ros.runtime.session import PolicySession

PERIOD_NS = 20 * MS


class Lists:
    """An outlet that keeps everything."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.steps: list[StepRecord] = []
        self.chunks: list[ChunkRecord] = []
        self.events: list[EventRecord] = []
        self.statuses: list[StatusRecord] = []
        self.words: list[str] = []
        self.faults = 0

    def stamp_ns(self) -> int:
        return 5

    def send(self, commands: Sequence[Command]) -> None:
        self.sent += commands

    def flush(self, timeout_s: float) -> bool:
        return True

    def step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def chunk(self, record: ChunkRecord) -> None:
        self.chunks.append(record)

    def event(self, record: EventRecord) -> None:
        self.events.append(record)

    def status(self, record: StatusRecord) -> None:
        self.statuses.append(record)

    def fault(self) -> None:
        self.faults += 1

    def log(self, level: str, words: str) -> None:
        self.words.append(f"{level}: {words}")


class Inputs:
    """A source that the test fills, over the real sampler."""

    def __init__(self, contract: Contract) -> None:
        self.sampler = Sampler(contract)
        self.jump: tuple[int, str] | None = None

    def sample(self, now_ns: int, not_before_ns: int) -> Sample:
        return self.sampler.sample(now_ns, not_before_ns)

    def take_jump(self) -> tuple[int, str] | None:
        jump, self.jump = self.jump, None
        return jump

    def clear(self) -> None:
        self.sampler.clear()


class Rig:
    """A stepper with everything around it, and a clock."""

    def __init__(
        self,
        policy: Policy | None = None,
        dry_run: bool = False,
        hold: bool = False,
        on_miss: str = "hold",
        miss_limit_s: float = 0.5,
        activate: bool = True,
        **changes: Any,
    ) -> None:
        policy = policy or Follow()
        fields = contract_dict(**changes)
        fields["observations"] = fields["observations"][:1]
        fields["actions"][0]["on_miss"] = on_miss
        self.contract = Contract.from_dict(fields)
        self.contract.check(policy.ports())
        self.now_ns = 1000 * PERIOD_NS
        self.out = Lists()
        self.motion = Motion()
        self.inputs = Inputs(self.contract)
        self.commander = Commander(self.contract, self.motion, self.out, dry_run, miss_limit_s)
        self.session = PolicySession(policy, rollback_depth=8, store_bytes=1 << 20, warm_up=0)
        self.planner = Planner(self.session) if policy.plan_kind is PlanKind.BESIDE else None
        self.options = Options()
        self.stepper = Stepper(
            self.session,
            self.contract,
            self.inputs,
            self.commander,
            self.motion,
            self.out,
            self.options,
            lambda: self.now_ns,
            self.planner,
        )
        self.handlers = Handlers(self.stepper)
        self.motion.configure(hold)
        if activate:
            self.motion.activate(self.now_ns)

    def hear(self, *position: float, stamp_ns: int = 0) -> None:
        """A joint state arrives now."""
        message = joint_state(
            ["a", "b"], position or (0.1, 0.2), (0.0, 0.0), stamp_ns=stamp_ns or self.now_ns
        )
        received = self.inputs.sampler.put("joint_states", message, self.now_ns)
        if received.time_jump:
            self.inputs.jump = (self.now_ns, received.time_jump)

    def tick(self, count: int = 1, hear: bool = True, position: Sequence[float] = ()) -> None:
        """Control periods, each with a fresh joint state before it."""
        for _ in range(count):
            self.now_ns += PERIOD_NS
            if hear:
                self.hear(*position)
            self.stepper.tick(self.now_ns)

    def call(self, service: str, /, **fields: Any) -> tuple[Verb, Answer | None]:
        """A verb as the control thread carries it out."""
        defaults: dict[str, Any] = {
            "name": "",
            "tier": "",
            "pin": False,
            "replace": False,
            "publish": False,
            "allow_inexact": False,
            "set_seed": False,
            "seed": 0,
            "steps": 0,
            "set_task": False,
            "task": "",
            "hold": False,
            "count": 0,
            "seeds": [],
            "names": [],
            "include_automatic": False,
            "force": False,
        }
        request = SimpleNamespace(**{**defaults, **fields})
        verb = Verb(
            service,
            lambda handlers, verb: handlers.find(service)(request, verb),
            self.now_ns,
            self.now_ns + 10**10,
        )
        verb.begin()
        try:
            answer = verb.work(self.handlers, verb)
        except FlashRTError as error:
            answer = refusal(error)
        if answer is not None:
            verb.answer(answer)
        return verb, verb.result

    def ask(self, service: str, /, **fields: Any) -> Answer:
        """A verb that is answered at once."""
        answer = self.call(service, **fields)[1]
        assert answer is not None
        return answer

    @property
    def positions(self) -> list[list[float]]:
        return [command.values.tolist() for command in self.out.sent]

    @property
    def mode(self) -> Mode:
        return self.motion.mode

    @property
    def reason(self) -> str:
        return self.motion.standing.reason


def close(found: Sequence[float], *expected: float) -> bool:
    return bool(np.allclose(found, expected, atol=1e-6))


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
    assert "older than the reset" in rig.reason
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
    assert not rig.out.sent
    assert not rig.out.steps, "a step that was taken back is no control step"
    assert (rig.session.host.step, rig.session.tick) == (0, 0)
    assert rig.session.state_digest() == before


def test_control_of_the_above_a_safe_step_changes_the_state() -> None:
    rig = Rig()
    before = rig.session.state_digest()
    rig.tick()
    assert rig.session.state_digest() != before


def test_resume_is_answered_with_the_first_command() -> None:
    rig = Rig(hold=True)
    rig.tick(2)
    verb, answer = rig.call("resume")
    assert answer is None
    rig.tick()
    assert verb.result is not None
    assert verb.result.code is ErrorCode.NONE
    assert rig.ask("resume").message == "running already"


def test_resume_refuses_an_unsafe_start() -> None:
    rig = Rig(Follow(offset=1.0), hold=True)
    rig.tick(2)
    verb, _ = rig.call("resume")
    rig.tick()
    assert verb.result is not None
    assert verb.result.code is ErrorCode.UNSAFE_START
    assert "a: command" in verb.result.message
    assert rig.mode is Mode.HOLDING


def test_resume_gives_up_without_input_and_holds() -> None:
    rig = Rig(hold=True)
    verb, _ = rig.call("resume")
    busy = rig.ask("resume")
    assert busy.code is ErrorCode.BUSY
    rig.tick(51, hear=False)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.STALE_INPUT
    assert rig.mode is Mode.HOLDING
    rig.tick(3)
    assert rig.mode is Mode.HOLDING, "what was answered with a refusal must not move later"


def test_resume_that_timed_out_does_not_move_later() -> None:
    rig = Rig(hold=True)
    verb, _ = rig.call("resume")
    verb.expire(10**18)
    rig.tick(3)
    assert rig.mode is Mode.HOLDING
    assert "timed out" in rig.reason
    assert not rig.out.sent


def test_stop_overtakes_a_resume() -> None:
    rig = Rig(hold=True)
    verb, _ = rig.call("resume")
    rig.motion.stop()
    rig.tick()
    assert verb.result is not None
    assert verb.result.code is ErrorCode.STOPPED
    assert rig.ask("resume").code is ErrorCode.STOPPED
    assert rig.ask("restore", name="x", publish=True).code is ErrorCode.STOPPED


def test_stop_while_a_step_is_computed_withholds_its_command() -> None:
    rig = Rig()
    rig.tick(2)
    sent = len(rig.out.sent)
    step = rig.session.step

    def slow_step(observations: Any) -> Any:
        action = step(observations)
        with rig.motion.lock:
            rig.commander.halt(all_outputs=True)
            rig.motion.stop()
        return action

    rig.session.step = slow_step  # type: ignore[method-assign]
    rig.tick()
    assert [command.fields["velocity"] for command in rig.out.sent[sent:]] == [[0.0, 0.0]]
    assert not rig.out.steps[-1].published
    assert "stopped" in rig.out.steps[-1].hold_reason


def test_halt_without_motion_sends_no_old_position() -> None:
    rig = Rig()
    rig.tick(2)
    rig.commander.halt()
    sent = len(rig.out.sent)
    rig.commander.halt(all_outputs=True)
    assert len(rig.out.sent) == sent, "the arm may have been moved by others since"


def test_restore_holds_and_continues_bit_equal() -> None:
    rig = Rig()
    rig.tick(3)
    made = rig.ask("snapshot", name="here")
    assert made.fields["capsule"].tick == 3
    rig.tick(2)
    after = rig.session.state_digest()
    answer = rig.ask("restore", name="here")
    assert answer.code is ErrorCode.NONE
    assert rig.mode is Mode.HOLDING
    assert rig.session.host.step == 3
    rig.tick(2)
    assert rig.session.host.step == 3
    rig.call("resume")
    rig.tick(2)
    assert rig.mode is Mode.RUNNING
    assert rig.session.state_digest() == after


def test_restore_with_publish_demands_newer_input() -> None:
    rig = Rig()
    rig.tick(3)
    rig.ask("snapshot", name="here")
    rig.hear()
    answer = rig.ask("restore", name="here", publish=True)
    assert "newer than this" in answer.message
    sent = len(rig.out.sent)
    rig.tick(hear=False)
    assert rig.mode is Mode.WAITING
    assert len(rig.out.sent) == sent
    rig.tick()
    assert rig.mode is Mode.RUNNING


def test_reset_drops_input_and_keeps_the_task() -> None:
    rig = Rig()
    rig.ask("reset_episode", set_task=True, task="cups")
    rig.tick(2)
    answer = rig.ask("reset_episode")
    assert answer.fields["episode"] == 2
    assert rig.session.host.task == "cups"
    rig.tick(hear=False)
    assert rig.mode is Mode.WAITING
    rig.tick()
    assert rig.out.steps[-1].step == 0
    assert rig.out.steps[-1].task == "cups"
    rig.ask("reset_episode", hold=True)
    rig.tick(2)
    assert rig.mode is Mode.HOLDING


def test_rollback_returns_to_the_boundary() -> None:
    rig = Rig()
    rig.tick(2)
    at_two = rig.session.state_digest()
    rig.tick(3)
    answer = rig.ask("rollback", steps=3)
    assert answer.fields["steps_back"] == 3
    assert answer.fields["step"] == 2
    assert rig.session.state_digest() == at_two
    assert rig.mode is Mode.HOLDING
    assert rig.ask("rollback", steps=99).code is ErrorCode.NOT_FOUND


def test_events_say_what_was_done_before_which_step() -> None:
    rig = Rig()
    rig.tick(2)
    rig.ask("snapshot", name="here")
    rig.ask("fork", name="here", seeds=[7, 8], names=["left", "right"])
    rig.ask("restore", name="left", set_seed=True, seed=9)
    rig.ask("drop_capsule", name="right")
    kinds = [event.kind for event in rig.out.events]
    assert kinds == [
        EventKind.SNAPSHOT,
        EventKind.FORK,
        EventKind.FORK,
        EventKind.RESTORE,
        EventKind.DROP,
    ]
    assert [event.seed for event in rig.out.events] == [None, 7, 8, 9, None]
    assert all(event.tick == 2 for event in rig.out.events)


def test_housekeeping_answers() -> None:
    rig = Rig(activate=False)
    rig.ask("snapshot", name="root", pin=True)
    rig.ask("snapshot", name="child")
    listed = rig.ask("list_capsules")
    assert [capsule.name for capsule in listed.fields["capsules"]] == ["root", "child"]
    found = rig.ask("get_capsule", name="child")
    assert found.fields["lineage"] == [listed.fields["capsules"][0].id]
    assert '"count"' in found.fields["metadata"]
    assert rig.ask("drop_capsule", name="root").code is ErrorCode.PINNED
    assert rig.ask("drop_capsule", name="gone").code is ErrorCode.NOT_FOUND
    assert rig.ask("snapshot", name="child").code is ErrorCode.ALREADY_EXISTS
    assert rig.ask("snapshot", name="no good").code is ErrorCode.INVALID_NAME
    assert rig.ask("snapshot", tier="disk").code is ErrorCode.UNSUPPORTED


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
    assert any("device lost" in words for words in rig.out.words)


def plan_ready(rig: Rig) -> None:
    assert rig.planner is not None
    while rig.planner.busy:
        threading.Event().wait(0.001)


def test_plans_run_beside_and_are_adopted_at_a_boundary() -> None:
    rig = Rig(FollowChunks())
    rig.options.publish_chunk = True
    rig.tick()
    assert not rig.out.sent
    assert "first plan" in rig.reason
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
    assert planner.close()


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
    assert answered.wait(10.0)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.NONE
    assert control.close()
    assert control.stepper is None


def test_control_thread_hands_a_failed_start_over() -> None:
    def broken() -> Stepper:
        raise FlashRTError("no such policy")

    with pytest.raises(FlashRTError, match="no such policy"):
        Control(broken, Lists(), 0.02, 1).start()
