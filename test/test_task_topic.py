"""The task text from a topic: the last one said wins, and a new one is planned for at once.

A robot that goes on with yesterday's task, or whose new task waits for the end of a long chunk,
does something nobody asks for any more.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract_examples import cdr, contract_dict, joint_state, rosbags_class
from control_rig import Rig, plan_ready
from node_policies import FollowChunks

from flashrt_ros.contract import Contract, Sampler
from flashrt_ros.errors import ContractError, InvalidArgumentError
from flashrt_ros.runtime.buffers import BufferSpec, Role

TASK = {"topic": "task"}


def text(words: str) -> Any:
    return rosbags_class("std_msgs/msg/String")(words)


def contract(**keys: Any) -> Contract:
    observations = contract_dict()["observations"][:1]
    return Contract.from_dict(contract_dict(observations=observations, task={**TASK, **keys}))


def sampler_of(**keys: Any) -> Sampler:
    sampler = Sampler(contract(**keys))
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [3, 4]), 0)
    return sampler


def test_a_text_is_there_until_another_one_comes() -> None:
    sampler = sampler_of()
    assert sampler.sample(0).task is None
    assert not sampler.sample(0).faults, "not required"
    for words in (text("pick the cup"), cdr(text("pick the cup"))):
        assert sampler.put("task", words, 1).fault == ""
        sample = sampler.sample(1)
        assert sample.task is not None
        assert sample.task.text == "pick the cup"
        assert sample.stamps[-1].observation == "task"
    assert sampler.task() == sample.task
    assert sample.task.sequence == 2, "the same text said again is another"
    sampler.clear()
    assert sampler.task() == sample.task, "a reset does not unsay it"


def test_a_required_text_is_waited_for() -> None:
    sampler = sampler_of(required=True)
    assert sampler.sample(0).faults == ("task (task): no task text yet",)
    sampler.put("task", text(""), 0)
    assert not sampler.sample(0).faults, "an empty one says that there is no task"


def test_a_text_that_is_too_long_stops_the_robot() -> None:
    sampler = sampler_of()
    sampler.put("task", text("a"), 0)
    assert "expected at most 4096 characters" in sampler.put("task", text("x" * 5000), 0).fault
    sample = sampler.sample(0)
    assert "expected at most 4096 characters, found 5000" in sample.faults[0]
    assert sample.task is None
    sampler.put("task", text("b"), 0)
    assert not sampler.sample(0).faults


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"type": "std_msgs/msg/Float64"}, "task.field: expected a text in std_msgs/msg/Float64"),
        ({"field": "words"}, "field: expected a text in std_msgs/msg/String.*it has data"),
        ({"type": "my_msgs/msg/Task"}, "no definition"),
        ({"type": "sensor_msgs/msg/JointState", "field": "name"}, "expected a text in sensor"),
        ({"on_change": "stop"}, "on_change: expected one of replan, finish"),
        ({"topic": "joint_states"}, "task.type: expected sensor_msgs/msg/JointState as"),
    ],
)
def test_wrong_files(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        contract(**keys)


def test_any_text_field_will_do() -> None:
    keys = {"type": "std_msgs/msg/Header", "field": "frame_id"}
    sampler = sampler_of(**keys)
    message = rosbags_class("std_msgs/msg/Header")(joint_state([]).header.stamp, "go home")
    sampler.put("task", message, 0)
    task = sampler.task()
    assert task is not None
    assert task.text == "go home"


def say(rig: Rig, words: str) -> None:
    assert rig.inputs.sampler.put("task", text(words), rig.now_ns).fault == ""


def test_the_last_one_said_wins() -> None:
    rig = Rig(task=TASK)
    rig.tick(2)
    say(rig, "pick")
    rig.tick()
    assert rig.out.steps[-1].task == "pick"
    rig.ask("snapshot", name="picking")
    say(rig, "place")
    rig.tick()
    assert rig.out.steps[-1].task == "place"
    rig.ask("restore", name="picking", publish=True)
    rig.tick(3)
    assert rig.out.steps[-1].task == "pick", "the capsule's, though `place` was the last text"
    say(rig, "place")
    rig.tick()
    assert rig.out.steps[-1].task == "place", "said again, it holds again"
    rig.ask("reset_episode", set_task=True, task="wave")
    rig.tick(3)
    assert rig.out.steps[-1].task == "wave"
    rig.ask("reset_episode")
    rig.tick(3)
    assert rig.out.steps[-1].task == "wave"
    assert len([words for words in rig.out.words if "task is now" in words]) == 3


def test_a_text_that_came_just_before_a_verb_is_older_than_it() -> None:
    rig = Rig(task=TASK)
    rig.tick(2)
    say(rig, "pick")
    rig.ask("reset_episode", set_task=True, task="wave")
    rig.tick(3)
    assert rig.out.steps[-1].task == "wave"
    say(rig, "place")
    rig.ask("reset_episode")
    rig.tick(3)
    assert rig.out.steps[-1].task == "place", "a reset keeps the task, this one"


def test_an_inactive_node_takes_it_over_as_well() -> None:
    rig = Rig(task=TASK, activate=False)
    say(rig, "pick")
    rig.ask("snapshot", name="early")
    assert rig.session.host.task == "pick"


@pytest.mark.parametrize("on_change", ["replan", "finish"])
def test_a_chunk_for_another_task_is_dropped_or_taken_first(on_change: str) -> None:
    rig = Rig(FollowChunks(), task={**TASK, "on_change": on_change})
    while not rig.out.steps or rig.out.steps[-1].chunk_index != 0:
        rig.tick()
        plan_ready(rig)
    chunk = rig.out.steps[-1].chunk_id
    say(rig, rig.session.host.task)
    rig.tick()
    assert rig.out.steps[-1].chunk_id == chunk, "the same task again changes nothing"
    say(rig, "another")
    rig.tick()
    plan_ready(rig)
    rig.tick()
    assert rig.session.host.task == "another"
    kept = rig.out.steps[-1].chunk_id == chunk
    assert kept == (on_change == "finish")
    rig.stepper.close()


class FewWords(FollowChunks):
    """Takes tasks of up to five letters, as an input."""

    def layout(self) -> tuple[BufferSpec, ...]:
        return (*super().layout(), BufferSpec("letters", (5,), torch.int64, Role.INPUT))

    def task_inputs(self) -> tuple[str, ...]:
        return ("letters",)

    def encode_task(self, task: str, observations: Any) -> dict[str, torch.Tensor]:
        if len(task) > 5:
            raise InvalidArgumentError(f"task {task!r}: expected at most 5 letters")
        return {"letters": torch.tensor([ord(letter) for letter in task.ljust(5)])}


def test_a_text_that_the_policy_cannot_take_changes_nothing() -> None:
    rig = Rig(FewWords(), task=TASK)
    say(rig, "pick")
    while not rig.out.steps:
        rig.tick()
        plan_ready(rig)
    assert rig.session.arena.inputs["letters"].tolist() == [ord(c) for c in "pick "]
    say(rig, "a long story")
    rig.tick()
    assert rig.session.host.task == "pick"
    assert any("task stays 'pick': task 'a long story'" in words for words in rig.out.words)
    say(rig, "place")
    rig.tick()
    assert rig.session.host.task == "place", "the control: one that it can take is taken"
    rig.stepper.close()
