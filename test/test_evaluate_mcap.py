"""The MCAP file of an evaluation, read back by the readers that people use.

Pinned: every topic's values and times are those of the track, under readers that know nothing but
the file; what was recorded comes through byte by byte; no file is ever overwritten; and the layout
names topics and elements that are in the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_files import START_NS, joint_rows, write_folder, write_mcap
from evaluate_tracks import track
from mcap.reader import make_reader
from rosbags.highlevel import AnyReader

from flashrt_ros.bag.reader import BagReader
from flashrt_ros.errors import AlreadyExistsError, StorageError
from flashrt_ros.evaluate import mcap_output
from flashrt_ros.evaluate.mcap_output import layout_path, topic_words
from flashrt_ros.evaluate.track import Track

Rows = dict[str, list[tuple[int, Any]]]


def by_mcap(path: Path) -> Rows:
    """Every message by topic, decoded by what the file itself says of its types."""
    decoding = pytest.importorskip("mcap_ros2.decoder")
    rows: Rows = {}
    with path.open("rb") as file:
        reader = make_reader(file, decoder_factories=[decoding.DecoderFactory()])
        for _, channel, message, decoded in reader.iter_decoded_messages():
            assert message.publish_time == message.log_time
            rows.setdefault(channel.topic, []).append((message.log_time, decoded))
    return rows


def by_rosbags(path: Path) -> Rows:
    rows: Rows = {}
    with AnyReader([path]) as reader:
        for connection, time_ns, data in reader.messages():
            message = reader.deserialize(data, connection.msgtype)
            rows.setdefault(connection.topic, []).append((time_ns, message))
    return rows


@pytest.fixture
def made() -> Track:
    found = track("act v2/best", steps=60)
    found.predicted_TA[40, 1] = np.nan
    found.chunks_CHA[-1, 5:] = np.nan
    return found


@pytest.mark.parametrize("read", [by_mcap, by_rosbags])
def test_readers_get_the_track_back(made: Track, tmp_path: Path, read: Any) -> None:
    path = tmp_path / "out" / "run.mcap"
    mcap_output.write_mcap(path, [made])
    rows, base = read(path), "/evaluation/act_v2_best"
    error_TA = made.predicted_TA - made.recorded_TA
    stepped = np.flatnonzero(made.stepped_T)
    for topic, values_TA, steps in (
        ("/evaluation/recorded", made.recorded_TA, np.arange(60)),
        (f"{base}/prediction", made.predicted_TA, stepped),
        (f"{base}/sent", made.sent_TA, stepped),
        (f"{base}/error", error_TA, stepped),
    ):
        assert [time_ns for time_ns, _ in rows[topic]] == made.time_ns_T[steps].tolist()
        found = np.array([message.position for _, message in rows[topic]])
        np.testing.assert_array_equal(found, values_TA[steps])
        time_ns, message = rows[topic][-1]
        assert list(message.name) == list(made.names)
        assert message.header.stamp.sec * 10**9 + message.header.stamp.nanosec == time_ns
    latency = [message.data for _, message in rows[f"{base}/latency_ms"]]
    np.testing.assert_array_equal(latency, made.latency_ms_T[stepped])
    ages = rows["/evaluation/age_ms/image_camera_image"]
    np.testing.assert_array_equal(
        [m.data for _, m in ages], made.ages_ms[list(made.ages_ms)[1]][4:]
    )
    faults = [(time_ns, m.msg, m.name) for time_ns, m in rows[f"{base}/fault"]]
    assert faults == [
        (int(made.time_ns_T[0]), "image (/camera/image): no message", made.policy),
        (int(made.time_ns_T[30]), "state (/joint_states): stale", made.policy),
    ]


@pytest.mark.parametrize("read", [by_mcap, by_rosbags])
def test_chunks_come_when_they_were_adopted(made: Track, tmp_path: Path, read: Any) -> None:
    made.chunk_adopted_C = made.chunk_start_C + 2
    mcap_output.write_mcap(tmp_path / "run.mcap", [made])
    chunks = read(tmp_path / "run.mcap")["/evaluation/act_v2_best/chunk"]
    assert [time_ns for time_ns, _ in chunks] == made.time_ns_T[made.chunk_adopted_C].tolist()
    _, first = chunks[0]
    assert (first.horizon, list(first.names)) == (20, list(made.names))
    assert first.period_s == made.period_s
    np.testing.assert_array_equal(np.reshape(first.data, (20, 3)), made.chunks_CHA[0])
    _, last = chunks[-1]
    assert last.horizon == 5  # without the rows that fill it up
    np.testing.assert_array_equal(np.reshape(last.data, (5, 3)), made.chunks_CHA[-1, :5])


def test_what_was_recorded_comes_through_byte_by_byte(made: Track, tmp_path: Path) -> None:
    bag = write_folder(tmp_path / "bag")
    odd = write_mcap(
        tmp_path / "odd.mcap",
        [("/odd", "nobody_msgs/msg/Knows", START_NS + 5, b"\0\1\0\0odd"), *joint_rows(3)],
    )
    for number, recording in enumerate((bag, odd)):
        path = tmp_path / f"run_{number}.mcap"
        with BagReader(recording) as reader:
            mcap_output.write_mcap(path, [made], reader)
        with BagReader(recording) as before, BagReader(path) as after:
            assert after.defects == []
            names = {topic.name for topic in before.topics}
            assert list(after.messages(names)) == list(before.messages())
            times = [message.time_ns for message in after.messages()]
        assert times == sorted(times)
        assert len(times) > 100


def test_topics_of_the_recording_are_never_mixed_with_ours(made: Track, tmp_path: Path) -> None:
    rows = [("/evaluation/recorded", *row[1:]) for row in joint_rows(3)]
    with BagReader(write_mcap(tmp_path / "odd.mcap", rows)) as reader:
        mcap_output.write_mcap(tmp_path / "run.mcap", [made], reader)
    counts = {name: len(found) for name, found in by_rosbags(tmp_path / "run.mcap").items()}
    assert counts["/evaluation/recorded"] == 3
    assert counts["/evaluation1/recorded"] == 60
    text = layout_path(tmp_path / "run.mcap").read_text()
    assert "/evaluation1/recorded.position[0]" in text


def test_a_layout_names_what_is_in_the_file(tmp_path: Path) -> None:
    tracks = [track(label, steps=30, joints=6) for label in ("a", "b", "a b", "a_b")]
    mcap_output.write_mcap(tmp_path / "run.mcap", tracks)
    rows = by_rosbags(tmp_path / "run.mcap")
    found = json.loads(layout_path(tmp_path / "run.mcap").read_text())
    panels = found["configById"]
    paths = [path["value"] for panel in panels.values() for path in panel.get("paths", ())]
    assert len(paths) == 6 * (1 + 4) + 6 * 4 + 4 + 2
    for path in paths:
        topic, _, field = path.partition(".")
        _, message = rows[topic][0]
        name, _, index = field.rstrip("]").partition("[")
        value = getattr(message, name)
        assert not index or 0 <= int(index) < len(value)
    for panel in panels.values():
        for key in ("topicPath", "topicToRender"):
            assert panel.get(key, "/evaluation/recorded") in rows

    def leaves(node: Any) -> list[str]:
        return [node] if isinstance(node, str) else leaves(node["first"]) + leaves(node["second"])

    tabs = panels[found["layout"]]["tabs"]
    used = [leaf for tab in tabs for leaf in leaves(tab["layout"])]
    assert sorted([*used, found["layout"]]) == sorted(panels)
    assert [tab["title"] for tab in tabs][:2] == ["values 1-4", "values 5-6"]


def test_nothing_foreign_is_overwritten_and_nothing_half_done_left(
    made: Track, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_mcap(tmp_path / "mine.mcap", joint_rows(3))
    before = path.read_bytes()
    with pytest.raises(AlreadyExistsError, match=r"mine\.mcap: exists, and no evaluation"):
        mcap_output.write_mcap(path, [made])
    assert path.read_bytes() == before

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mcap_output, "layout", fail)
    with pytest.raises(StorageError, match=r"other\.mcap: cannot be written: No space"):
        mcap_output.write_mcap(tmp_path / "other.mcap", [made])
    assert [each.name for each in tmp_path.iterdir()] == ["mine.mcap"]


def test_names_become_parts_of_topics() -> None:
    assert topic_words(["act", "a b", "_a__/b_", "3d", "", "é"]) == [
        *("act", "a_b", "a_b_2", "n3d", "unnamed", "unnamed_2")
    ]
