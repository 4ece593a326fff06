"""Pins that evaluation shows a policy, and makes of it, what the node would: the same bits.

The same messages go through the node's intake, control step and last gate, and through a recording
of them. Whatever is read or judged in one way here and in another there would make the figures of
an evaluation those of another robot.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bag_files import START_NS, write_mcap
from contract_examples import cdr, contract_dict, joint_state, point, rosbags_class
from control_rig import Lists
from evaluate_bags import PERIOD_NS, Row

from flashrt_ros.contract.contract import Contract
from flashrt_ros.evaluate.drive import Driver
from flashrt_ros.evaluate.elements import elements_of
from flashrt_ros.evaluate.source import BagSource
from flashrt_ros.evaluate.timeline import Moment, Setting
from flashrt_ros.evaluate.track import Track
from flashrt_ros.policies.recurrent import RecurrentPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig, VectorConfig
from flashrt_ros.ros import intake as intake_module
from flashrt_ros.ros.commander import Commander
from flashrt_ros.ros.intake import Intake
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.records import StepRecord
from flashrt_ros.ros.resumption import Options
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.storage import Storage
from flashrt_ros.ros.verbs import VerbQueue
from flashrt_ros.runtime.session import PolicySession

STEPS = 150


class Clock:
    """Stands for the module ``time`` in the intake: steady time is recorded time."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


@dataclass
class Live:
    """What the node saw and did in each control period."""

    observations: list[dict[str, Any]]
    faults: list[tuple[str, ...]]
    tasks: list[str]
    records: dict[int, StepRecord]
    jumps: int


def contract(on_time_jump: str = "hold", on_miss: str = "hold") -> Contract:
    fields = contract_dict(
        on_time_jump=on_time_jump,
        task={"topic": "task", "on_change": "finish"},
        start={
            **contract_dict()["start"],
            "max_distance": 0.05,
            "ramp_s": 0.3,
        },
    )
    fields["actions"][0].update(on_miss=on_miss, max_step=0.1, limits={"a": [-0.3, 0.3]})
    return Contract.from_dict(fields)


def policy() -> RecurrentPolicy:
    torch.manual_seed(3)
    plain = {"normalisation": "identity"}
    return RecurrentPolicy(
        RecurrentConfig(
            observations=(
                VectorConfig("observation.state", 4, **plain),
                VectorConfig("observation.cue", 3, **plain),
            ),
            action=VectorConfig("action", 2, **plain),
        )
    )


def unpleasant() -> list[Row]:
    """Messages with jitter, gaps, damage, and stamps that jump back in the middle."""
    draw = np.random.default_rng(7)
    rows: list[Row] = []
    time_ns = START_NS
    for number in range(190):
        # The first message is the begin of the recording, from which steps are counted.
        time_ns += int(draw.integers(5, 22)) * 1_000_000 * bool(number)
        if number in (60, 61, 140):
            time_ns += 400_000_000
        stamp_ns = time_ns - (5_000_000_000 if number >= 100 else 0)
        values = draw.normal(scale=0.2, size=2)
        message = joint_state(["b", "a"], values, values / 2, stamp_ns=stamp_ns)
        if number in (30, 31):
            message.position[0] = np.nan
        if number == 40:
            message.header.stamp.sec = message.header.stamp.nanosec = 0
        raw = cdr(message)
        if number == 50:
            raw = raw[:-9]
        if number == 55:
            raw = cdr(joint_state([], values, values))
        if number == 70:
            raw += b"\0" * 7
        rows.append(("/joint_states", "sensor_msgs/msg/JointState", time_ns, raw))
        if draw.random() < 0.3 and not 80 < number < 95:
            cue = cdr(point(*draw.normal(size=2), stamp_ns=stamp_ns))
            kind = "geometry_msgs/msg/PointStamped"
            rows.append(("/cue", kind, time_ns + int(draw.integers(0, 900_000)), cue))
        if number in (20, 21, 90):
            text = cdr(rosbags_class("std_msgs/msg/String")(data=f"pick {number // 10}"))
            rows.append(("/task", "std_msgs/msg/String", time_ns + 1, text))
    return sorted(rows, key=lambda row: row[2])


