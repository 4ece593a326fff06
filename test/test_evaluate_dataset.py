"""Data sets as sources: elements by name, pictures as on the robot, episodes as recorded.

An element in another's place gives figures that look right, so names are held against each other
in every way that they may differ; and a camera's picture must be, to the bit, what the same pixels
give in a message.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from act_files import write_act
from contract_examples import contract_dict
from dataset_files import FPS, JOINTS, SIDE, TOP, action, picture, state, write_dataset
from evaluate_bags import write_hold
from lerobot_files import feature

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.image.reader import ImageReader
from flashrt_ros.dataset.video import VideoFile
from flashrt_ros.errors import FlashRTError, InvalidArgumentError, NotFoundError
from flashrt_ros.evaluate.dataset_source import DatasetSource
from flashrt_ros.evaluate.episodes import EpisodeRule
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options
from flashrt_ros.evaluate.source import open_source
from flashrt_ros.evaluate.timeline import Entry, Moment, Setting
from flashrt_ros.runtime.policy import Port, Ports

LENGTHS = (12, 30, 9)
STATE_PORT = Port("observation.state", "state", (3,), JOINTS)
ACTION_PORT = Port("action", "action", (3,), JOINTS)
PORTS = Ports((STATE_PORT,), ACTION_PORT)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", LENGTHS)


def contract(names: Any = JOINTS, elements: Any = None, **observation: Any) -> Contract:
    """One state of three joints, one command, no start check."""
    fields = contract_dict(start="unchecked", control_rate_hz=float(FPS))
    part = {"topic": "joints", "type": "sensor_msgs/msg/JointState", "field": "position"}
    part |= {"names": list(names)} | ({"elements": list(elements)} if elements else {})
    first = {"key": "observation.state", "max_age_ms": 100, "parts": [part], **observation}
    fields["observations"] = [first]
    command = {**part, "topic": "command"}
    fields["actions"] = [command]
    return Contract.from_dict(fields)


def camera(key: str, steps: list[Any], **image: Any) -> Contract:
    fields = contract_dict(start="unchecked", control_rate_hz=float(FPS))
    kind = {"topic": "camera", "type": "sensor_msgs/msg/Image"}
    fields["observations"] = [
        {"key": key, "max_age_ms": 100, "image": {**kind, "steps": steps, **image}}
    ]
    fields["actions"][0] |= {"names": list(JOINTS)}
    for key in ("limits", "max_step"):
        del fields["actions"][0][key]
    return Contract.from_dict(fields)


def moments(root: Path, setting: Setting, entry: Entry | None = None) -> list[Moment]:
    source = DatasetSource(root)
    try:
        return list(source.moments(setting, entry))
    finally:
        source.close()


def test_a_policy_is_driven_over_a_data_set_without_a_contract(root: Path, tmp_path: Path) -> None:
    policy = write_hold(tmp_path / "hold", 3)
    evaluator = Evaluator(Options((Candidate("hold", str(policy)),)))
    first, second = (evaluator.run(root) for _ in range(2))
    evaluator.close()
    (track,) = first.tracks
    assert track.period_s == 1 / FPS
    assert track.names == JOINTS
    steps = [(e, s) for e, length in enumerate(LENGTHS) for s in range(length)]
    assert track.episode_T.tolist() == [episode for episode, _ in steps]
    assert (track.predicted_TA == [state(*step) for step in steps]).all()
    assert (track.recorded_TA == [action(*step) for step in steps]).all()
    assert (track.sent_TA == track.predicted_TA).all()
    assert track.digest == second.tracks[0].digest
    assert first.source.defects == ()
    assert {name: count for name, _, count in first.source.topics}["action"] == 51


def test_folders_are_told_apart(root: Path, tmp_path: Path) -> None:
    assert isinstance(open_source(root), DatasetSource)
    with pytest.raises(NotFoundError):
        open_source(tmp_path)


def test_times_tasks_and_the_measured_state(root: Path) -> None:
    found = moments(root, Setting(None, PORTS))
    assert [m.index for m in found] == list(range(51))
    assert [m.time_ns for m in found] == [n * 10**9 // FPS for n in range(51)]
    assert [m.task for m in found] == ["task 0"] * 12 + ["task 1"] * 30 + ["task 0"] * 9
    assert (found[20].state_A == state(1, 8)).all()
    assert found[20].ages_ms == {"observation.state": 0.0}
    assert found[20].not_before_ns == 600_000_000


@pytest.mark.parametrize("ends", ["", ".pos"])
def test_elements_go_by_name(ends: str, tmp_path: Path) -> None:
    recorded = [f"{name}{ends}" for name in ("wrist", "shoulder", "elbow")]
    root = write_dataset(tmp_path / "set", (4,), video=False, image=False, names=recorded)
    for setting in (Setting(None, PORTS), Setting(contract(), Ports((STATE_PORT,), ACTION_PORT))):
        (moment, *_) = moments(root, setting)
        # Element 0 of the policy is the shoulder, the second of the data set.
        assert (moment.observations["observation.state"] == state(0, 0)[[1, 2, 0]]).all()
        assert (moment.recorded_A == action(0, 0)[[1, 2, 0]]).all()
        assert (moment.state_A == state(0, 0)[[1, 2, 0]]).all()


def test_a_part_of_the_elements_is_found_by_name(root: Path) -> None:
    port = Port("observation.state", "state", (2,), ("wrist", "shoulder"))
    (moment, *_) = moments(root, Setting(None, Ports((port,), ACTION_PORT)))
    assert (moment.observations["observation.state"] == state(0, 0)[[2, 0]]).all()


def test_the_contract_translates_names(root: Path) -> None:
    ports = Ports(
        (Port("observation.state", "state", (3,), ("j0", "j1", "j2")),),
        Port("action", "action", (3,), ("j0", "j1", "j2")),
    )
    with pytest.raises(InvalidArgumentError, match=r"state: expected the elements \['j0'.*found"):
        moments(root, Setting(None, ports))
    said = contract(names=("wrist", "elbow", "shoulder"), elements=("j0", "j1", "j2"))
    (moment, *_) = moments(root, Setting(said, ports))
    assert (moment.observations["observation.state"] == state(0, 0)[::-1]).all()
    assert (moment.recorded_A == action(0, 0)[::-1]).all()


def test_without_names_position_counts_and_is_told(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", (4,), video=False, image=False, names=None)
    source = DatasetSource(root)
    (moment, *_) = source.moments(Setting(None, PORTS))
    assert (moment.observations["observation.state"] == state(0, 0)).all()
    assert "observation.state: no names in the data set: taken by position" in source.defects
    assert np.isnan(moment.state_A).all()  # what no name says is not known
    source.close()
    short = Ports((Port("observation.state", "state", (2,)),), ACTION_PORT)
    with pytest.raises(InvalidArgumentError, match="expected 2 elements for the policy, found 3"):
        moments(root, Setting(None, short))


def test_features_that_are_not_there(root: Path) -> None:
    extra = Port("observation.cue", "cue", (3,))
    with pytest.raises(
        NotFoundError, match=r"observation\.cue: the policy needs it, and the data"
    ):
        moments(root, Setting(None, Ports((STATE_PORT, extra), ACTION_PORT)))
    fields = contract_dict(start="unchecked")
    fields["observations"] = fields["observations"][1:]  # optional, with a flag, filled with -1
    said = Contract.from_dict(fields)
    ports = Ports((extra,), Port("action", "action", (2,), ("shoulder", "wrist")))
    (moment, *_) = moments(root, Setting(said, ports))
    assert moment.observations["observation.cue"].tolist() == [-1.0, -1.0, 0.0]
    assert moment.faults == ()


def test_the_start_check_gets_what_it_measures(root: Path, tmp_path: Path) -> None:
    fields = contract_dict(control_rate_hz=float(FPS))
    parts = {"topic": "joints", "type": "sensor_msgs/msg/JointState", "field": "position"}
    fields["observations"] = [
        {
            "key": "observation.state",
            "max_age_ms": 100,
            "parts": [{**parts, "names": list(JOINTS)}],
        }
    ]
    fields["actions"] = [{**parts, "topic": "command", "names": list(JOINTS)}]
    fields["start"] = {"measured": {**parts, "names": list(JOINTS)}, "max_distance": 0.3}
    said = Contract.from_dict(fields)
    (moment, *_) = moments(root, Setting(said, PORTS))
    assert moment.measured is not None
    assert (moment.measured == state(0, 0)).all()
    unnamed = write_dataset(tmp_path / "set", (4,), video=False, image=False, names=None)
    with pytest.raises(
        InvalidArgumentError, match=r"action elements \[0, 1, 2\].*start: unchecke"
    ):
        moments(unnamed, Setting(said, PORTS))


STEPS = [{"crop": [40, 40]}, {"resize": [24, 20], "antialias": True}]


@pytest.mark.parametrize("key", [TOP, SIDE])
@pytest.mark.parametrize("scale", ["unit", "byte"])
def test_pictures_go_the_way_of_the_contract(root: Path, key: str, scale: str) -> None:
    """Held against the same pixels in a message, through the robot's own reader."""
    said = camera(key, copy.deepcopy(STEPS), range=scale, color="bgr")
    port = Port(key, "image", (3, 24, 20))
    found = moments(root, Setting(said, Ports((port,), ACTION_PORT)))
    pixels = picture(1, 8)
    if key == TOP:
        video = VideoFile(root / f"videos/{TOP}/chunk-000/file-000.mp4")
        pixels = video.at(20 / FPS)
        video.close()
    height, width, _ = pixels.shape
    message = SimpleNamespace(
        encoding="rgb8",
        height=height,
        width=width,
        step=3 * width,
        is_bigendian=0,
        data=pixels.reshape(-1),
    )
    image = said.observations[0].image
    assert image is not None
    expected = ImageReader(image).frame(message).array()
    given = found[20].observations[key]
    assert given.dtype == expected.dtype
    assert given.tobytes() == expected.tobytes()
    assert given.tobytes() != found[21].observations[key].tobytes()


