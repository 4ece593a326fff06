"""The bag reader gives every message that is still there, and names everything that is not.

Real recordings are cut, never closed, mislabelled or partly of unknown types; a reader that
refuses them whole, or quietly gives fewer messages, makes an evaluation wrong. Healthy recordings
are compared with what rosbags' own reader gives.
"""

import re
import sqlite3
import struct
from pathlib import Path

import pytest
import zstandard
from bag_files import (
    JOINT_STATE,
    PERIOD_NS,
    START_NS,
    float_message,
    joint_rows,
    joint_state,
    write_folder,
    write_mcap,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType
from rosbags.rosbag2 import Reader

from flashrt_ros.bag.reader import BagReader
from flashrt_ros.errors import CorruptError, NotFoundError


def all_messages(path: Path) -> list[tuple[str, int, bytes]]:
    with BagReader(path) as bag:
        return [(message.topic, message.time_ns, message.cdr) for message in bag.messages()]


@pytest.mark.parametrize("mcap", [True, False])
def test_healthy_recording_gives_what_rosbags_gives(tmp_path: Path, mcap: bool) -> None:
    folder = write_folder(tmp_path / "bag", mcap=mcap)
    with Reader(folder) as oracle:
        expected = [(c.topic, t, bytes(raw)) for c, t, raw in oracle.messages(oracle.connections)]
    assert len(expected) == 40
    assert all_messages(folder) == expected
    storage = next(path for path in folder.iterdir() if path.suffix in {".mcap", ".db3"})
    assert all_messages(storage) == expected
    with BagReader(folder) as bag:
        assert bag.defects == []
        assert [(t.name, t.type, t.count) for t in bag.topics] == [
            ("/joints", JOINT_STATE, 20),
            ("/load", "std_msgs/msg/Float64", 20),
        ]


@pytest.mark.parametrize("mcap", [True, False])
def test_topics_and_start_select(tmp_path: Path, mcap: bool) -> None:
    folder = write_folder(tmp_path / "bag", mcap=mcap)
    start_ns = START_NS + 5 * PERIOD_NS
    with BagReader(folder) as bag:
        chosen = list(bag.messages({"/joints"}, start_ns))
        assert [message.cdr for message in chosen] == [joint_state(i) for i in range(5, 20)]
        assert {message.type for message in chosen} == {JOINT_STATE}
        with pytest.raises(NotFoundError, match=r"no topic /nothing; it has /joints, /load"):
            list(bag.messages({"/nothing"}))


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize(
    "compression", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD]
)
def test_messages_come_in_order_of_time(
    tmp_path: Path, compression: CompressionType, chunked: bool
) -> None:
    rows = joint_rows()
    shuffled = [rows[(index * 7) % len(rows)] for index in range(len(rows))]
    path = write_mcap(tmp_path / "a.mcap", shuffled, compression=compression, use_chunking=chunked)
    assert all_messages(path) == [(topic, time, data) for topic, _, time, data in rows]


@pytest.mark.parametrize("compression", [CompressionType.LZ4, CompressionType.ZSTD])
def test_cut_file_is_read_up_to_the_cut(tmp_path: Path, compression: CompressionType) -> None:
    rows = joint_rows(400)
    path = write_mcap(tmp_path / "a.mcap", rows, compression=compression)
    whole = all_messages(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with BagReader(path) as bag:
        read = [(m.topic, m.time_ns, m.cdr) for m in bag.messages()]
        assert bag.count == len(read)
        assert any("cut or unreadable" in words for words in bag.defects)
    assert len(whole) // 4 < len(read) < len(whole)
    assert read == whole[: len(read)]


@pytest.mark.parametrize("compression", list(CompressionType))
def test_a_cut_chunk_says_what_of_it_was_saved(
    tmp_path: Path, compression: CompressionType
) -> None:
    # One chunk: nothing but what is saved of it can be read.
    rows = joint_rows(4000)
    path = write_mcap(tmp_path / "a.mcap", rows, compression=compression, chunk_size=1 << 22)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3])
    with BagReader(path) as bag:
        read = [(m.topic, m.time_ns, m.cdr) for m in bag.messages()]
        (words,) = bag.defects
        assert "cut or unreadable within the chunk from byte" in words
        of_chunk, up_to_s = re.search(r"; (\d+) messages of .* up to ([\d.]+) s", words).groups()
        assert int(of_chunk) == len(read) > 100
        assert float(up_to_s) == pytest.approx((read[-1][1] - read[0][1]) / 1e9, abs=1e-3)
        assert bag.span_ns == (read[0][1], read[-1][1])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(min_value=8, max_value=6000))
