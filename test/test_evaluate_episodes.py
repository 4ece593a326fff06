"""Pins where episodes begin and end, and that their commands are read by name, type and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_files import START_NS, write_mcap
from contract_examples import cdr, contract_dict, joint_state, rosbags_class
from evaluate_bags import PERIOD_NS, RATE_HZ, Row, arm_rows, load_contract, wave

from flashrt_ros.contract.cdr import typestore
from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.output import ActionShaper
from flashrt_ros.contract.schema import Output
from flashrt_ros.errors import ContractError, InvalidArgumentError, NotFoundError
from flashrt_ros.evaluate.commands import CommandReader, RecordedCommands
from flashrt_ros.evaluate.elements import elements_of, with_grippers
from flashrt_ros.evaluate.episodes import EpisodeRule, EpisodeTracker, seconds
from flashrt_ros.evaluate.source import BagSource
from flashrt_ros.evaluate.timeline import BETWEEN_EPISODES, Moment, Setting
from flashrt_ros.policies.hold import HoldPolicy

BOOL = "std_msgs/msg/Bool"


def moments(path: Path, rule: EpisodeRule) -> list[Moment]:
    source = BagSource(path)
    found = list(source.moments(Setting(load_contract(), HoldPolicy(2).ports(), episodes=rule)))
    source.close()
    return found


def mark(step: int, begins: bool, shift_ns: int = 0) -> Row:
    raw = cdr(rosbags_class(BOOL)(data=begins))
    return ("/episode", BOOL, START_NS + step * PERIOD_NS + shift_ns, raw)


def test_gaps_end_episodes(tmp_path: Path) -> None:
    rows = arm_rows(10, wave, wave) + arm_rows(10, wave, wave, START_NS + 40 * PERIOD_NS)
    found = moments(write_mcap(tmp_path / "a.mcap", rows), EpisodeRule.parse("gaps:500ms"))
    assert {m.index: m.episode for m in found}.items() >= {(0, 0), (39, 0), (40, 1), (49, 1)}
    assert max(m.episode for m in found) == 1
    longer = moments(tmp_path / "a.mcap", EpisodeRule.parse("gaps:2s"))
    assert max(m.episode for m in longer) == 0, "the control"


def test_messages_begin_and_end_episodes(tmp_path: Path) -> None:
    marks = [mark(3, True), mark(8, False), mark(12, True, 1_000_000), mark(18, True)]
    rows = [*arm_rows(25, wave, wave), *marks]
    path = write_mcap(tmp_path / "a.mcap", rows)
    found = moments(path, EpisodeRule.parse("topic:episode"))
    inside = [m.index for m in found if m.faults != (BETWEEN_EPISODES,)]
    assert inside == [*range(3, 8), *range(13, 25)]
    assert [m.episode for m in found if m.index in (3, 7, 13, 17, 18, 24)] == [0, 0, 1, 1, 2, 2]
    # What was heard before the beginning does not count: in step 13 only its own message does.
    assert found[12].faults == (BETWEEN_EPISODES,)
    assert found[13].faults == ()
    assert found[13].not_before_ns == START_NS + 12 * PERIOD_NS + 1_000_000
    with pytest.raises(NotFoundError, match="no topic /other that could mark episodes"):
        moments(path, EpisodeRule.parse("topic:/other"))


def test_messages_from_before_an_episode_do_not_count(tmp_path: Path) -> None:
    begin = mark(12, True, PERIOD_NS // 2)
    rows = [*arm_rows(25, wave, wave), begin]
    # No state between the beginning and the step after it.
    rows = [row for row in rows if row[2] != START_NS + 13 * PERIOD_NS]
    found = moments(write_mcap(tmp_path / "a.mcap", rows), EpisodeRule.parse("topic:episode"))
    assert "older than the last activate, resume, restore or reset" in found[13].faults[0]
    assert np.isnan(found[13].recorded_A).all()
    assert found[14].faults == ()


def test_a_table_says_episodes_and_tasks(tmp_path: Path) -> None:
    table = tmp_path / "episodes.csv"
    table.write_text("start_s,end_s,task\n0.1,0.2,pick\n0.3,0.4,\n")
    path = write_mcap(tmp_path / "a.mcap", arm_rows(25, wave, wave))
    found = moments(path, EpisodeRule.parse(f"table:{table}"))
    inside = [m.index for m in found if m.faults == ()]
    assert inside == [*range(5, 10), *range(15, 20)]
    assert [found[i].episode for i in (5, 9, 15, 19)] == [0, 0, 1, 1]
    assert [found[i].task for i in (5, 15)] == ["pick", None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start_s\n1\n", "lacks end_s"),
        ("start_s,end_s\n1,x\n", "could not convert"),
        ("start_s,end_s\n3,2\n", "episode 1: expected a start"),
        ("start_s,end_s\n1,2\n1.5,3\n", "episode 2: expected a start"),
        ("start_s,end_s\n", "at least one episode"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        EpisodeRule.parse(f"table:{tmp_path / 't.csv'}")


def test_rules_and_times_have_their_forms() -> None:
    for text in ("gaps", "gaps:", "gaps:0s", "topic:", "days:3", "table:"):
        with pytest.raises(InvalidArgumentError, match="gaps:SECONDS, topic:NAME or table:FILE"):
            EpisodeRule.parse(text)
    assert [seconds("x", text) for text in ("12.5s", "200ms", "2min", "7")] == [12.5, 0.2, 120, 7]
    with pytest.raises(InvalidArgumentError, match="--from: expected a time"):
        seconds("--from", "soon")


def test_a_jump_that_resets_is_an_episode() -> None:
    tracker = EpisodeTracker(None, 0)
    assert tracker.at(5).number == 0
    tracker.jump(7)
    assert (tracker.at(8).number, tracker.at(8).begin_ns) == (1, 7)


# Commands


def output(**changes: Any) -> Output:
    fields = contract_dict()
    action = {k: v for k, v in fields["actions"][0].items() if k not in ("limits", "max_step")}
    fields["actions"] = [{**action, "names": ["a", "b"], **changes}]
    return Contract.from_dict({**fields, "start": "unchecked"}).actions[0]


VECTORS: dict[str, dict[str, Any]] = {
    "sensor_msgs/msg/JointState": {},
    "trajectory_msgs/msg/JointTrajectory": {},
    "std_msgs/msg/Float64MultiArray": {},
    "geometry_msgs/msg/Twist": {"field": "twist", "names": ["linear.x", "angular.z"]},
    "geometry_msgs/msg/TwistStamped": {"field": "twist", "names": ["angular.y", "linear.z"]},
}


@pytest.mark.parametrize("type_name", VECTORS)
def test_what_is_written_is_read_back(type_name: str) -> None:
    changes = {"on_miss": "stop", **VECTORS[type_name]}
    given = output(type=type_name, **changes)
    contract = Contract("r", RATE_HZ, (), (given,))
    values = np.array([0.123456789012, -2.5])
    (command,) = ActionShaper(contract).messages(ActionShaper(contract).shape(values), 5)
    message = fill(type_name, command.fields)
    read = CommandReader(given)
    assert np.array_equal(read.as_of(read(message, 0), 0), values)


def fill(type_name: str, fields: dict[str, Any]) -> Any:
    """A rosbags message of plain fields."""
    made: dict[str, Any] = {}
    for name, description in typestore().fielddefs[type_name][1]:
        value = fields[name]
        inner = description[1]
        if isinstance(value, dict):
            made[name] = fill(inner, value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            made[name] = [fill(inner[0][1], each) for each in value]
        elif isinstance(value, list) and not (value and isinstance(value[0], str)):
            made[name] = np.array(value, np.float64)
        else:
            made[name] = value
    return rosbags_class(type_name)(**made)


def trajectory(after_s: list[float], rows: list[list[float]], names: list[str]) -> Any:
    kind = rosbags_class("trajectory_msgs/msg/JointTrajectoryPoint")
    duration = rosbags_class("builtin_interfaces/msg/Duration")
    none = np.zeros(0)
    points = [
        kind(np.array(row), none, none, none, duration(int(t), round((t % 1) * 1e9)))
        for t, row in zip(after_s, rows, strict=True)
    ]
    header = joint_state([], ()).header
    return rosbags_class("trajectory_msgs/msg/JointTrajectory")(header, names, points)


def test_a_trajectory_commands_one_point_after_the_other() -> None:
    given = output(type="trajectory_msgs/msg/JointTrajectory", horizon="chunk")
    contract = Contract("r", RATE_HZ, (), (given,))
    commands = RecordedCommands(contract, 2)
    rows = [[10.0 * k, -10.0 * k] for k in range(4)]
    step_ns = PERIOD_NS
    first_s = given.time_from_start_s
    message = trajectory([first_s + k / RATE_HZ for k in range(4)], rows, ["b", "a"])
    commands.put(given.topic, message, 1000)
    for k, late_ns in ((0, 0), (0, 3_000_000), (1, -3_000_000), (2, 4_000_000), (3, 0), (9, 0)):
        found = commands.values(1000 + k * step_ns + late_ns, 0)
        assert found.tolist() == [-10.0 * min(k, 3), 10.0 * min(k, 3)], (k, late_ns)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (joint_state(["a"], (1.0,)), r"expected \['b'\], found only \['a'\]"),
        (joint_state(["a", "b"], (1.0,)), "expected 2 values"),
        (joint_state([], (1.0, 2.0)), "expected the names of joints, found none"),
    ],
)
def test_a_command_that_does_not_fit_is_counted_and_changes_nothing(
    message: Any, words: str
) -> None:
    given = output()
    with pytest.raises(ContractError, match=words):
        CommandReader(given)(message, 0)
    commands = RecordedCommands(Contract("r", RATE_HZ, (), (given,)), 2)
    commands.put(given.topic, joint_state(["b", "a"], (2.0, 1.0)), 5)
    commands.put(given.topic, message, 6)
    assert commands.values(7, 0).tolist() == [1.0, 2.0]
    assert commands.faults[given.topic][1] == 1
    assert np.isnan(commands.values(7, 6)).all(), "it came before"


def test_elements_have_names_of_their_own_and_grippers_are_found() -> None:
    fields = contract_dict(start="unchecked")
    action = {k: v for k, v in fields["actions"][0].items() if k not in ("limits", "max_step")}
    other = {**action, "topic": "other_arm", "unit": "m", "index": [2, 3]}
    hand = {**other, "topic": "hand", "names": ["jaw_joint"], "index": [4]}
    contract = Contract.from_dict({**fields, "actions": [action, other, hand]})
    elements = elements_of(contract, HoldPolicy(6).ports())
    arms = ("joint_command/a", "joint_command/b", "other_arm/a", "other_arm/b")
    assert elements.names == (*arms, "jaw_joint", "action[5]")
    assert elements.units == ("rad", "rad", "m", "m", "m", "")
    assert elements.gripper == (False,) * 4 + (True, False)
    marked = with_grippers(elements, ["other_arm/b"])
    assert marked.gripper == (False,) * 3 + (True, True, False)
    with pytest.raises(InvalidArgumentError, match="found other_arm/c"):
        with_grippers(elements, ["other_arm/c"])
