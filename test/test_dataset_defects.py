"""Damaged data sets: what is lost is named, with file and count, and the rest is read.

Silent loss is the danger: an evaluation over half of the episodes looks like one over all.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dataset_files import FPS, SIDE, TOP, change_rows, picture, write_dataset, write_video

from flashrt_ros.dataset.frame import Frame
from flashrt_ros.dataset.reader import DatasetReader
from flashrt_ros.errors import CheckpointError, CorruptError, NotFoundError, UnsupportedError

LENGTHS = (12, 30, 9)
FIRST, SECOND = "data/chunk-000/file-000.parquet", "data/chunk-000/file-001.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = f"videos/{TOP}/chunk-000/file-001.mp4"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "set", LENGTHS, image=False)


def read(root: Path, keys: list[str] | None = None) -> tuple[list[int], list[str]]:
    """Indices of the frames that can be read, and the defects."""
    with DatasetReader(root) as data:
        frames = [frame.index for frame in data.frames(keys)]
        first = data.defects
        list(data.frames(keys))
        assert data.defects == first, "read twice, told once"
        return frames, first


def picture_fault(frame: Frame) -> str:
    """Why a frame has no picture; empty where it has one."""
    try:
        frame.image(TOP)
    except CorruptError as error:
        return str(error)
    return ""


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def test_the_sound_data_set_has_none(root: Path) -> None:
    assert read(root) == (list(range(51)), [])


@pytest.mark.parametrize(("damage", "words"), [("missing", "missing"), ("cut", "cannot be read")])
def test_a_file_of_rows_is_lost(root: Path, damage: str, words: str) -> None:
    if damage == "missing":
        (root / SECOND).unlink()
    else:
        cut(root / SECOND, 0.6)
    frames, defects = read(root)
    assert frames == list(range(42))
    assert any(
        d.startswith(f"{SECOND}: {words}") and "episodes 2 to 2 are lost" in d for d in defects
    )
    assert "meta/info.json: promises 51 frames, the files hold 42" in defects


def test_no_rows_at_all(root: Path) -> None:
    cut(root / FIRST, 0.5)
    (root / SECOND).unlink()
    with pytest.raises(CorruptError, match=r"no rows that can be read: .*file-000.*file-001"):
        DatasetReader(root)


@pytest.mark.parametrize("damage", ["missing", "cut", "swapped"])
def test_a_lost_video_leaves_the_numbers(root: Path, damage: str) -> None:
    if damage == "missing":
        (root / VIDEO).unlink()
    elif damage == "cut":
        cut(root / VIDEO, 0.5)
    else:
        write_video(root / VIDEO, [picture(2, s) for s in range(4)], "mpeg4")
    with DatasetReader(root) as data:
        frames = list(data.frames())
        assert all(f.vectors.keys() == {"observation.state", "action"} for f in frames)
        faults = [words for frame in frames if (words := picture_fault(frame))]
        assert len(faults) == (5 if damage == "swapped" else 9)
        assert all(words.startswith(f"{VIDEO}: ") for words in faults)
        assert [d for d in data.defects if d.startswith(VIDEO)] == data.defects
        assert len(data.defects) == 1
        if damage == "swapped":
            assert "no picture at 0.200000 s, the last is at 0.150000 s" in data.defects[0]


def test_a_video_of_another_rate_shows_no_wrong_picture(root: Path) -> None:
    write_video(root / VIDEO, [picture(2, s) for s in range(30)], "mpeg4", fps=30)
    with DatasetReader(root) as data:
        faults = [picture_fault(frame) for frame in data.frames([TOP], 42)]
        assert data.defects[0] == f"{VIDEO}: 30 pictures a second, expected {FPS}"
    assert [step for step, words in enumerate(faults) if not words] == [
        0,
        2,
        4,
        6,
        8,
    ]  # there both meet
    assert all("no picture at" in words for words in faults if words)


def test_gaps_and_wrong_times_are_counted(root: Path) -> None:
    change_rows(root / FIRST, index=lambda v: v[:20] + [n + 3 for n in v[20:]])
    change_rows(root / SECOND, timestamp=lambda v: v[:5] + [t + 0.013 for t in v[5:]])
    _, defects = read(root, ["action"])
    assert "frames are missing: gaps in `index` (1, first at frame 23)" in defects
    assert "frames are there again: `index` goes back (1, first at frame 42)" in defects
    assert (
        "rows whose `index` is not where meta/episodes has them (22, first at frame 23)" in defects
    )
    assert "timestamps are not those of 20 frames a second (4, first at frame 47)" in defects


def test_a_timestamp_that_lies_elsewhere_is_kept(root: Path) -> None:
    change_rows(root / SECOND, timestamp=lambda v: [*v[:-1], 0.5])
    with DatasetReader(root) as data:
        times = [frame.time_ns for frame in data.frames(["action"], 42)]
    assert times[-2:] == [2_450_000_000, 2_600_000_000]


def test_values_that_are_missing_or_short(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", LENGTHS, video=False, image=False)
    table = pq.read_table(root / FIRST)
    values: list[Any] = table["action"].to_pylist()
    values[3], values[4], values[5] = None, [1.0, 2.0], [1.0, None, 3.0]
    place = table.schema.get_field_index("action")
    pq.write_table(table.set_column(place, "action", [values]), root / FIRST)
    with DatasetReader(root) as data:
        frames = list(data.frames(["action"]))
        assert data.defects == [
            "action: rows without a value that can be used (3, first at frame 3)"
        ]
    assert [f.faults.get("action", "") for f in frames[2:7]] == [
        "",
        "no value",
        "expected 3 elements, found 2",
        "numbers are missing",
        "",
    ]
    assert frames[6].vectors["action"].dtype == "float32"


def test_unknown_episodes_and_tasks(root: Path) -> None:
    change_rows(
        root / SECOND, task_index=lambda v: [7] * len(v), episode_index=lambda v: [5] * len(v)
    )
    _, defects = read(root, ["action"])
    assert "rows of episodes that meta/episodes lacks (9, first at frame 42)" in defects
    assert "rows of a task that meta/tasks.parquet lacks (9, first at frame 42)" in defects


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_without_meta_episodes_numbers_are_read(root: Path, damage: str) -> None:
    (root / EPISODES).unlink() if damage == "missing" else cut(root / EPISODES, 0.7)
    with DatasetReader(root) as data:
        frames = list(data.frames())
        assert len(frames) == 51
        assert [f.time_ns for f in frames] == [n * 10**9 // FPS for n in range(51)]
        with pytest.raises(CorruptError, match="meta/episodes names no video"):
            frames[0].image(TOP)
        assert data.defects[0].startswith("meta/episodes")


def test_without_tasks_their_texts_are_empty(root: Path) -> None:
    (root / "meta/tasks.parquet").unlink()
    with DatasetReader(root) as data:
        assert {frame.task for frame in data.frames(["action"])} == {""}
        assert data.defects == ["meta/tasks.parquet: missing: tasks are left empty"]


def test_a_damaged_picture_in_a_row(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", (4,), video=False)

    def damage(values: list[Any]) -> list[Any]:
        return [
            values[0],
            {"bytes": b"no picture", "path": ""},
            {"bytes": None, "path": "y"},
            None,
        ]

    change_rows(root / FIRST, observation__images__side=damage)
    with DatasetReader(root) as data:
        frames = list(data.frames([SIDE]))
    assert (frames[0].image(SIDE) == picture(0, 0)).all()
    for frame, words in zip(
        frames[1:], ("cannot be read", "no picture is", "no pict"), strict=True
    ):
        with pytest.raises(CorruptError, match=words):
            frame.image(SIDE)


def test_another_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    old = write_dataset(tmp_path / "old", (3,), video=False, codebase_version="v2.1")
    with pytest.raises(UnsupportedError, match=r"expected v3.0, found 'v2.1'; convert it: python"):
        DatasetReader(old)
    new = write_dataset(tmp_path / "new", (3,), video=False, codebase_version="v4.0")
    with pytest.raises(UnsupportedError, match=r"found 'v4.0'; this package reads no other"):
        DatasetReader(new)
    with pytest.raises(NotFoundError, match=r"expected a data set, .* meta/info\.json"):
        DatasetReader(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fps": 0}, "fps: expected a finite number of at least"),
        ({"features": []}, "features: expected an object"),
        (
            {"features": {"action": {"dtype": "float32", "shape": [0]}}},
            "'action': shape: expected",
        ),
        ({"data_path": "../{chunk_index}.parquet"}, "expected a file within the data set"),
        ({"data_path": "{episode}.parquet"}, "expected a pattern of file names"),
        ({"codebase_version": 3}, "codebase_version: expected a text"),
    ],
)
def test_hostile_info_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", (3,), video=False, **change)
    with pytest.raises((CheckpointError, CorruptError), match=re.escape(words)):
        DatasetReader(root)


def test_an_info_that_is_no_json(root: Path) -> None:
    (root / "meta/info.json").write_text(json.dumps({"fps": 20})[:-1])
    with pytest.raises(CheckpointError, match="expected JSON"):
        DatasetReader(root)
