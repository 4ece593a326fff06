"""``~/preview`` of a running node: what branches would do, while the arm goes on as before.

The chunk of a preview must be what the node really does after a restore, to the bit, or a tree
chooses by something else than what will happen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from flashrt_ros.msg import PolicyStatus
from held import held
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from node_peer import DEADLINE_S
from stage import Stage, arm_contract
from test_system_state import assert_no_step_is_alike, trace

from flashrt_ros.errors import ErrorCode

pytestmark = pytest.mark.ros


def previewed(stage: Stage, **fields: Any) -> Any:
    """The chunks; asked again where a busy machine has left no room between control steps."""
    end_s = time.monotonic() + DEADLINE_S
    while (response := stage.ask("preview", **fields)).error_code == ErrorCode.BUSY:
        assert time.monotonic() < end_s, response.message
    assert response.success, response.message
    return response.chunks


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("preview")) as stage:
        yield stage


def test_a_preview_is_what_the_node_does_after_a_restore(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(5)
    cut = stage.do("snapshot", name="cut").capsule
    stage.do("fork", name="cut", names=["b", "c"], seeds=[11, 12])
    names = ["cut", "b", "c"]
    chunks = previewed(stage, names=names)
    assert [chunk.capsule for chunk in chunks] == names
    for chunk in chunks:
        assert list(chunk.names) == ["a", "b"]
        assert (chunk.horizon, chunk.period_s, len(chunk.data)) == (1, 0.02, 2)
        assert chunk.generation == cut.generation
        assert chunk.header.stamp.sec > 0
    told = [list(chunk.data) for chunk in chunks]
    assert told[0] != told[1] != told[2] != told[0]  # the control: seeds make a difference
    for name, expected in zip(names, told, strict=True):
        restored = stage.do("restore", name=name, publish=True)
        assert trace(stage, restored.generation, cut.step, 1)[0][1] == expected


def test_the_arm_goes_on_as_if_nothing_were(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(5)
    cut = stage.do("snapshot", name="cut").capsule
    stage.do("fork", name="cut", count=8, names=[f"n{n}" for n in range(8)])
    for _ in range(5):
        assert len(previewed(stage, names=[f"n{n}" for n in range(8)])) == 8
        assert len(previewed(stage)) == 1
        assert stage.wait_step_on_new_input().published
    first = trace(stage, cut.generation, cut.step)
    restored = stage.do("restore", name="cut", publish=True)
    assert trace(stage, restored.generation, cut.step) == first
    ticks = [step.tick for step in stage.steps]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))
    reset = stage.do("reset_episode")
    assert_no_step_is_alike(trace(stage, reset.generation, cut.step), first)


def test_a_retry_gets_the_first_answer(stage: Stage) -> None:
    stage.run()
    stage.do("snapshot", name="cut")
    first = previewed(stage, names=["cut"], request_id="p1")
    stage.do("drop_capsule", name="cut")
    assert stage.do("preview", names=["cut"], request_id="p1").chunks == first
    assert stage.ask("preview", names=["cut"], request_id="p2").error_code == ErrorCode.NOT_FOUND


def test_a_plan_beside_comes_first(stage: Stage) -> None:
    stage.run("puppet:Planner")
    (chunk,) = previewed(stage)
    assert (chunk.horizon, chunk.capsule, len(chunk.data)) == (4, "", 8)
    with held(stage):
        pending = stage.send("preview")
        busy = stage.ask("preview")
        assert busy.error_code == ErrorCode.BUSY
        assert "another ~/preview is under way" in busy.message
    response = pending.result(stage.peer.quote)
    assert response.success, response.message
    assert response.chunks[0].horizon == 4


def test_who_waits_gets_an_answer(stage: Stage) -> None:
    def begin() -> None:
        stage.run("puppet:Planner")
        stage.do("snapshot", name="cut")

    begin()
    with held(stage):
        assert stage.set(service_timeout_s=0.5).successful
        response = stage.ask("preview", names=["cut"])
        assert response.error_code == ErrorCode.TIMEOUT
    begin()
    with held(stage):
        pending = stage.send("preview", names=["cut"])
        stage.do("reset_episode")
        response = pending.result(stage.peer.quote)
        assert response.error_code == ErrorCode.SUPERSEDED
        assert "restore, rollback or reset came between" in response.message
    begin()
    with held(stage):
        pending = stage.send("preview", names=["cut"])
        stage.transit(Transition.TRANSITION_DEACTIVATE)
        cleanup = Transition(id=Transition.TRANSITION_CLEANUP)
        cleaned = stage.peer.send(ChangeState, stage.name("change_state"), transition=cleanup)
    assert cleaned.result(stage.peer.quote).success
    response = pending.result(stage.peer.quote)
    assert response.success or response.error_code == ErrorCode.NOT_CONFIGURED


def test_where_it_cannot_be(stage: Stage) -> None:
    stage.run(preview_sets=0)
    response = stage.ask("preview")
    assert response.error_code == ErrorCode.UNSUPPORTED
    assert "preview_sets" in response.message
    stage.run(contract=arm_contract(max_age_ms=500.0))
    stage.robot.quiet = True
    stage.wait_status(PolicyStatus.HOLDING, "stale")
    response = stage.ask("preview")
    assert response.error_code == ErrorCode.STALE_INPUT
    assert "observation.state (joint_states)" in response.message
    stage.transit(Transition.TRANSITION_DEACTIVATE)
    assert stage.ask("preview").error_code == ErrorCode.STALE_INPUT
    stage.transit(Transition.TRANSITION_CLEANUP)
    assert stage.ask("preview").error_code == ErrorCode.NOT_CONFIGURED


def test_the_log_says_how_states_are_exchanged(stage: Stage) -> None:
    stage.run()
    assert "spare states are exchanged by copies: cpu maps nothing" in stage.process.output()