def test_any_cut_gives_a_prefix_and_a_word(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.mcap"
    write_mcap(path, joint_rows(60), compression=CompressionType.NONE)
    data = path.read_bytes()
    expected = [(topic, time, cdr) for topic, _, time, cdr in joint_rows(60)]
    path.write_bytes(data[: min(cut, len(data) - 20)])
    with BagReader(path) as bag:
        read = [(m.topic, m.time_ns, m.cdr) for m in bag.messages()]
        assert bag.defects
    assert read == expected[: len(read)]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(position=st.integers(min_value=8), value=st.integers(min_value=0, max_value=255))
def test_a_damaged_byte_never_escapes_as_another_error(
    tmp_path: Path, position: int, value: int
) -> None:
    path = write_mcap(tmp_path / "a.mcap", joint_rows(60))
    data = bytearray(path.read_bytes())
    data[8 + position % (len(data) - 8)] = value
    path.write_bytes(data)
    known = {cdr for _, _, _, cdr in joint_rows(60)}
    with BagReader(path) as bag:
        for message in bag.messages():
            # Chunks carry checksums: a changed message must not be taken for a recorded one.
            assert message.cdr in known


def test_one_damaged_chunk_leaves_the_others(tmp_path: Path) -> None:
    rows = joint_rows(400)
    path = write_mcap(tmp_path / "a.mcap", rows, compression=CompressionType.NONE)
    data = bytearray(path.read_bytes())
    position = data.find(joint_state(200))
    data[position + 30] ^= 0xFF
    path.write_bytes(data)
    with BagReader(path) as bag:
        read = {message.cdr for message in bag.messages()}
        assert any("left out: its checksum differs" in words for words in bag.defects)
    assert joint_state(200) not in read
    assert {joint_state(0), joint_state(399)} <= read
    assert len(read) > 380


def test_service_events_and_unknown_types_pass_through(tmp_path: Path) -> None:
    rows = [
        ("/add/_service_event", "pkg/srv/Add_Event", START_NS, b"\0\1\0\0abc"),
        ("/odd", "unheard_of/msg/Thing", START_NS + 1, b"\0\1\0\0xyz"),
        *joint_rows(3),
    ]
    broken = {"pkg/srv/Add_Event": "MSG: pkg/srv/Add_Event\nthis is no definition ("}
    path = write_mcap(tmp_path / "a.mcap", rows, schemas=broken)
    with BagReader(path) as bag:
        assert bag.count == 5
        assert {message.cdr for message in bag.messages()} >= {rows[0][3], rows[1][3]}
        assert bag.defects == ["/add/_service_event: 1 service events; passed through undecoded"]


def test_other_encodings_and_profiles(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", joint_rows(4), encoding="json", profile="")
    with BagReader(path) as bag:
        assert list(bag.messages()) == []
        assert bag.defects == ["/joints: 4 messages in 'json', expected 'cdr'; left out"]
    assert len(all_messages(write_mcap(tmp_path / "b.mcap", joint_rows(4), profile=""))) == 4


@pytest.mark.parametrize("mcap", [True, False])
def test_counts_are_compared_with_the_metadata(tmp_path: Path, mcap: bool) -> None:
    folder = write_folder(tmp_path / "bag", mcap=mcap)
    metadata = folder / "metadata.yaml"
    text = metadata.read_text()
    assert text.count("message_count: 20") == 2
    metadata.write_text(text.replace("message_count: 20", "message_count: 31", 1))
    with BagReader(folder) as bag:
        assert bag.count == 40
        assert bag.defects == ["/joints: metadata.yaml promises 31 messages, the files hold 20"]


def test_qos_text_that_differs_loses_nothing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bag", mcap=False)
    base = sqlite3.connect(next(folder.glob("*.db3")))
    base.execute("UPDATE topics SET offered_qos_profiles = '- history: 1'")
    base.commit()
    base.close()
    assert len(all_messages(folder)) == 40


def test_missing_metadata_and_missing_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bag")
    (folder / "metadata.yaml").rename(tmp_path / "kept.yaml")
    with BagReader(folder) as bag:
        assert bag.count == 40
        assert bag.defects == ["metadata.yaml is missing (the recording was not closed)"]
    (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: [")
    with BagReader(folder) as bag:
        assert bag.count == 40
        assert "metadata.yaml is unreadable" in bag.defects[0]
    text = (tmp_path / "kept.yaml").read_text()
    (folder / "metadata.yaml").write_text(text.replace("bag.mcap", "other.mcap"))
    with BagReader(folder) as bag:
        assert bag.count == 40
        assert "other.mcap: listed in metadata.yaml, but missing" in bag.defects
        assert "bag.mcap: not listed in metadata.yaml; read all the same" in bag.defects


def test_one_bad_file_of_several_leaves_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    folder.mkdir()
    rows = joint_rows(20)
    write_mcap(folder / "bag_0.mcap", rows[::2])
    write_mcap(folder / "bag_1.mcap", rows[1::2])
    (folder / "bag_2.mcap").write_bytes(b"not a recording")
    with BagReader(folder) as bag:
        assert [message.cdr for message in bag.messages()] == [row[3] for row in rows]
        assert any("bag_2.mcap: expected an MCAP file" in words for words in bag.defects)


def test_old_type_names_are_read_as_long_ones(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", [("/x", "std_msgs/Float64", 1, float_message(2.0))])
    with BagReader(path) as bag:
        assert bag.topics[0].type == "std_msgs/msg/Float64"


def test_whole_file_and_message_compression(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bag", mcap=False)
    expected = all_messages(folder)
    file = next(folder.glob("*.db3"))
    packed = tmp_path / "bag.db3.zstd"
    packed.write_bytes(zstandard.compress(file.read_bytes()))
    assert all_messages(packed) == expected
    base = sqlite3.connect(file)
    for key, data in base.execute("SELECT id, data FROM messages").fetchall():
        row = (zstandard.compress(data), key)
        base.execute("UPDATE messages SET data = ? WHERE id = ?", row)
    base.commit()
    base.close()
    metadata = folder / "metadata.yaml"
    lines = metadata.read_text().splitlines()
    lines = [line for line in lines if "compression_" not in line]
    lines += ["  compression_format: zstd", "  compression_mode: MESSAGE"]
    metadata.write_text("\n".join(lines))
    assert all_messages(folder) == expected


def test_a_damaged_place_of_an_sqlite_file_is_read_around(tmp_path: Path) -> None:
    file = next(write_folder(tmp_path / "bag", mcap=False, count=400).glob("*.db3"))
    expected = all_messages(file)
    data = bytearray(file.read_bytes())
    page = struct.unpack_from(">H", data, 16)[0]
    leaves = [at for at in range(0, len(data), page) if data[at] == 13]  # of tables
    place = leaves[len(leaves) // 2]
    data[place : place + page] = b"\xff" * page
    file.write_bytes(data)
    with BagReader(file) as bag:
        read = [(m.topic, m.time_ns, m.cdr) for m in bag.messages()]
        assert bag.count == len(read)
        (words,) = bag.defects  # once
        assert "damaged (" in words
        assert f"{len(read)} messages saved, up to" in words
    assert len(expected) - 100 < len(read) < len(expected)
    assert read == [message for message in expected if message in set(read)]
    assert read[-1] == expected[-1]  # also what lies behind it


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_cut_sqlite_file_is_read_up_to_the_cut(tmp_path: Path, share: float) -> None:
    file = next(write_folder(tmp_path / "bag", mcap=False, count=800).glob("*.db3"))
    expected, size = all_messages(file), file.stat().st_size
    with file.open("r+b") as end:
        end.truncate(int(size * share))
    with BagReader(file) as bag:
        read = [(m.topic, m.time_ns, m.cdr) for m in bag.messages()]
        assert bag.count == len(read)
        (words,) = bag.defects
        assert f"cut ({int(size * share)} of {size} bytes are there)" in words
    assert len(expected) * share / 3 < len(read) < len(expected)
    assert read == expected[: len(read)]


def test_messages_in_the_write_ahead_log_are_read(tmp_path: Path) -> None:
    file = next(write_folder(tmp_path / "bag", mcap=False).glob("*.db3"))
    recorder = sqlite3.connect(file)
    recorder.execute("PRAGMA journal_mode=WAL")
    recorder.execute(
        "INSERT INTO messages(topic_id, timestamp, data) VALUES (1, ?, ?)",
        (START_NS + 10**10, b"\0\1\0\0last"),
    )
    recorder.commit()
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in (file.name, file.name + "-wal"):
        (killed / name).write_bytes((file.parent / name).read_bytes())
    recorder.close()
    with BagReader(killed / file.name) as bag:
        assert bag.count == 41
        assert any("not closed by its recorder" in words for words in bag.defects)


def test_refusals_say_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such recording"):
        BagReader(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"expected \.mcap or \.db3 files in it"):
        BagReader(tmp_path / "empty")
    ros1 = tmp_path / "old.bag"
    ros1.write_bytes(b"#ROSBAG V2.0\n")
    with pytest.raises(CorruptError, match="rosbags-convert"):
        BagReader(ros1)
    text = tmp_path / "a.db3"
    text.write_text("hello")
    with pytest.raises(CorruptError, match=r"expected (an SQLite|a) recording"):
        BagReader(text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE topics SET type = NULL WHERE name = '/load'", "damaged row among the topics"),
        ("UPDATE topics SET name = 7.5 WHERE name = '/load'", "damaged row among the topics"),
        ("UPDATE messages SET data = 'text' WHERE topic_id = 2", "rows that are no messages"),
        # As a number of bytes this would take all of the memory.
        ("UPDATE messages SET data = 1 << 60 WHERE topic_id = 2", "rows that are no messages"),
        ("UPDATE messages SET timestamp = 'then' WHERE topic_id = 2", "rows that are no messages"),
    ],
)
def test_other_values_than_a_recorder_writes_are_left_out(
    tmp_path: Path, damage: str, words: str
) -> None:
    (file,) = write_folder(tmp_path / "bag", mcap=False).glob("*.db3")
    with sqlite3.connect(file) as base:
        # A column of a declared type would turn numbers into text.
        base.execute("ALTER TABLE topics RENAME TO declared")
        base.execute("CREATE TABLE topics AS SELECT * FROM declared WHERE 0")
        names = [row[1] for row in base.execute("PRAGMA table_info(declared)")]
        base.execute("DROP TABLE topics")
        base.execute(f"CREATE TABLE topics ({', '.join(names)})")
        base.execute("INSERT INTO topics SELECT * FROM declared")
        base.execute(damage)
    base.close()
    with BagReader(file) as bag:
        read = list(bag.messages())
        assert {message.topic for message in read} == {"/joints"}
        assert len(read) == 20
        assert any(words in defect for defect in bag.defects)


def test_text_that_is_no_utf8_does_not_end_the_reading(tmp_path: Path) -> None:
    (file,) = write_folder(tmp_path / "bag", mcap=False).glob("*.db3")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"serialization_format", b"serialization_form\xff\xff"))
    with pytest.raises(CorruptError, match="expected a recording's tables"):
        BagReader(file)
    file.write_bytes(content.replace(b"/loadstd_msgs", b"/loa\xffstd_msgs"))
    with BagReader(file) as bag:
        assert "/loa\ufffd" in {topic.name for topic in bag.topics}


@pytest.mark.parametrize("suffix", [".mcap", ".db3"])
def test_an_empty_file_is_called_empty(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.touch()
    with pytest.raises(CorruptError, match="is empty: the recorder has written nothing"):
        BagReader(path)
