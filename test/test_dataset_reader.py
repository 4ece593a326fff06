"""Data sets through their own files: the right numbers, the right picture, from any frame on.

A picture of the neighbouring frame looks right to everybody and spoils every figure; so each test
of pictures has pictures that differ from frame to frame, and a control that sees the neighbour.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from dataset_files import FPS, SIDE, TOP, action, picture, state, write_dataset

from flashrt_ros.dataset.reader import DatasetReader
from flashrt_ros.dataset.video import VideoFile
from flashrt_ros.errors import NotFoundError, UnsupportedError

LENGTHS = (12, 30, 9)
STARTS = (0, 12, 42)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", LENGTHS)


def nearest(pixels: np.ndarray) -> tuple[int, int]:
    """Episode and step whose picture is most like this one."""
    steps = [(e, s) for e, length in enumerate(LENGTHS) for s in range(length)]
    distances = [np.abs(pixels.astype(int) - picture(*step)).mean() for step in steps]
    return steps[int(np.argmin(distances))]


def test_numbers_tasks_and_times(root: Path) -> None:
    with DatasetReader(root) as data:
        frames = list(data.frames(["observation.state", "action"]))
        assert data.defects == []
        assert data.end_ns == 51 * 10**9 // FPS
    assert [frame.index for frame in frames] == list(range(51))
    for frame in frames:
        assert frame.index == STARTS[frame.episode] + frame.step
        assert frame.time_ns == frame.index * 10**9 // FPS
        assert frame.task == f"task {frame.episode % 2}"
        assert (
            frame.vectors["observation.state"].tobytes()
            == state(frame.episode, frame.step).tobytes()
        )
        assert (frame.vectors["action"] == action(frame.episode, frame.step)).all()


def test_each_picture_is_that_of_its_frame(root: Path) -> None:
    with DatasetReader(root) as data:
        for frame in data.frames([TOP, SIDE]):
            assert nearest(frame.image(TOP)) == (frame.episode, frame.step)
            assert (frame.image(SIDE) == picture(frame.episode, frame.step)).all()
        assert data.defects == []
    video = VideoFile(root / f"videos/{TOP}/chunk-000/file-000.mp4")
    assert nearest(video.at(21 / FPS)) == (1, 9)
    assert nearest(video.at(22 / FPS)) == (1, 10)  # a frame too late is seen
    video.close()


def test_any_start_gives_the_same_frames(root: Path) -> None:
    with DatasetReader(root) as data:
        whole = {f.index: f.image(TOP).tobytes() for f in data.frames([TOP])}
        assert len(set(whole.values())) == 51  # else a wrong one would not be seen
        for start in (0, 1, 11, 12, 13, 41, 42, 50):
            with DatasetReader(root) as other:
                rest = {f.index: f.image(TOP).tobytes() for f in other.frames([TOP], start)}
            assert rest == {index: data for index, data in whole.items() if index >= start}
        assert list(data.frames([TOP], 51)) == []


def test_pictures_in_any_order_are_the_same(root: Path) -> None:
    path = root / f"videos/{TOP}/chunk-000/file-000.mp4"
    count = 42
    straight = VideoFile(path)
    pictures = [straight.at(n / FPS).tobytes() for n in range(count)]
    assert len(set(pictures)) == count
    order = np.random.default_rng(3).permutation(count)
    assert [straight.at(n / FPS).tobytes() for n in order] == [pictures[n] for n in order]
    # The same one twice, and one that follows at once.
    assert [straight.at(n / FPS).tobytes() for n in (7, 7, 8)] == [pictures[n] for n in (7, 7, 8)]
    straight.close()


def test_pictures_are_decoded_only_when_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    found = VideoFile.at

    def at(self: VideoFile, time_s: float) -> np.ndarray:
        asked.append(time_s)
        return found(self, time_s)

    monkeypatch.setattr(VideoFile, "at", at)
    with DatasetReader(root) as data:
        frames = list(data.frames([TOP]))
        assert asked == []
        frames[13].image(TOP)
    assert asked == [pytest.approx(13 / FPS)]


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_codecs_that_lerobot_writes(codec: str, tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", LENGTHS, codec=codec, image=False)
    with DatasetReader(root) as data:
        for frame in data.frames([TOP]):
            assert nearest(frame.image(TOP)) == (frame.episode, frame.step)
        assert data.defects == []


def test_features_are_chosen_by_name(root: Path) -> None:
    with DatasetReader(root) as data:
        assert set(next(data.frames()).vectors) == {"observation.state", "action"}
        with pytest.raises(NotFoundError, match=r"no feature 'state'; it has action, observation"):
            next(data.frames(["state"]))


def test_distances_and_texts_are_refused(tmp_path: Path) -> None:
    depth = {"dtype": "video", "shape": [48, 64, 1], "info": {"is_depth_map": True}}
    features = {"depth": depth, "words": {"dtype": "string", "shape": [1]}}
    root = write_dataset(tmp_path / "set", (3,), video=False, image=False, features=features)
    with DatasetReader(root) as data:
        with pytest.raises(UnsupportedError, match="depth: expected numbers or colors, found pic"):
            next(data.frames(["depth"]))
        with pytest.raises(UnsupportedError, match="words: expected numbers or colors, found str"):
            next(data.frames(["words"]))
        assert next(data.frames()).vectors == {}


@pytest.mark.parametrize("package", ["pyarrow", "av"])
def test_a_missing_library_is_named_with_its_cure(
    package: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet" if package == "pyarrow" else "av", None)
    with pytest.raises(
        UnsupportedError, match=rf"{package}: pip install 'flashrt_ros\[datasets\]"
    ):
        with DatasetReader(root) as data:
            next(data.frames([TOP])).image(TOP)
