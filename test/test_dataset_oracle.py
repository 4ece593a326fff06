"""A data set that LeRobot wrote, frame by frame: what we read is what LeRobot reads.

Numbers must have equal bits. So must pictures: LeRobot finds the frame by its own code, and both
have it decoded by PyAV. torchvision has no video reader any more, which this version of LeRobot
asks for; the one here does what LeRobot expects of it and nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lerobot_oracle import oracle

from flashrt_ros.bench.lerobot_peer import allow_any_torchvision
from flashrt_ros.dataset.reader import DatasetReader

pytestmark = oracle
FPS, HEIGHT, WIDTH = 30, 64, 96
LENGTHS = (25, 40, 7)
TOP, WRIST = "observation.images.top", "observation.images.wrist"


class AvReader:
    """``torchvision.io.VideoReader`` as it was for PyAV."""

    def __init__(self, path: str, stream: str) -> None:
        import av

        assert stream == "video"
        self.container = av.open(path)
        self._stream = self.container.streams.video[0]

    def seek(self, time_s: float, keyframes_only: bool) -> None:
        assert keyframes_only
        place = round(time_s / self._stream.time_base)
        self.container.seek(place, backward=True, any_frame=False, stream=self._stream)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        for frame in self.container.decode(self._stream):
            data = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
            yield {"pts": float(frame.pts * frame.time_base), "data": data}


@pytest.fixture(params=["libsvtav1", "h264"])
def written(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The data set as LeRobot reads it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    allow_any_torchvision()
    torchvision = importlib.import_module("torchvision")
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    video_utils = importlib.import_module("lerobot.datasets.video_utils")
    io = SimpleNamespace(VideoReader=AvReader)
    double = SimpleNamespace(io=io, set_video_backend=lambda backend: None)
    if not hasattr(torchvision.io, "VideoReader"):
        monkeypatch.setattr(video_utils, "torchvision", double)
    names = ["height", "width", "channels"]
    joints = ["a", "b", "c", "d"]
    features = {
        "observation.state": {"dtype": "float32", "shape": (4,), "names": joints},
        "action": {"dtype": "float32", "shape": (4,), "names": joints},
        "table": {"dtype": "float64", "shape": (2, 3), "names": None},
        TOP: {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": names},
        WRIST: {"dtype": "image", "shape": (32, 48, 3), "names": names},
    }
    root = tmp_path / "set"
    data = module.LeRobotDataset.create(
        "someone/something", FPS, features, root=root, vcodec=request.param, video_backend="pyav"
    )
    generator = np.random.default_rng(5)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            picture[:, : step + 5] = (40 * episode + 30, 5 * step, 200)
            data.add_frame(
                {
                    "observation.state": generator.normal(size=4).astype(np.float32),
                    "action": generator.normal(size=4).astype(np.float32),
                    "table": generator.normal(size=(2, 3)),
                    TOP: picture,
                    WRIST: generator.integers(0, 256, (32, 48, 3), dtype=np.uint8),
                    "task": f"tâche {episode % 2}",
                }
            )
        data.save_episode(parallel_encoding=False)
    data.finalize()
    return module.LeRobotDataset("someone/something", root=root, video_backend="pyav")


def as_lerobot(pixels: np.ndarray) -> np.ndarray:
    """Bytes ``(H, W, C)`` to what LeRobot hands out."""
    chw: np.ndarray = np.moveaxis(pixels, 2, 0).astype(np.float32) / np.float32(255)
    return chw


def test_every_frame_is_what_lerobot_reads(written: Any) -> None:
    previous = None
    with DatasetReader(written.root) as data:
        frames = list(data.frames())
        assert len(frames) == len(written) == sum(LENGTHS)
        for frame, item in zip(frames, (written[n] for n in range(len(written))), strict=True):
            assert (frame.index, frame.episode) == (item["index"], item["episode_index"])
            assert frame.step == item["frame_index"]
            assert frame.task == item["task"]
            for key in ("observation.state", "action", "table"):
                # Doubles become single ones on their way through LeRobot.
                ours = frame.vectors[key].astype(np.float32)
                assert ours.tobytes() == item[key].numpy().tobytes(), key
            begin_ns = data.time_ns(data.episodes[frame.episode].start)
            assert (frame.time_ns - begin_ns) / 1e9 == pytest.approx(float(item["timestamp"]))
            for key in (TOP, WRIST):
                ours, theirs = as_lerobot(frame.image(key)), item[key].numpy()
                assert ours.tobytes() == theirs.tobytes(), (frame.index, key)
            if previous is not None:  # the neighbour would be seen
                assert previous.tobytes() != item[TOP].numpy().tobytes()
            previous = as_lerobot(frame.image(TOP))
        assert data.defects == []


def test_names_and_rate(written: Any) -> None:
    with DatasetReader(written.root) as data:
        assert data.info.fps == written.fps
        assert data.info.features["action"].names == tuple(written.features["action"]["names"])
        assert data.count == written.num_frames
        assert len(data.episodes) == written.num_episodes
