"""Pins what the node records of each control step so that it can be done again, bit for bit.

Which sample a plan saw and before which step; what acts saw besides; what the policy gave and what
ramp and limits started from; which state a verb took. Without any one of these a recording is a
riddle.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from again_policies import STATE, FourLooking
from contract_examples import contract_dict
from control_rig import PERIOD_NS, Rig, plan_ready
from node_policies import Follow
from periods import Gate

from flashrt_ros.contract.rebuild import array_digest
from flashrt_ros.contract.start import blend
from flashrt_ros.policies.chunked import ChunkedPolicy, ChunkPredictor
from flashrt_ros.ros.records import EventKind, PlanOrigin, StepRecord


def beside(predictor: ChunkPredictor, takes: int, ahead: int, periods: int, **more: Any) -> Rig:
    """A rig that has run so many periods, with plans that take ``takes`` of them."""
    policy = ChunkedPolicy(predictor)
    gate = Gate(policy)
    rig = Rig(policy, plan_ahead=ahead, **more)
    gate.shut = True
    planner, age, seen = rig.planner, 0, None
    assert planner is not None
    for _ in range(periods):
        if planner.busy and age >= takes:
            gate.let_go()
            plan_ready(rig)
        rig.tick()
        if planner.ticket is not None and planner.ticket is not seen:
            seen, age = planner.ticket, 0
        age += 1
    gate.shut = False
    gate.let_go()
    rig.stepper.close()
    return rig


def test_a_plan_names_the_boundary_where_it_began_and_the_sample_that_it_saw() -> None:
    steps = beside(FourLooking(8), 2, 4, 16).out.steps
    assert [s.tick for s in steps] == list(range(14)), "two periods waited for the first plan"
    plans = {s.tick: s.plan for s in steps if s.plan is not None}
    assert plans[0] == PlanOrigin(tick=0), "begun and adopted before the first step"
    assert plans[6] == PlanOrigin(tick=4, delay=2, consumed=2), "with four rows left of eight"
    first, second = (steps[tick].stamps[-1].sequence for tick in (0, 6))
    assert (first, second) == (1, 7), "of the first period; of the step that 4 rows were left at"
    assert {s.stamps[-1].sequence for s in steps[:6]} == {1}, "its rows name the plan's sample"
    assert [s.chunk_index for s in steps[4:8]] == [4, 5, 2, 3]


def test_what_acts_see_besides_is_on_record_only_where_they_look() -> None:
    steps = beside(FourLooking(8), 2, 4, 10).out.steps
    assert [s.act_stamps[0].sequence for s in steps] == list(range(3, 11)), "one each period"
    blind = FourLooking(8)
    blind.observes = False
    assert not any(s.act_stamps for s in beside(blind, 2, 4, 10).out.steps), "control"


def test_a_step_that_was_taken_back_leaves_no_trace_of_its_plan() -> None:
    rig = Rig(Follow(offset=1.0))
    rig.tick(3)
    assert rig.out.steps == []
    assert rig.stepper.behind.facts() == {
        "stamps": (),
        "act_stamps": (),
        "plan": None,
        "observation_digest": 0,
    }


def test_arrays_are_digested_where_states_are() -> None:
    rig = Rig()
    rig.tick()
    rig.options.publish_state_digest = True
    rig.tick(position=(0.2, 0.1))
    off, on = rig.out.steps
    assert off.observation_digest == 0
    sample = rig.stepper.sample
    assert sample is not None
    assert on.observation_digest == array_digest(sample.observations) != 0
    other = {STATE: np.nextafter(sample.observations[STATE], np.float32(9.0))}
    assert array_digest(other) != on.observation_digest, "control"


def test_limits_and_what_they_count_from() -> None:
    rig = Rig()
    rig.tick()
    rig.tick(position=(0.25, 0.2))
    rig.tick(position=(1.0, 0.2))
    free, near, far = rig.out.steps
    for step in (free, near):
        assert step.limited_from.size == 0
        assert np.array_equal(step.action, step.predicted)
    assert far.predicted.tolist() == np.float32([1.02, 0.22]).astype(float).tolist()
    assert far.limited_from.tolist() == near.action.tolist()
    shaper = rig.commander.shaper
    again = shaper.shape(far.predicted, shaper.unpack(far.limited_from)).action
    assert again.tobytes() == far.action.tobytes()
    assert shaper.shape(far.predicted).action.tobytes() != far.action.tobytes(), "control"


def test_a_ramp_is_done_again_from_its_share_and_origin() -> None:
    start = {**contract_dict()["start"], "ramp_s": 0.2}
    rig = Rig(Follow(offset=0.5), start=start)
    rig.tick(12)
    steps: list[StepRecord] = rig.out.steps
    ramped = [step for step in steps if step.ramp_from.size]
    assert 8 <= len(ramped) < len(steps)
    assert steps[-1].ramp_share == 1.0
    contract = rig.contract
    assert contract.start is not None
    for step in ramped:
        assert 0.0 < step.ramp_share < 1.0
        assert step.ramp_from.tolist() == np.float32([0.1, 0.2]).astype(float).tolist()
        blended = blend(contract.start, step.predicted, step.ramp_from, step.ramp_share)
        shaper = rig.commander.shaper
        last = shaper.unpack(step.limited_from) if step.limited_from.size else None
        assert shaper.shape(blended, last).action.tobytes() == step.action.tobytes()


def test_a_shadow_says_that_it_is_one() -> None:
    rig = Rig(dry_run=True)
    rig.tick()
    (step,) = rig.out.steps
    assert (step.dry_run, step.published) == (True, False)


def test_verbs_name_the_state_that_they_took() -> None:
    rig = Rig()
    rig.tick(3)
    rig.ask("snapshot", name="a")
    rig.tick(2)
    rig.ask("fork", name="a", names=["b"])
    rig.ask("fork", names=["c"], seeds=[7])
    rig.ask("restore", name="a", set_seed=True, seed=9)
    rig.ask("rollback")
    rig.ask("rollback", steps=2)
    rig.ask("reset_episode", set_seed=True, seed=5)
    kinds = {event.kind: event for event in rig.out.events}
    by_name = {event.name: event for event in rig.out.events if event.kind is EventKind.FORK}
    snapshot, restore = kinds[EventKind.SNAPSHOT], kinds[EventKind.RESTORE]
    assert (snapshot.source_tick, snapshot.noise_key) == (3, 0)
    assert (by_name["b"].source_id, by_name["b"].source_tick) == (snapshot.id, 3)
    assert by_name["b"].noise_key != 0, "derived, and so on record"
    assert (by_name["c"].source_id, by_name["c"].source_tick) == ("", 5)
    assert by_name["c"].noise_key == 7
    assert (restore.source_id, restore.source_tick, restore.noise_key) == (snapshot.id, 3, 9)
    parent, back = (e for e in rig.out.events if e.kind is EventKind.ROLLBACK)
    assert back.source_automatic
    assert back.source_tick == 1
    assert (parent.noise_key, back.noise_key) == (0, 0), "the capsule's and the boundary's"
    assert not parent.source_automatic
    assert kinds[EventKind.RESET].noise_key == 5
    assert {event.run for event in rig.out.events} == {rig.stepper.run}


def test_files_are_named(tmp_path: Any) -> None:
    rig = Rig(capsule_dir=str(tmp_path))
    rig.tick()
    rig.ask("snapshot", name="a")
    for service, fields in (
        ("save_capsule", {"name": "a"}),
        ("load_capsule", {"file": "a", "name": "d"}),
    ):
        verb, _ = rig.call(service, **fields)
        while verb.result is None:
            if (turn := rig.queue.get(0.0)) is not None:
                rig.carry_out(turn)
            threading.Event().wait(0.001)
        assert verb.result.code == 0, verb.result.message
    files = {event.kind: event.file for event in rig.out.events if event.file}
    assert files == {EventKind.SAVE: "a.capsule", EventKind.LOAD: "a.capsule"}
    rig.storage.close()


def test_records_of_a_session_carry_its_run() -> None:
    one, two = Rig(), Rig()
    for rig in (one, two):
        rig.tick(2)
    assert {step.run for step in one.out.steps} == {one.stepper.run}
    assert one.stepper.run != two.stepper.run
    assert one.now_ns - 2 * PERIOD_NS == 1000 * PERIOD_NS
