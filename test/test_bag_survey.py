"""The survey counts what a contract will stumble over, and decodes what a strict reader refuses.

Each defect here was met in a public recording: trailing bytes, empty names, zero stamps, stamps
that go back, types without a definition, and definitions that no parser takes.
"""

from pathlib import Path

from bag_files import JOINT_STATE, PERIOD_NS, START_NS, joint_rows, joint_state, write_mcap

from flashrt_ros.bag.reader import BagReader
from flashrt_ros.bag.survey import survey, typestore


def defects(path: Path) -> list[str]:
    with BagReader(path) as bag:
        return survey(bag)[1]


def test_healthy_recording_has_no_defects(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", joint_rows(41))
    with BagReader(path) as bag:
        found, words = survey(bag)
    assert words == []
    assert found["/joints"].messages == 41
    assert abs(found["/joints"].rate_hz - 20.0) < 1e-6
    assert found["/joints"].longest_gap_ns == PERIOD_NS


def test_each_defect_is_counted_and_named(tmp_path: Path) -> None:
    payloads = [
        joint_state(0),
        joint_state(1) + bytes(5),
        joint_state(2) + bytes(9),
        joint_state(3, stamp_ns=0),
        joint_state(4, names=()),
        joint_state(5, stamp_ns=START_NS - 10**9),
        joint_state(6)[:40],
    ]
    rows = [("/joints", JOINT_STATE, START_NS + i, data) for i, data in enumerate(payloads)]
    assert defects(write_mcap(tmp_path / "a.mcap", rows)) == [
        "/joints: 2 of 7 messages with up to 9 trailing bytes",
        f"/joints: 1 of 7 messages do not fit {JOINT_STATE}",
        "/joints: 1 of 7 messages with a zero stamp",
        "/joints: 1 header stamps before the one before them",
        "/joints: 1 of 7 messages with empty names",
    ]


def test_padding_to_four_bytes_is_no_defect(tmp_path: Path) -> None:
    rows = [("/joints", JOINT_STATE, START_NS, joint_state(0) + bytes(3))]
    assert defects(write_mcap(tmp_path / "a.mcap", rows)) == []


def test_types_without_definition_are_named(tmp_path: Path) -> None:
    rows = [("/odd", "unheard_of/msg/Thing", 1, b"\0\1\0\0abcd"), *joint_rows(2)]
    assert defects(write_mcap(tmp_path / "a.mcap", rows)) == [
        "/odd: 1 messages of unheard_of/msg/Thing, which has no definition here"
    ]


def test_recorded_definitions_are_used_and_bad_ones_named(tmp_path: Path) -> None:
    schemas = {"own/msg/Pair": "float64 a\nfloat64 b", "own/msg/Bad": "float64 (a"}
    rows = [
        ("/pair", "own/msg/Pair", 1, b"\0\1\0\0" + bytes(16)),
        ("/bad", "own/msg/Bad", 2, b"\0\1\0\0" + bytes(16)),
    ]
    path = write_mcap(tmp_path / "a.mcap", rows, schemas=schemas)
    with BagReader(path) as bag:
        store, words = typestore(bag)
        assert "own/msg/Pair" in store.types
        assert [line.partition(":")[0] for line in words] == ["own/msg/Bad"]
        found, _ = survey(bag)
        assert not found["/pair"].no_definition
        assert found["/bad"].no_definition


def test_a_pause_between_bursts_is_no_gap(tmp_path: Path) -> None:
    twice = [row for row in joint_rows() for _ in range(2)]
    with BagReader(write_mcap(tmp_path / "twice.mcap", twice)) as bag:
        found, words = survey(bag)
    assert (found["/joints"].gaps, words) == (0, [])
    late = [
        (topic, kind, ns + 10**9 * (ns > START_NS + 10**9), cdr)
        for topic, kind, ns, cdr in twice[::2]
    ]
    with BagReader(write_mcap(tmp_path / "late.mcap", late)) as bag:
        assert survey(bag)[0]["/joints"].gaps == 1
