"""A running node whose plans take five control periods beside its steps, over real DDS.

Counts, not times: with chunks of 16 rows no control step may wait for a plan, and what was planned
before a restore, rollback or reset must never reach the arm after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lifecycle_msgs.msg import Transition
from stage import Stage
from test_system_state import chunk_places, chunks_of

pytestmark = pytest.mark.ros
H = 16


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("ahead")) as stage:
        yield stage


def planned(stage: Stage) -> dict[str, str]:
    """The newest diagnostics of the node's plans."""
    found = [s for m in stage.diagnostics for s in m.status if s.name.endswith(": plans")]
    return {pair.key: pair.value for pair in found[-1].values} if found else {}


def wait_plans(stage: Stage, adopted: int) -> dict[str, str]:
    """Diagnostics once so many plans have been adopted."""
    stage.peer.wait(
        lambda: int(planned(stage).get("adopted", 0)) >= adopted, f"{adopted} plans adopted"
    )
    return planned(stage)


def test_no_control_step_waits_for_a_plan(stage: Stage) -> None:
    stage.run("puppet:five", plan_ahead=H)
    found = wait_plans(stage, 12)
    assert found["late"] == "0"
    assert int(found["inference_delay"]) >= 5
    stage.peer.wait(lambda: stage.statuses[-1].inference_delay >= 5, "a status that says so")
    steps = list(stage.steps)
    known = {step.chunk_id for step in steps}
    stage.peer.wait(lambda: known <= {chunk.chunk_id for chunk in stage.chunks}, "their chunks")
    assert [s.step for s in steps] == list(range(steps[0].step, steps[0].step + len(steps)))
    by_id = {chunk.chunk_id: chunk for chunk in stage.chunks}
    firsts = {}
    for step in steps:
        firsts.setdefault(step.chunk_id, step.chunk_index)
        chunk = by_id[step.chunk_id]
        row = chunk.data[2 * step.chunk_index : 2 * step.chunk_index + 2]
        assert list(step.action) == pytest.approx(list(row), abs=1e-9)
    assert all(index >= 5 for chunk, index in firsts.items() if chunk > 1), "spliced"


def test_by_itself_a_plan_begins_as_early_as_plans_are_slow(stage: Stage) -> None:
    stage.run("puppet:five")
    wait_plans(stage, 8)

    def fits() -> bool:
        found = planned(stage)  # the executor reads one after the other, beside the control thread
        delay = int(found["inference_delay"])
        assert delay >= 5
        return int(found["plan_ahead"]) == min(delay + 1 + delay // 4, H - 1)

    stage.peer.wait(fits, "so many rows ahead", seen=lambda: planned(stage))


def test_the_arm_waits_where_plans_begin_late(stage: Stage) -> None:
    """The control of the first test, and what diagnostics say then."""
    stage.run("puppet:five", plan_ahead=0)
    found = wait_plans(stage, 4)
    assert int(found["late"]) >= 3
    stage.wait_diagnostic("plans", "a plan came later than its chunk allows: ", level=1)


@pytest.mark.parametrize("verb", ["restore", "rollback", "reset_episode"])
def test_a_plan_under_way_is_discarded_by(stage: Stage, verb: str) -> None:
    before, late, after = 0.1, 0.15, 0.12
    stage.run("puppet:five", plan_ahead=H)
    stage.peer.wait(lambda: chunk_places(stage.chunks).count(before) > 2, "chunks")
    capsule = stage.do("snapshot", name="cut").capsule
    stage.robot.position = [late, -0.1]
    stage.peer.wait(
        lambda: late in chunk_places(stage.chunks), "control: a chunk of where it is now"
    )
    request: dict[str, Any] = {
        "reset_episode": {"hold": True},
        "restore": {"name": "cut"},
        "rollback": {"steps": 3},
    }
    # One plan is always under way: the next begins as soon as one is adopted.
    generation = stage.do(verb, **request[verb]).generation
    assert generation > capsule.generation
    stage.robot.position = [after, -0.1]
    begun = len(stage.robot.published)
    stage.peer.wait(lambda: len(stage.robot.published) > begun + 15, "the robot at the new place")
    assert not chunks_of(stage, generation), "none is adopted on hold"
    stage.do("resume")
    stage.peer.wait(lambda: chunk_places(chunks_of(stage, generation)).count(after) > 1, "chunks")
    assert set(chunk_places(chunks_of(stage, generation))) == {after}


def test_a_snapshot_while_a_plan_runs_is_the_last_boundary(stage: Stage) -> None:
    stage.run("puppet:five", plan_ahead=H)
    wait_plans(stage, 3)
    capsule = stage.do("snapshot", name="cut").capsule
    stage.peer.wait(lambda: stage.steps[-1].step > capsule.step + 3, "steps")
    done = {step.step: step for step in stage.steps}
    generation = stage.do("restore", name="cut", publish=True).generation

    def first() -> Any:
        return next((s for s in stage.steps if s.generation == generation), None)

    again = stage.peer.wait(first, "a step after the restore")
    assert again.step == capsule.step
    before = done[capsule.step - 1]
    assert (again.chunk_id, again.chunk_index) == (before.chunk_id, before.chunk_index + 1)
    stage.wait_running(since=generation)


def test_rows_ahead_are_refused_where_plans_cannot_be_spliced(stage: Stage) -> None:
    stage.prepare("puppet:Planner", plan_ahead=2)
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    assert "plan_ahead: expected 0 or -1, found 2" in stage.process.output()
    stage.prepare("puppet:Planner", plan_ahead=-1)
