"""``meta/info.json``: what a data set says of itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.errors import CheckpointError, NotFoundError, UnsupportedError
from flashrt_ros.policies.lerobot.json_file import read_object
from flashrt_ros.policies.lerobot.recording import element_names
from flashrt_ros.policies.lerobot.settings import Settings
from flashrt_ros.runtime.strict_json import shown

INFO = "meta/info.json"
IMAGES = ("video", "image")
"""Types of features whose values are pictures."""
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every data set has beside its features."""
_NUMBERS = re.compile(r"float(16|32|64)|u?int(8|16|32|64)|bool")
_CONVERT = (
    "convert it: python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=NAME "
    "--root=FOLDER --push-to-hub=false (LeRobot 0.4 or 0.5)"
)


@dataclass(frozen=True)
class Feature:
    """One column.

    Attributes:
        key: Such as ``observation.state``.
        dtype: Of the elements, or ``video``, or ``image``.
        shape: As written; of pictures in the order that ``names`` says.
        names: Of the elements of a vector, empty where there are none.
        depth: It measures distances, in a code of LeRobot's own.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    depth: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether its values are pictures."""
        return self.dtype in IMAGES

    @property
    def is_vector(self) -> bool:
        """Whether its values are numbers."""
        return _NUMBERS.fullmatch(self.dtype) is not None


@dataclass(frozen=True)
class Info:
    """The whole file.

    Attributes:
        path: The data set's folder.
        fps: Frames a second.
        features: By key, those of ``BOOKKEEPING`` left out.
        total_episodes: As promised; None: not said.
        total_frames: As promised; None: not said.
        data_path: Pattern of the files with numbers.
        video_path: Pattern of the videos; empty where there are none.
        version: Such as ``v3.0``.
    """

    path: Path
    fps: float
    features: Mapping[str, Feature]
    total_episodes: int | None
    total_frames: int | None
    data_path: str
    video_path: str
    version: str

    def file(self, pattern: str, **numbers: object) -> Path:
        """Returns a file of the data set.

        Raises:
            CheckpointError: The pattern is none, or leads out of the data set.
        """
        where = f"{self.path / INFO}: {shown(pattern)}"
        try:
            path = (self.path / pattern.format(**numbers)).resolve()
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            raise CheckpointError(f"{where}: expected a pattern of file names: {error}") from None
        if not path.is_relative_to(self.path.resolve()):
            raise CheckpointError(f"{where}: expected a file within the data set, found {path}")
        return path


def is_dataset(path: Path) -> bool:
    """Whether a folder says that it is a data set, of whatever version."""
    return (path / INFO).is_file()


def read_info(path: Path) -> Info:
    """Reads ``meta/info.json`` of a data set's folder.

    Raises:
        NotFoundError: There is none.
        UnsupportedError: Another version; with what to do.
        CheckpointError: A key is missing or wrong.
    """
    if not is_dataset(path):
        raise NotFoundError(f"{path}: expected a data set, that is a folder with {INFO}")
    settings = Settings(str(path / INFO), read_object(path / INFO))
    version = settings.word("codebase_version")
    match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)*", version)
    if match is None or match[1] != "3":
        old = match is not None and int(match[1]) < 3
        raise UnsupportedError(
            f"{path / INFO}: codebase_version: expected v3.0, found {version!r}; "
            + (_CONVERT if old else "this package reads no other version")
        )
    fps = settings.number("fps", at_least=0.01)
    entries = settings.mapping("features")
    features = {
        key: _feature(f"{settings.where}: features: {key!r}", key, entries[key])
        for key in entries
        if key not in BOOKKEEPING
    }
    info = Info(
        path,
        fps,
        features,
        settings.integer("total_episodes", None, at_most=2**53),
        settings.integer("total_frames", None, at_most=2**53),
        settings.word("data_path"),
        settings.word("video_path", None) or "",
        version,
    )
    info.file(info.data_path, chunk_index=0, file_index=0)
    for key in (key for key, feature in features.items() if feature.dtype == "video"):
        info.file(info.video_path, video_key=key, chunk_index=0, file_index=0)
    return info


def _feature(where: str, key: str, value: Any) -> Feature:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{where}: expected an object, found {shown(value)}")
    settings = Settings(where, value)
    dtype = settings.word("dtype")
    shape = settings.integers("shape", (), at_least=1)
    names = () if dtype in IMAGES else element_names(where, value.get("names"))
    facts = {**_mapping(value.get("video_info")), **_mapping(value.get("info"))}
    depth = bool(facts.get("is_depth_map") or facts.get("video.is_depth_map"))
    feature = Feature(key, dtype, shape, names, depth)
    if names and feature.is_vector and len(names) != feature.size:
        raise settings.fault("names", f"{feature.size}, one for each element", list(names))
    return feature


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