@pytest.mark.parametrize("as_bytes", [False, True])
def test_pictures_without_a_contract_go_straight(root: Path, as_bytes: bool) -> None:
    port = Port(SIDE, "image", (3, 48, 64))
    setting = Setting(
        None, Ports((port,), ACTION_PORT), byte_ports=frozenset({SIDE} if as_bytes else ())
    )
    image = moments(root, setting)[3].observations[SIDE]
    pixels = np.moveaxis(picture(0, 3), 2, 0)
    assert image.dtype == (np.uint8 if as_bytes else np.float32)
    expected = pixels if as_bytes else pixels.astype(np.float32) / np.float32(255)
    assert (image == expected).all()
    other = Port(SIDE, "image", (3, 24, 32))
    (moment, *_) = moments(root, Setting(None, Ports((other,), ACTION_PORT)))
    assert "expected pictures of (3, 24, 32)" in moment.faults[0]
    assert "a contract can say how to crop" in moment.faults[0]


def test_pictures_that_have_the_policys_size_already(root: Path) -> None:
    """The camera's are 480 x 640, those of the data set were made small when it was recorded."""
    said = camera(SIDE, [{"resize": [48, 64]}], size=[480, 640])
    port = Port(SIDE, "image", (3, 48, 64))
    source = DatasetSource(root)
    found = list(source.moments(Setting(said, Ports((port,), ACTION_PORT))))
    assert (found[3].observations[SIDE] * 255 == np.moveaxis(picture(0, 3), 2, 0)).all()
    assert any("the contract's steps are left out" in words for words in source.defects)
    source.close()


