"""Pins that it does not matter how a recording is kept, and that what is amiss in it is named.

The hash over all actions is that of the messages, not of the file around them; and of a recording
that was damaged, or that a driver filled with nonsense, the rest is evaluated and the damage told.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from bag_files import START_NS, float_message, write_mcap
from contract_examples import JOINT_STATE, cdr, joint_state
from evaluate_bags import (
    PERIOD_NS,
    Row,
    arm_rows,
    command,
    state,
    wave,
    write_contract,
    write_hold,
)
from mcap.writer import CompressionType
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options, Result

STEPS = 120
ROWS = arm_rows(STEPS, wave, lambda step: wave(step + 3))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    policy, contract = write_hold(tmp_path / "hold"), write_contract(tmp_path / "arm.yaml")
    options = Options((Candidate("hold", str(policy)),), str(contract))

    def evaluate(path: Path, **changes: object) -> Result:
        evaluator = Evaluator(dataclasses.replace(options, **changes))
        try:
            return evaluator.run(path)
        finally:
            evaluator.close()

    return evaluate


def write_rosbag(folder: Path, rows: list[Row], plugin: StoragePlugin, packed: str = "") -> Path:
    """A folder with metadata as rosbag2 writes it; ``packed``: ``file`` or ``message``."""
    store = get_typestore(Stores.ROS2_JAZZY)
    bag = Writer(folder, version=9, storage_plugin=plugin)
    if packed:
        bag.set_compression(CompressionMode[packed.upper()], CompressionFormat.ZSTD)
    with bag:
        connections = {
            topic: bag.add_connection(topic, kind, typestore=store)
            for topic, kind in {row[0]: row[1] for row in rows}.items()
        }
        for topic, _, time_ns, raw in rows:
            bag.write(connections[topic], time_ns, raw)
    return folder


def write_split(folder: Path, rows: list[Row]) -> Path:
    """Two files and metadata that list both."""
    half = len(rows) // 2
    write_rosbag(folder, rows, StoragePlugin.MCAP)
    whole = next(folder.glob("*.mcap"))
    second = whole.with_name("second.mcap")
    write_mcap(whole, rows[:half], chunk_size=900)
    write_mcap(second, rows[half:], chunk_size=900)
    metadata = folder / "metadata.yaml"
    listed = f"- {whole.name}"
    metadata.write_text(metadata.read_text().replace(listed, f"{listed}\n  - {second.name}"))
    assert second.name in metadata.read_text()
    return folder


def bare(folder: Path) -> Path:
    (folder / "metadata.yaml").unlink()
    return folder


def packed_file(path: Path) -> Path:
    packed = path.with_name(path.name + ".zstd")
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    return packed


PLAIN, LZ4, ZSTD = CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD
KEPT: dict[str, Callable[[Path], Path]] = {
    "chunks": lambda p: write_mcap(p / "a.mcap", ROWS, chunk_size=700, compression=PLAIN),
    "chunks, lz4": lambda p: write_mcap(p / "a.mcap", ROWS, chunk_size=700, compression=LZ4),
    "chunks, zstd": lambda p: write_mcap(p / "a.mcap", ROWS, chunk_size=9000, compression=ZSTD),
    "no chunks": lambda p: write_mcap(p / "a.mcap", ROWS, use_chunking=False),
    "no profile": lambda p: write_mcap(p / "a.mcap", ROWS, profile=""),
    "whole file, zstd": lambda p: packed_file(write_mcap(p / "a.mcap", ROWS)),
    "messages, zstd, mcap": lambda p: write_mcap(
        p / "a.mcap", [(*row[:3], zstandard.compress(row[3])) for row in ROWS]
    ),
    "mcap folder": lambda p: write_rosbag(p / "bag", ROWS, StoragePlugin.MCAP),
    "mcap folder, bare": lambda p: bare(write_rosbag(p / "bag", ROWS, StoragePlugin.MCAP)),
    "split": lambda p: write_split(p / "bag", ROWS),
    "sqlite": lambda p: write_rosbag(p / "bag", ROWS, StoragePlugin.SQLITE3),
    "sqlite, bare": lambda p: bare(write_rosbag(p / "bag", ROWS, StoragePlugin.SQLITE3)),
    "sqlite, messages": lambda p: write_rosbag(p / "b", ROWS, StoragePlugin.SQLITE3, "message"),
    "sqlite, file": lambda p: write_rosbag(p / "bag", ROWS, StoragePlugin.SQLITE3, "file"),
    "sqlite file": lambda p: next(
        write_rosbag(p / "bag", ROWS, StoragePlugin.SQLITE3).glob("*.db3")
    ),
}


@pytest.mark.parametrize("how", KEPT)
def test_the_hash_is_the_same_however_a_recording_is_kept(
    how: str, tmp_path: Path, run: Callable[..., Result]
) -> None:
    (tmp_path / "one").mkdir()
    reference = run(write_mcap(tmp_path / "one" / "a.mcap", ROWS)).tracks[0]
    assert reference.stepped_T.sum() == STEPS
    (tmp_path / "other").mkdir()
    result = run(KEPT[how](tmp_path / "other"))
    assert result.tracks[0].digest == reference.digest
    expected = ["metadata.yaml is missing (the recording was not closed)"] * ("bare" in how)
    assert list(result.source.defects) == expected
    assert sum(count for _, _, count in result.source.topics) == len(ROWS)


def changed(step: int, how: Callable[[bytes], bytes], topic: str = "/joint_states") -> list[Row]:
    """The recording with other bytes in one message."""
    rows = list(ROWS)
    place = [n for n, row in enumerate(rows) if row[0] == topic][step]
    rows[place] = (*rows[place][:3], how(rows[place][3]))
    return rows


def unnamed(step: int) -> bytes:
    return cdr(joint_state([], wave(step), stamp_ns=START_NS + step * PERIOD_NS))


ODD = ("/odd", "some_msgs/msg/Odd", START_NS + 5, b"\0\1\0\0\1\2\3\4")
EVENT = ("/add/_service_event", "some_msgs/srv/Add_Event", START_NS + 6, b"\0\1\0\0")
LOAD = ("/load", "std_msgs/msg/Float64", START_NS + 7, float_message(1.0) + b"\0" * 5)
DEFECTS: dict[str, tuple[list[Row], str, int]] = {
    "trailing bytes": (
        changed(9, lambda raw: raw + b"\0" * 5),
        "/joint_states: 1 of 120 messages with up to 5 trailing bytes",
        STEPS,
    ),
    "cut message": (
        changed(9, lambda raw: raw[:-7]),
        "/joint_states: 1 of 120 messages do not fit sensor_msgs/msg/JointState",
        STEPS - 1,
    ),
    "no names": (
        changed(9, lambda raw: unnamed(9)),
        "/joint_states: 1 of 120 messages with empty names",
        STEPS - 1,
    ),
    "zero stamps": (
        [state(row[2], wave(0), 0) if row[0] == "/joint_states" else row for row in ROWS],
        "/joint_states: 120 of 120 messages with a zero stamp",
        STEPS,
    ),
    "stamps that go back": (
        [*ROWS[:100], *(state(row[2], wave(0), START_NS) for row in ROWS[100:102])],
        "1 header stamps before the one before them",
        51,
    ),
    "names of others": (
        [command(row[2], (0.1, 0.2), ("c", "d")) if "command" in row[0] else row for row in ROWS],
        "joint_command: 120 messages could not be used, the first: expected ['a', 'b'], found on",
        STEPS,
    ),
    "gaps": (
        [
            row
            for row in ROWS
            if row[0] != "/joint_command" or not 30 <= (row[2] - START_NS) // PERIOD_NS < 60
        ],
        "/joint_command: 1 gaps, the longest of 0.62 s, where messages usually come every 19.9 ms",
        STEPS,
    ),
    "a type that nobody knows": (
        [*ROWS, ODD],
        "/odd: 1 messages of some_msgs/msg/Odd, which has no definition here; not looked at",
        STEPS,
    ),
    "service events": (
        [*ROWS, EVENT],
        "/add/_service_event: 1 service events; passed through undecoded",
        STEPS,
    ),
    "another type than the contract's": (
        [
            (row[0], "std_msgs/msg/String", *row[2:]) if "command" in row[0] else row
            for row in ROWS
        ],
        "/joint_command: recorded as std_msgs/msg/String, the contract expects sensor_msgs/msg/Jo",
        STEPS,
    ),
}


@pytest.mark.parametrize("what", DEFECTS)
def test_what_a_driver_did_wrong_is_named_and_the_rest_is_evaluated(
    what: str, tmp_path: Path, run: Callable[..., Result]
) -> None:
    rows, words, steps = DEFECTS[what]
    result = run(write_mcap(tmp_path / "a.mcap", rows))
    assert any(words in defect for defect in result.source.defects), result.source.defects
    assert result.tracks[0].stepped_T.sum() == steps
    assert not any(words in defect for defect in run(KEPT["chunks"](tmp_path)).source.defects)


def test_what_the_contract_does_not_read_is_looked_at_when_asked(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    path = write_mcap(tmp_path / "a.mcap", [*ROWS, LOAD])
    words = "/load: 1 of 1 messages with up to 5 trailing bytes"
    assert words in run(path, survey=True).source.defects
    assert words not in run(path).source.defects


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_of_a_cut_recording_all_up_to_the_cut_is_evaluated(
    share: float, tmp_path: Path, run: Callable[..., Result]
) -> None:
    path = write_mcap(tmp_path / "a.mcap", ROWS, chunk_size=1500)
    whole = run(path).tracks[0]
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    result = run(path)
    (track,) = result.tracks
    assert any("cut or unreadable" in words for words in result.source.defects)
    assert 5 < track.steps < STEPS or share > 0.9
    assert np.array_equal(track.predicted_TA, whole.predicted_TA[: track.steps])


def test_counts_that_differ_from_the_metadata_are_told(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    folder = write_rosbag(tmp_path / "bag", ROWS, StoragePlugin.MCAP)
    metadata = folder / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("message_count: 120", "message_count: 140"))
    result = run(folder)
    assert any("promises 140 messages, the files hold 120" in w for w in result.source.defects)


def test_recorded_commands_without_names_count_when_allowed(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    rows = [
        ("/joint_command", JOINT_STATE, row[2], unnamed(4)) if "command" in row[0] else row
        for row in ROWS
    ]
    path = write_mcap(tmp_path / "a.mcap", rows)
    refused = run(path)
    assert np.isnan(refused.tracks[0].recorded_TA).all()
    assert any("--unnamed-commands" in words for words in refused.source.defects)
    allowed = run(path, unnamed_commands=True).tracks[0]
    assert np.array_equal(allowed.recorded_TA[5], wave(4))


def test_a_recording_is_only_read(tmp_path: Path, run: Callable[..., Result]) -> None:
    folder = write_rosbag(tmp_path / "bag", ROWS, StoragePlugin.SQLITE3)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    run(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    shutil.rmtree(folder)
