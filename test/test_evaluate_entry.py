"""Entering a recording anywhere gives the moments that reading it whole would have given.

Recordings are random and as unpleasant as real ones: inputs that fall silent, messages that cannot
be used, equal times, clocks that jump back, episodes of every kind. One moment that differs after
an entry would make a keyframe a lie.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_files import START_NS, write_mcap
from contract_examples import JOINT_STATE, cdr, contract_dict, joint_state, point
from contract_examples import rosbags_class as ros
from test_evaluate_timeline import same
from test_frames import POSE, pose, tool, transforms

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.frames import TF
from flashrt_ros.evaluate.episodes import EpisodeRule, Row
from flashrt_ros.evaluate.source import BagSource
from flashrt_ros.evaluate.timeline import SILENCE_NS, Entry, Moment, Setting
from flashrt_ros.runtime.policy import Port, Ports

MS = 1_000_000
POINT = "geometry_msgs/msg/PointStamped"
STRING, BOOL = "std_msgs/msg/String", "std_msgs/msg/Bool"
RULES = [
    None,
    EpisodeRule(gap_s=0.2),
    EpisodeRule(topic="/begin"),
    EpisodeRule(rows=(Row(0.1, 0.9, "first"), Row(1.1, 2.0), Row(2.0, 9.0, "last"))),
]


def contract(generator: np.random.Generator) -> Contract:
    """State with a history or without, an optional cue, a task, a start check."""
    fields = contract_dict(on_time_jump=str(generator.choice(["hold", "reset"])))
    if generator.random() < 0.6:
        fields["observations"][0]["history"] = {
            "steps": int(generator.integers(2, 5)),
            "period_ms": float(generator.choice([20.0, 90.0])),
            "before": str(generator.choice(["repeat", "wait"])),
        }
    fields["task"] = {"topic": "task", "type": STRING}
    return Contract.from_dict(fields)


def recording(generator: np.random.Generator) -> list[tuple[str, str, int, bytes]]:
    """Some seconds of four topics at times of their own."""
    rows: list[tuple[str, str, int, bytes]] = []
    shift_ns = 0
    for topic, period_ms in (("/joint_states", 15), ("/joint_command", 40), ("/cue", 70)):
        now_ns = int(START_NS + generator.integers(0, 50) * MS)
        while now_ns < START_NS + 3_000 * MS:
            # Times are coarse, so that many are equal.
            now_ns += int(generator.integers(0, 2 * period_ms // 5) * 5 * MS)
            if generator.random() < 0.02:
                now_ns += int(generator.integers(100, 900) * MS)  # silence
            if topic == "/joint_states" and generator.random() < 0.01:
                shift_ns -= int(generator.integers(15, 400) * MS)  # the clock jumps back
            stamp_ns = now_ns + (shift_ns if topic == "/joint_states" else 0)
            stamp_ns += int(generator.integers(-8, 9) * MS)
            values = generator.normal(size=2).tolist()
            if generator.random() < 0.03:
                values[0] = float("nan")
            if topic == "/cue":
                rows.append((topic, POINT, now_ns, cdr(point(*values, stamp_ns=stamp_ns))))
                continue
            names = ["a", "b"] if generator.random() < 0.97 else ["a", "x"]
            message = joint_state(names, values, values, stamp_ns=stamp_ns)
            rows.append((topic, JOINT_STATE, now_ns, cdr(message)))
    for number, at_ms in enumerate(sorted(generator.integers(0, 3_000, 3).tolist())):
        text = cdr(ros(STRING)(f"task {number}"))
        rows.append(("/task", STRING, START_NS + at_ms * MS, text))
    for at_ms in sorted(generator.integers(0, 3_000, 4).tolist()):
        flag = cdr(ros(BOOL)(bool(generator.random() < 0.7)))
        rows.append(("/begin", BOOL, START_NS + at_ms * MS, flag))
    if generator.random() < 0.3:  # a silence so long that it is not gone through
        rows = [
            (*row[:2], row[2] + (row[2] > START_NS + 1_500 * MS) * 2 * SILENCE_NS, row[3])
            for row in rows
        ]
    return sorted(rows, key=lambda row: row[2])


def behind(path: Path, setting: Setting) -> tuple[list[Moment], list[Entry | None]]:
    """All moments, and the entry behind each."""
    source = BagSource(path)
    found, entries = [], []
    for moment in source.moments(setting):
        found.append(moment)
        entries.append(source.entry(moment))
    source.close()
    return found, entries


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("steps", ["rate", "recorded"])
def test_every_entry_gives_the_rest(seed: int, steps: str, tmp_path: Path) -> None:
    generator = np.random.default_rng([seed, steps == "rate"])
    path = write_mcap(tmp_path / "bag.mcap", recording(generator), chunk_size=2048)
    said = contract(generator)
    shapes = {o.key: o.shape for o in said.observations}
    ports = Ports(
        tuple(Port(key, key, shape) for key, shape in shapes.items()), Port("action", "a", (2,))
    )
    setting = Setting(said, ports, steps=steps, episodes=RULES[seed % len(RULES)])
    whole, entries = behind(path, setting)
    assert {bool(m.faults) for m in whole} >= {True}
    source = BagSource(path)
    cuts = sorted(generator.choice(len(whole), min(14, len(whole)), replace=False).tolist())
    for cut in cuts:
        entry = entries[cut]
        assert entry is not None
        rest = list(source.moments(setting, entry))
        assert len(rest) == len(whole) - cut - 1, cut
        for one, other in zip(rest, whole[cut + 1 :], strict=True):
            assert same(one, other), (cut, one, other)
            assert (one.jump, one.not_before_ns, one.inside) == (
                other.jump,
                other.not_before_ns,
                other.inside,
            )
            assert {k: repr(v) for k, v in one.ages_ms.items()} == {
                k: repr(v) for k, v in other.ages_ms.items()
            }
    source.close()


FORGETTABLE: dict[str, Any] = {"heard": {}, "since_ns": {}, "input_ns": 0, "not_before_ns": 0}


@pytest.mark.parametrize("name", FORGETTABLE)
def test_the_control_everything_in_an_entry_counts(name: str, tmp_path: Path) -> None:
    """Without one of its parts some moment of some recording differs."""
    for seed in range(30):
        generator = np.random.default_rng([seed, 7])
        path = write_mcap(tmp_path / f"{seed}.mcap", recording(generator), chunk_size=2048)
        ports = Ports(
            (Port("observation.state", "s", (4,)), Port("observation.cue", "c", (3,))),
            Port("action", "a", (2,)),
        )
        setting = Setting(Contract.from_dict(contract_dict()), ports, episodes=RULES[1])
        whole, entries = behind(path, setting)
        source = BagSource(path)
        for cut in range(5, len(whole) - 1, 9):
            entry = entries[cut]
            assert entry is not None
            poorer = dataclasses.replace(entry, **{name: FORGETTABLE[name]})
            rest = list(source.moments(setting, poorer))
            if not all(map(same, rest, whole[cut + 1 :])):
                source.close()
                return
        source.close()
    pytest.fail(f"nothing depends on {name}")


def test_jumps_are_told_against_the_highest_stamp_before_the_entry(tmp_path: Path) -> None:
    rows = []
    for number, stamp_ms in enumerate((100, 120, 114, 108, 130)):
        now_ns = START_NS + number * 20 * MS
        message = joint_state(
            ["a", "b"], [0.0, 0.0], [0.0, 0.0], stamp_ns=START_NS + stamp_ms * MS
        )
        rows.append(("/joint_states", JOINT_STATE, now_ns, cdr(message)))
    fields = contract_dict()
    fields["observations"] = fields["observations"][:1]
    ports = Ports((Port("observation.state", "s", (4,)),), Port("action", "a", (2,)))
    setting = Setting(Contract.from_dict(fields), ports)
    path = write_mcap(tmp_path / "bag.mcap", rows)
    whole, entries = behind(path, setting)
    # 108 is 12 ms before 120 and but 6 ms before 114, the one that an entry reads again.
    assert [bool(moment.jump) for moment in whole] == [False, False, False, True, False]
    source = BagSource(path)
    rest = list(source.moments(setting, entries[2]))
    source.close()
    assert [bool(moment.jump) for moment in rest] == [True, False]


def test_transforms_are_there_after_an_entry(tmp_path: Path) -> None:
    """One said once at the beginning, one that moves, and a clock that jumps back."""
    generator = np.random.default_rng(5)
    rows = []
    for number in range(120):
        now_ns = START_NS + number * 20 * MS
        stamp_ns = now_ns - (300 * MS if number >= 70 else 0)
        seen = pose(*(0.1 * generator.normal(size=6)))
        rows.append(("/tool", POSE, now_ns, tool(seen, "hand", stamp_ns)))
        if number % 4 == 0:
            moved = transforms(("eye", "hand", stamp_ns, pose(*generator.normal(size=6))))
            rows.append(("/tf", TF, now_ns, cdr(moved)))
        if number in (0, 1):
            fixed = transforms(("base", "eye" if number else "other", 0, pose(1, 2, 3, 0, 0, 0.5)))
            rows.append(("/tf_static", TF, now_ns, cdr(fixed)))
    part = {"topic": "tool", "type": POSE, "field": "pose", "frame_id": "base", "transform": True}
    part["names"] = ["x", "y", "z", "qx", "qy", "qz", "qw"]
    observation = {"key": "o", "max_age_ms": 100, "parts": [part]}
    fields = contract_dict(observations=[observation], start="unchecked", on_time_jump="hold")
    ports = Ports((Port("o", "o", (7,)),), Port("action", "a", (2,)))
    setting = Setting(Contract.from_dict(fields), ports)
    path = write_mcap(tmp_path / "bag.mcap", rows, chunk_size=1024)
    whole, entries = behind(path, setting)
    assert any(moment.jump for moment in whole)
    assert sum(bool(moment.observations) for moment in whole) > 60
    source = BagSource(path)
    for cut in (0, 3, 40, 69, 70, 71, 75, 110):
        rest = list(source.moments(setting, entries[cut]))
        assert len(rest) == len(whole) - cut - 1
        assert all(map(same, rest, whole[cut + 1 :])), cut
    forgetful = dataclasses.replace(entries[110], since_ns={})  # type: ignore[type-var]
    rest = list(source.moments(setting, forgetful))
    assert not all(map(same, rest, whole[111:])), "the control"
    source.close()
