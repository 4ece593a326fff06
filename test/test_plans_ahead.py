"""Pins when the node begins a plan beside, and what it says when one comes too late.

Plans take a number of control periods by a gate, so that everything is counted and nothing timed:
with chunks of 16 rows and plans of five periods no control period may pass without an action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from chunk_predictors import Straight
from control_rig import PERIOD_NS, Rig, plan_ready
from node_policies import STEP_RAD, FollowChunks
from periods import Gate

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.ros.diagnostics import Level, plans_entry
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.plan_timing import AUTOMATIC, PlanTiming
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.engine import DELAY
from flashrt_ros.runtime.policy import Buffers, Port

H = 16
STATE = "observation.state"


class Ramp(Straight):
    """The measured positions, then 0.01 rad farther each row; keeps the delays it was told."""

    family = "ramp"

    def __init__(self) -> None:
        super().__init__(H)
        self.told: list[int] = []

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec(STATE, (4,), torch.float32, Role.INPUT),
            BufferSpec(DELAY, (1,), torch.int64, Role.INPUT),
        )

    def observations(self) -> tuple[Port, ...]:
        return (Port(STATE, STATE, (4,)),)

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        self.told.append(int(inputs[DELAY]))
        chunk_HA.copy_(inputs[STATE][:2] + STEP_RAD * torch.arange(float(H))[:, None])


class Arm:
    """A rig whose plans take so many control periods."""

    def __init__(self, takes: int, plan_ahead: int, n_action_steps: int = H, **more: Any) -> None:
        self.predictor = Ramp()
        policy = ChunkedPolicy(self.predictor, n_action_steps)
        self.gate = Gate(policy)
        self.rig = Rig(policy, plan_ahead=plan_ahead, **more)
        self.predictor.told.clear()
        self.gate.shut = True
        self.takes = takes
        self._age = 0
        self._seen: Any = None

    @property
    def plans(self) -> PlanTiming:
        return self.rig.stepper.plans

    def periods(self, count: int, **hear: Any) -> None:
        planner = self.rig.planner
        assert planner is not None
        for _ in range(count):
            if planner.busy and self._age >= self.takes:
                self.gate.let_go()
                plan_ready(self.rig)
            self.rig.tick(**hear)
            if planner.ticket is not self._seen and planner.ticket is not None:
                self._seen, self._age = planner.ticket, 0
            self._age += 1

    def close(self) -> None:
        self.gate.shut = False
        for _ in range(4):
            self.gate.let_go()
        self.rig.stepper.close()


@pytest.fixture
def arm() -> Iterator[Callable[..., Arm]]:
    made: list[Arm] = []

    def make(*arguments: Any, **options: Any) -> Arm:
        made.append(Arm(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("ahead", [AUTOMATIC, 5, 6, 11, H, 1000])
def test_no_period_passes_without_an_action_while_plans_take_five(
    arm: Callable[..., Arm], ahead: int
) -> None:
    beside = arm(5, ahead)
    beside.periods(205)
    rows = [(step.chunk_id, step.chunk_index) for step in beside.rig.out.steps]
    assert len(rows) == 200, "all but the five in which the first plan was waited for"
    assert beside.plans.late == 0
    assert beside.rig.mode is Mode.RUNNING
    assert len(beside.rig.out.sent) == 200
    firsts = {min(i for c, i in rows if c == chunk) for chunk in range(2, rows[-1][0] + 1)}
    assert firsts == {5}, "rows for the five periods of a plan are skipped"


def test_planned_when_used_up_the_arm_waits_at_each_chunk(arm: Callable[..., Arm]) -> None:
    """The control of the test before."""
    alone = arm(5, 0)
    alone.periods(210)
    assert alone.plans.late == 5 * 9
    assert len(alone.rig.out.steps) == 160
    late = plans_entry(alone.plans, 0)
    assert late.level is Level.WARN
    assert "45 control periods without an action" in late.message


def test_the_warning_names_the_budget_and_what_plans_took(arm: Callable[..., Arm]) -> None:
    slow = arm(5, 3)
    slow.periods(100)
    entry = plans_entry(slow.plans, slow.plans.late - 2)
    assert entry.level is Level.WARN
    assert "2 control periods without an action" in entry.message
    assert "3 chunk rows left x 20 ms = 60 ms, against plan latency p50 " in entry.message
    assert entry.values["inference_delay"] == "5"
    assert entry.values["plan_ahead"] == "3"
    assert entry.values["late"] == str(slow.plans.late)
    calm = plans_entry(slow.plans, slow.plans.late)
    assert (calm.level, calm.message) == (Level.OK, "ok"), "said once"


@pytest.mark.parametrize("on_miss", ["hold", "stop"])
def test_a_late_plan_is_a_miss_of_the_contract(arm: Callable[..., Arm], on_miss: str) -> None:
    slow = arm(9, 3, on_miss=on_miss)
    slow.periods(9 + H)
    sent = len(slow.rig.out.sent)
    slow.periods(4)
    assert slow.plans.late == (4 if on_miss == "hold" else 1)
    fields = [(c.values.tolist(), c.repeat) for c in slow.rig.out.sent[sent:]]
    if on_miss == "hold":
        last = slow.rig.out.sent[sent - 1].values.tolist()
        assert fields == [(last, True)] * 4
    else:
        assert len(fields) == 1
        assert not fields[0][1], "the stop message is said once"


def test_the_delay_is_measured_without_the_cold_start_and_told_to_the_plan(
    arm: Callable[..., Arm],
) -> None:
    measured = arm(9, AUTOMATIC)
    measured.periods(10)
    assert measured.plans.inference_delay == 9, "better than nothing"
    assert len(measured.plans.delay_periods) == 0, "but cold"
    assert measured.predictor.told == [0]
    measured.takes = 4
    measured.periods(40)
    assert measured.plans.delay_periods.percentiles(0, 100) == (4.0, 4.0)
    assert measured.plans.inference_delay == measured.rig.stepper.last_status.inference_delay == 4
    assert measured.plans.plan_ahead == 6
    assert measured.predictor.told[1:3] == [9, 4]
    measured.rig.ask("reset_episode")
    measured.takes = 12
    measured.periods(13)
    assert measured.plans.inference_delay == 4, "nor is the first one after a rest counted"


def test_a_slow_plan_among_the_last_ones_counts(arm: Callable[..., Arm]) -> None:
    uneven = arm(3, AUTOMATIC)
    uneven.periods(60)
    assert uneven.plans.plan_ahead == 4
    uneven.takes = 7
    uneven.periods(20)
    assert uneven.plans.plan_ahead == 9
    uneven.takes = 3
    uneven.periods(60)
    assert uneven.plans.plan_ahead == 9


@pytest.mark.parametrize("verb", ["restore", "rollback", "reset_episode"])
def test_a_plan_of_five_periods_is_discarded_by_a_verb(arm: Callable[..., Arm], verb: str) -> None:
    beside = arm(5, H)
    rig = beside.rig
    rig.options.publish_chunk = True
    beside.periods(12, position=(0.1, 0.2))
    rig.ask("snapshot", name="cut")
    beside.periods(2, position=(0.11, 0.2))
    assert rig.planner is not None
    while rig.planner.busy and beside._age >= 4:
        beside.periods(1, position=(0.12, 0.2))
    beside.periods(2, position=(0.3, 0.2))
    assert rig.planner.busy
    before = len(rig.out.chunks)
    fields = {"restore": {"name": "cut"}, "rollback": {"steps": 3}, "reset_episode": {}}[verb]
    generation = rig.ask(verb, **fields).fields["generation"]
    state = rig.session.state_bytes()
    beside.gate.let_go()
    plan_ready(rig)
    if verb != "reset_episode":
        rig.tick(3, position=(0.5, 0.2))
        assert rig.session.state_bytes() == state, "on hold, the late chunk changes nothing"
        rig.call("resume")
    beside.periods(20, position=(0.12, 0.2))
    chunks = rig.out.chunks[before:]
    assert chunks
    assert {round(float(chunk.rows_HA[0][0]), 3) for chunk in chunks} == {0.12}
    assert {chunk.generation for chunk in chunks} == {generation}


def test_a_snapshot_while_a_plan_runs_holds_nothing_of_it(arm: Callable[..., Arm]) -> None:
    beside = arm(5, 8)
    beside.periods(5 + 10)
    rig = beside.rig
    assert rig.planner is not None
    assert rig.planner.busy
    bytes_ = rig.session.state_bytes()
    rig.ask("snapshot", name="cut")
    beside.periods(12)
    assert rig.session.host.chunk >= 2
    rig.ask("restore", name="cut")
    assert rig.session.state_bytes() == bytes_
    assert rig.session.host.chunk == 1


def test_plans_that_cannot_be_spliced_begin_when_the_chunk_is_used_up() -> None:
    for ahead in (1, H):
        with pytest.raises(InvalidArgumentError, match="plan_ahead: expected 0 or -1, found"):
            PlanTiming(FollowChunks(), 0.02, ahead)
    plans = PlanTiming(FollowChunks(), 0.02, AUTOMATIC)
    plans.begin(0, 0, cold=False)
    plans.end(5 * PERIOD_NS, 1, adopted=True)
    assert (plans.inference_delay, plans.plan_ahead) == (5, 0)


def test_a_chunk_that_time_has_passed_over_is_counted() -> None:
    plans = PlanTiming(ChunkedPolicy(Ramp()), 0.02, AUTOMATIC)
    plans.begin(0, 5, cold=False)
    plans.end(99 * PERIOD_NS, 1, adopted=False)
    assert (plans.adopted, plans.discarded, plans.inference_delay) == (0, 1, 0)
