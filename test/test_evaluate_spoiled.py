"""Recordings that no recorder should write are evaluated all the same, and what is amiss is named.

Two types under one name, times before 1970, numbers as large as a float can be, metadata of
another shape: each cost the whole evaluation once, or gave figures of the wrong messages.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_files import START_NS, float_message, write_folder
from evaluate_bags import (
    NAMES,
    PERIOD_NS,
    Row,
    arm_rows,
    command,
    state,
    wave,
    write_contract,
    write_hold,
)
from mcap.writer import IndexType, Writer

from flashrt_ros.bag.mcap_file import CHUNK, RECORD
from flashrt_ros.bag.reader import BagReader
from flashrt_ros.errors import CorruptError
from flashrt_ros.evaluate import report
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options

FLOAT = "std_msgs/msg/Float64"
TOPICS = ("/joint_states", "/joint_command")


def write(path: Path, rows: list[Row]) -> Path:
    """A channel for each topic and type, so that one topic may have two."""
    with path.open("wb") as sink:
        writer = Writer(sink)
        writer.start("ros2", "test")
        channels: dict[tuple[str, str], int] = {}
        for topic, kind, log_ns, data in rows:
            if (topic, kind) not in channels:
                schema = writer.register_schema(kind, "", b"")
                channels[topic, kind] = writer.register_channel(topic, "cdr", schema)
            writer.add_message(channels[topic, kind], log_ns, data, log_ns)
        writer.finish()
    return path


def evaluate(folder: Path, rows: list[Row], **changes: Any) -> dict[str, Any]:
    """The report, as JSON would give it back, of a policy that commands what it reads."""
    contract = write_contract(folder / "contract.yaml")
    policy = write_hold(folder / "hold")
    options = Options((Candidate("hold", str(policy)),), str(contract), **changes)
    evaluator = Evaluator(options)
    try:
        result = evaluator.run(write(folder / "bag.mcap", rows))
        whole = report.make(options, evaluator.policies(), [result])
    finally:
        evaluator.close()
    found: dict[str, Any] = json.loads(json.dumps(whole, allow_nan=False))
    return found


@pytest.mark.parametrize("topic", ["/joint_states", "/joint_command", "joint_states"])
@pytest.mark.parametrize("other", [FLOAT, "zzz_msgs/msg/Unknown"])
def test_of_two_types_under_one_name_the_contracts_is_read(
    topic: str, other: str, tmp_path: Path
) -> None:
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    rows = arm_rows(40, wave, wave)
    strange = [(topic, other, START_NS + n * PERIOD_NS + 7, float_message(n)) for n in range(40)]
    without = evaluate(tmp_path / "without", rows)
    found = evaluate(tmp_path / "with", sorted(rows + strange, key=lambda row: row[2]))
    assert found["digest"] == without["digest"]
    assert found["runs"][0]["joints"] == without["runs"][0]["joints"]
    assert found["runs"][0]["joints"][0]["compared"] == 40
    assert any(f"recorded as {other}, the contract" in d for d in found["sources"][0]["defects"])


@pytest.mark.parametrize("value", [1.7e308, float("inf"), float("nan")])
@pytest.mark.filterwarnings("error")
def test_a_command_beyond_all_numbers_costs_its_own_figures_alone(
    value: float, tmp_path: Path
) -> None:
    rows = []
    for step in range(40):
        now_ns = START_NS + step * PERIOD_NS
        sent = (value if step in (20, 21) else 1.0, wave(step)[1])
        rows += [state(now_ns, wave(step)), command(now_ns, sent, NAMES)]
    found = evaluate(tmp_path, rows)
    one, other = found["runs"][0]["joints"]
    assert one["compared"] == (40 if value == 1.7e308 else 38)
    assert (one["rmse"] is None) == (value == 1.7e308)
    assert other["mae"] < 1e-6
    told = any(
        "2 commands hold values that are not finite" in d for d in found["sources"][0]["defects"]
    )
    assert told == (not np.isfinite(value))


def test_times_before_1970_are_read_as_they_stand(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bag", mcap=False)
    (path,) = folder.glob("*.db3")
    with sqlite3.connect(path) as base:
        base.execute("UPDATE messages SET timestamp = -5 WHERE id = 1")
    base.close()
    with BagReader(folder) as bag:
        times = [message.time_ns for message in bag.messages()]
        assert len(times) == bag.count
        assert (times[0], bag.span_ns[0]) == (-5, -5)


@pytest.mark.parametrize(
    "entry",
    ["relative_file_paths: 5", "topics_with_message_count: 7", "relative_file_paths: ['', null]"],
)
def test_metadata_of_another_shape_promise_nothing(entry: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bag")
    (folder / "metadata.yaml").write_text(f"rosbag2_bagfile_information: {{{entry}}}")
    with BagReader(folder) as bag:
        assert len(list(bag.messages())) == 40
    with pytest.raises(CorruptError, match="found neither"):
        BagReader("/dev/null")


@pytest.mark.parametrize("index", [True, False])
def test_times_in_chunk_headers_are_not_trusted(index: bool, tmp_path: Path) -> None:
    rows = arm_rows(40, wave, wave)
    path = tmp_path / "bag.mcap"
    with path.open("wb") as sink:
        writer = Writer(
            sink, chunk_size=1024, index_types=IndexType.ALL if index else IndexType.NONE
        )
        writer.start("ros2", "test")
        schema = writer.register_schema("sensor_msgs/msg/JointState", "", b"")
        channels = {name: writer.register_channel(name, "cdr", schema) for name in TOPICS}
        for topic, _, log_ns, data in rows:
            writer.add_message(channels[topic], log_ns, data, log_ns)
        writer.finish()
    with BagReader(path) as bag:
        assert bag.defects == []
        whole, span_ns = list(bag.messages()), bag.span_ns
    raw, position = bytearray(path.read_bytes()), 8
    while position + RECORD.size <= len(raw):
        opcode, length = RECORD.unpack_from(raw, position)
        if opcode == CHUNK:
            struct.pack_into("<QQ", raw, position + RECORD.size, 0, 0)
        position += RECORD.size + length
    path.write_bytes(raw)
    with BagReader(path) as bag:
        assert (list(bag.messages()), bag.span_ns) == (whole, span_ns)
        half_ns = START_NS + 20 * PERIOD_NS
        assert list(bag.messages(start_ns=half_ns)) == [m for m in whole if m.time_ns >= half_ns]
        assert any("chunks whose headers name other times" in words for words in bag.defects)