def test_a_missing_video_is_a_fault_of_those_steps(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", LENGTHS, image=False)
    (root / f"videos/{TOP}/chunk-000/file-001.mp4").unlink()
    port = Port(TOP, "image", (3, 48, 64))
    found = moments(root, Setting(None, Ports((STATE_PORT, port), ACTION_PORT)))
    assert [bool(m.faults) for m in found] == [False] * 42 + [True] * 9
    assert found[-1].faults == (f"{TOP}: videos/{TOP}/chunk-000/file-001.mp4: missing",)
    assert found[-1].observations.keys() == {"observation.state"}


@pytest.mark.parametrize("before", ["repeat", "wait"])
def test_histories_stay_within_their_episode(root: Path, before: str) -> None:
    period_ms = 2e3 / FPS  # every second frame
    said = contract(history={"steps": 3, "period_ms": period_ms, "before": before})
    ports = Ports((Port("observation.state", "state", (3, 3)),), ACTION_PORT)
    found = moments(root, Setting(said, ports))
    index = 12
    for episode, step in [(1, s) for s in range(30)]:
        moment = found[index + step]
        if before == "wait" and step < 4:
            assert "not all have come yet" in moment.faults[0]
            continue
        wanted = [state(episode, max(0, s)) for s in (step - 4, step - 2, step)]
        assert (moment.observations["observation.state"] == wanted).all()
    odd = contract(history={"steps": 2, "period_ms": 70.0, "before": before})
    with pytest.raises(InvalidArgumentError, match="expected a period of whole frames of 50 ms"):
        moments(root, Setting(odd, ports))


def test_entering_anywhere_gives_the_same_moments(root: Path) -> None:
    said = contract(history={"steps": 3, "period_ms": 2e3 / FPS, "before": "repeat"})
    setting = Setting(said, Ports((Port("observation.state", "state", (3, 3)),), ACTION_PORT))
    whole, entries = [], []
    source = DatasetSource(root)
    for moment in source.moments(setting):
        whole.append(moment)
        entries.append(source.entry(moment))
    source.close()
    for place in (0, 1, 11, 12, 13, 30, 41, 42, 50):
        rest = moments(root, setting, entries[place])
        assert [m.index for m in rest] == list(range(place + 1, 51))
        for a, b in zip(whole[place + 1 :], rest, strict=True):
            assert a.observations["observation.state"].tobytes() == (
                b.observations["observation.state"].tobytes()
            )
            assert (a.episode, a.time_ns, a.task) == (b.episode, b.time_ns, b.task)


def test_what_means_nothing_here_is_refused_or_told(root: Path) -> None:
    with pytest.raises(FlashRTError, match="--episodes: a data set has its own episodes"):
        moments(root, Setting(None, PORTS, episodes=EpisodeRule(gap_s=1.0)))
    fields = contract_dict(start="unchecked")
    assert fields["control_rate_hz"] == 50.0
    source = DatasetSource(root)
    faster = contract()
    list(source.moments(Setting(faster, PORTS)))
    assert source.defects == []
    object.__setattr__(faster, "control_rate_hz", 50.0)
    list(source.moments(Setting(faster, PORTS)))
    assert source.defects == [
        "20 frames a second, the contract's control rate is 50 Hz: one control step a frame"
    ]
    source.close()


def test_a_policy_with_a_camera_sees_what_a_session_by_hand_sees(tmp_path: Path) -> None:
    """ACT over rows and video, against steps made here: 0 to 1, channels first, as trained."""
    lengths = (6, 5)
    root = write_dataset(tmp_path / "set", lengths, image=False)
    inputs = {"observation.state": feature("STATE", 3), TOP: feature("VISUAL", 3, 48, 64)}
    directory = write_act(
        tmp_path / "act", input_features=inputs, output_features={"action": feature("ACTION", 3)}
    )
    evaluator = Evaluator(Options((Candidate("act", str(directory)),)))
    (track,) = evaluator.run(root).tracks
    session = evaluator.sessions["act"]
    video = VideoFile(root / f"videos/{TOP}/chunk-000/file-000.mp4")
    for index, (episode, step) in enumerate((e, s) for e in range(2) for s in range(lengths[e])):
        if not step:
            session.reset_()
        pixels = np.moveaxis(video.at(index / FPS), 2, 0).astype(np.float32)
        seen = {"observation.state": state(episode, step), TOP: pixels / np.float32(255)}
        values = session.step(seen).values.numpy()
        assert np.array_equal(values, track.predicted_TA[index])
    video.close()
    evaluator.close()
    assert len(np.unique(track.predicted_TA[:, 0])) == sum(lengths)
