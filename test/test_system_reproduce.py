"""What a running node did is computed again from its recording, bit for bit, by a process of ours.

Threads, middleware and clocks are the real ones: plans begin and end when they happen to. Each
policy keeps another kind of state, and each goes through the same verbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from flashrt_ros.msg import CapsuleEvent, PolicyStep, Provenance
from sensor_msgs.msg import JointState
from stage import Stage, arm_contract
from tape import read_rows, write_rows

from flashrt_ros.cli import main
from flashrt_ros.demo.record import Recorder, Topic
from flashrt_ros.evaluate.reproduce.finding import Lost, Reproduction, Verdict
from flashrt_ros.evaluate.reproduce.work import reproduce

pytestmark = pytest.mark.ros
TOPICS = (
    Topic("joint_states", JointState),
    Topic("policy/policy_step", PolicyStep),
    Topic("policy/capsule_event", CapsuleEvent),
    Topic("policy/provenance", Provenance, latched=True),
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("reproduce")) as stage:
        yield stage


def recorded(stage: Stage, policy: str, bag: Path, contract: Any = None) -> int:
    """Records a policy through verbs; returns how many control steps it made."""
    stage.activate(policy, contract=contract, hold=True)
    published = len(stage.robot.published)
    with Recorder(stage.peer.node, bag, TOPICS) as recorder:
        stage.peer.wait(lambda: not recorder.unheard(), "publishers", seen=recorder.unheard)
        stage.do("resume")
        stage.wait_steps(10)
        stage.do("snapshot", name="a")
        stage.wait_steps(5)
        stage.do("fork", name="a", names=["b"], seeds=[2**64 - 1])
        wait_steps(stage, 8, since=stage.do("restore", name="b", publish=True))
        stage.ask("preview", names=["a"])  # refused where plans take long; it changes nothing
        wait_steps(stage, 6, since=stage.do("rollback", steps=3, publish=True))
        task = "stack the cups"
        reset = stage.do("reset_episode", set_seed=True, seed=5, set_task=True, task=task)
        wait_steps(stage, 8, since=reset)
        stage.do("save_capsule", name="a", file=f"{policy.partition(':')[2]}-a", replace=True)
        wait_steps(stage, 8, since=stage.do("restore", name="a", publish=True))
        stage.do("pause")
        wait_recorded(stage, recorder, published)
    return recorder.counts["policy/policy_step"]


def wait_steps(stage: Stage, count: int, since: Any) -> None:
    """Waits for control steps that follow a verb, given its answer: none that was on its way."""

    def made() -> int:
        return sum(step.generation >= since.generation for step in stage.steps)

    stage.peer.wait(lambda: made() >= count, f"{count} control steps after a verb", seen=made)


def wait_recorded(stage: Stage, recorder: Recorder, published: int) -> None:
    """Waits, once it is paused, until the recording has all steps and events, and what they saw.

    Args:
        stage: The node and its robot.
        recorder: Has recorded every step and every event from the first one on.
        published: Messages of the robot before the recording began.
    """
    steps, events, counts = stage.steps, stage.events, recorder.counts
    end = stage.do("snapshot", name="end").capsule
    stage.peer.wait(lambda: steps[-1].tick + 1 >= end.tick, "the last step")
    stage.peer.wait(lambda: events[-1].id == end.id, "the last event")
    place = {digest: n for n, digest in enumerate(stage.robot.published)}
    seen = [stamp for step in steps for stamp in (*step.observations, *step.act_observations)]
    used = max(place[stamp.digest] for stamp in seen)
    wanted = {
        "policy/policy_step": len(steps),
        "policy/capsule_event": len(events),
        # Those before the first that was recorded are not counted: there are as many or fewer.
        "joint_states": used + 1 - published,
    }
    stage.peer.wait(
        lambda: all(counts[name] >= count for name, count in wanted.items()),
        f"a recording of {wanted}",
        seen=lambda: counts,
    )


def again(bag: Path, policy: str, folder: Path | None = None) -> Reproduction:
    return reproduce(bag, policy, capsule_folder=folder)


HISTORY = {"steps": 2, "period_ms": 40, "before": "repeat"}


@pytest.mark.parametrize("policy", ["puppet:five", "again_policies:looking"])
def test_a_running_node_is_reproduced(stage: Stage, policy: str, tmp_path: Path) -> None:
    steps = recorded(stage, policy, tmp_path / "bag")
    found = again(tmp_path / "bag", policy, stage.folder / "capsules")
    assert found.verdict is Verdict.REPRODUCED, found.text()
    assert found.reproduced == found.steps == steps >= 45
    assert found.verbs == {"snapshot": 2, "fork": 1, "restore": 2, "rollback": 1, "reset": 1}
    assert found.capsules == 1
    assert found.changes == []
    check_controls(tmp_path, policy)


def check_controls(folder: Path, policy: str) -> None:
    """Without a message that was used, or a verb, it is not reproduced, and it is said why."""
    rows = read_rows(folder / "bag")
    steps = [row.decoded() for row in rows if row.type.endswith("/PolicyStep")]
    events = [row for row in rows if row.type.endswith("/CapsuleEvent")]
    used = [step for step in steps if step.adopted][2].observations[0].digest
    message = next(row for row in rows if xxhash.xxh3_64_intdigest(row.cdr) == used)
    verb = next(row for row in events if row.decoded().kind == CapsuleEvent.RESTORE)
    for name, lost, victim in (("m", Lost.INPUT, message), ("v", Lost.EVENT, verb)):
        bag = write_rows(folder / name, [row for row in rows if row is not victim])
        found = again(bag, policy)
        assert found.verdict is Verdict.INCOMPLETE, found.text()
        assert lost in {gap.lost for gap in found.gaps}
        assert 0 < found.reproduced < found.steps


def test_another_weight_is_named_and_where_it_first_matters(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = recorded(stage, "again_policies:guided", tmp_path / "bag")
    command = ["evaluate", str(tmp_path / "bag"), "--reproduce", "--policy"]
    assert main([*command, "again_policies:guided"]) == 0, capsys.readouterr().out
    assert f"REPRODUCED: {steps} of {steps} actions" in capsys.readouterr().out, "with RTC"
    assert main([*command, "again_policies:other_guided"]) == 1
    words = capsys.readouterr().out
    assert "changed: policy.weights: recorded" in words
    assert "first difference: tick 0 (episode 0, step 0): predicted" in words


def test_histories_of_the_contract(stage: Stage, tmp_path: Path) -> None:
    contract = arm_contract()
    part = {**contract["observations"][0]["parts"][0], "names": ["a", "b"]}
    contract["observations"][0].update(parts=[part], history=HISTORY)
    steps = recorded(stage, "again_policies:moments", tmp_path / "bag", contract)
    found = again(tmp_path / "bag", "again_policies:moments")
    assert found.verdict is Verdict.REPRODUCED, found.text()
    assert found.reproduced == steps