def live(monkeypatch: pytest.MonkeyPatch, given: Contract, rows: list[Row]) -> Live:
    """Through the node's parts, in real threads."""
    clock = Clock()
    monkeypatch.setattr(intake_module, "time", clock)
    out, motion = Lists(), Motion()
    intake = Intake(given, out)
    commander = Commander(given, motion, out, dry_run=False, miss_limit_s=0.5)
    session = PolicySession(policy(), rollback_depth=0, preview_sets=0)
    storage = Storage("", VerbQueue(), out)
    stepper = Stepper(
        session, given, intake, commander, motion, out, Options(), clock.monotonic_ns, storage
    )
    motion.configure(False)
    motion.activate(0)
    names = {name.strip("/"): name for name, *_ in given.topics()}
    found = Live([], [], [], {}, 0)
    heard = dict.fromkeys(intake.figures, 0)
    waiting = iter(rows)
    row = next(waiting, None)
    for step in range(STEPS):
        now_ns = START_NS + step * PERIOD_NS
        while row is not None and row[2] <= now_ns:
            name = names[row[0].strip("/")]
            clock.now_ns = row[2]
            intake.receive(name, row[3])
            heard[name] += 1
            while intake.figures[name].received < heard[name]:
                threading.Event().wait(0.0002)
            row = next(waiting, None)
        clock.now_ns = now_ns
        before = len(out.steps)
        stepper.tick(now_ns)
        sample = stepper.sample
        assert sample is not None
        found.observations.append(sample.observations)
        found.faults.append(sample.faults)
        found.tasks.append(session.host.task)
        if len(out.steps) > before:
            found.records[step] = out.steps[-1]
    assert intake.close(30.0)
    found.jumps = sum(figures.jumps for figures in intake.figures.values())
    stepper.close()
    return found


def recorded(given: Contract, path: Path) -> tuple[list[Moment], Track, list[str]]:
    """Through a recording."""
    source = BagSource(path)
    setting = Setting(given, policy().ports())
    session = PolicySession(policy(), rollback_depth=0, preview_sets=0)
    driver = Driver("p", "s", session, elements_of(given, setting.ports), given)
    moments, tasks = [], []
    for moment in source.moments(setting):
        if moment.index == STEPS:
            break
        driver.take(moment)
        moments.append(moment)
        tasks.append(session.host.task)
    source.close()
    session.close()
    return moments, driver.finish(), tasks


def differences(
    node: Live, moments: list[Moment], track: Track, tasks: list[str]
) -> Iterator[str]:
    """Where the two are not the same to the bit."""
    for step, moment in enumerate(moments):
        seen = node.observations[step]
        if seen.keys() != moment.observations.keys():
            yield f"{step}: {sorted(seen)} and {sorted(moment.observations)}"
        elif any(seen[k].tobytes() != moment.observations[k].tobytes() for k in seen):
            yield f"{step}: observations"
        if node.faults[step] != moment.faults:
            yield f"{step}: {node.faults[step]} and {moment.faults}"
        if node.tasks[step] != tasks[step]:
            yield f"{step}: task {node.tasks[step]} and {tasks[step]}"
        if (step in node.records) != bool(track.stepped_T[step]):
            yield f"{step}: one made a step"
        elif step in node.records:
            action = np.asarray(node.records[step].action, np.float64)
            if action.tobytes() != track.sent_TA[step].tobytes():
                yield f"{step}: {action} and {track.sent_TA[step]}"


@pytest.mark.parametrize(
    ("on_time_jump", "on_miss"), [("hold", "hold"), ("reset", "hold"), ("hold", "stop")]
)
def test_the_node_and_a_recording_of_it_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_time_jump: str, on_miss: str
) -> None:
    given, rows = contract(on_time_jump, on_miss), unpleasant()
    node = live(monkeypatch, given, rows)
    # Two messages may have one recorded time; nothing else can tell their order.
    path = write_mcap(tmp_path / "run.mcap", rows, chunk_size=2048)
    moments, track, tasks = recorded(given, path)
    assert len(moments) == STEPS
    assert list(differences(node, moments, track, tasks)) == []
    assert node.jumps >= 1
    assert 60 < len(node.records) < STEPS, "some steps were made and some were not"
    assert len(set(node.faults)) > 4
    assert node.tasks[-1] == "pick 9"
    assert np.isfinite(track.sent_TA[track.stepped_T]).all()
    assert (track.sent_TA != track.predicted_TA)[track.stepped_T].any(), "limits were met"


def test_a_recording_of_other_messages_is_told_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one message a millisecond later, or one bit of another, is seen."""
    given, rows = contract(), unpleasant()
    node = live(monkeypatch, given, rows)
    joints = [place for place, row in enumerate(rows) if row[0] == "/joint_states"]
    late = next(p for p in joints[10:] if rows[p][2] % PERIOD_NS > PERIOD_NS - 3_000_000)
    changed = []
    for name, shift_ns, flip in (("late", 4_000_000, 0), ("bit", 0, 1)):
        other = list(rows)
        topic, kind, time_ns, raw = rows[late]
        raw = raw[:-14] + bytes([raw[-14] ^ flip]) + raw[-13:]
        other[late] = (topic, kind, time_ns + shift_ns, raw)
        path = write_mcap(tmp_path / f"{name}.mcap", other)
        changed.append(list(differences(node, *recorded(given, path))))
    assert all(changed)
