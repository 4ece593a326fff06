"""Pictures of frames, from videos or from the rows themselves; one open video a feature."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.contract.image.compressed import require_pillow
from flashrt_ros.dataset.episodes import Clip
from flashrt_ros.dataset.video import Pixels, VideoFile
from flashrt_ros.errors import CorruptError

FPS_TOLERANCE = 1e-3
"""Relative difference between the rates of a video and of its data set."""


class Pictures:
    """Decodes what is asked for, and tells each fault of a file once.

    Args:
        path: The data set's folder.
        fps: Of the data set.
        defects: Where faults are told.
    """

    def __init__(self, path: Path, fps: float, defects: list[str]) -> None:
        self._path, self._fps, self._defects = path, fps, defects
        self._open: dict[str, VideoFile] = {}
        self._told: set[tuple[Path, str]] = set()

    def from_video(self, key: str, clip: Clip | None, timestamp_s: float) -> Pixels:
        """Returns ``(H, W, 3)`` uint8.

        Args:
            key: Of the feature.
            clip: Of the episode.
            timestamp_s: From the episode's begin.

        Raises:
            CorruptError: It is not there.
        """
        if clip is None:
            raise CorruptError("meta/episodes names no video for this episode")
        name = clip.path.relative_to(self._path.resolve())
        try:
            return self._video(key, clip.path).at(clip.start_s + timestamp_s)
        except CorruptError as error:
            self._tell(clip.path, "picture", f"{name}: {error}")
            raise CorruptError(f"{name}: {error}") from error

    def from_row(self, stored: Mapping[str, Any] | bytes | None) -> Pixels:
        """Returns ``(H, W, C)`` uint8 of a compressed picture.

        Raises:
            CorruptError: It is missing or damaged, or no picture of bytes.
            UnsupportedError: Pillow is missing.
        """
        content = stored.get("bytes") if isinstance(stored, Mapping) else stored
        if not content:
            raise CorruptError("no picture is stored")
        library = require_pillow()
        try:
            with library.open(io.BytesIO(content)) as image:
                if image.mode in ("1", "P"):
                    image = image.convert("RGB")
                pixels = np.asarray(image)
        except Exception as error:  # damaged bytes fail in many ways
            raise CorruptError(f"a picture that cannot be read ({error})") from error
        if pixels.dtype != np.uint8:
            raise CorruptError(f"expected a picture of bytes, found {pixels.dtype}")
        return pixels if pixels.ndim == 3 else pixels[..., None]

    def close(self) -> None:
        """Closes all files."""
        for video in self._open.values():
            video.close()
        self._open.clear()

    def _video(self, key: str, path: Path) -> VideoFile:
        video = self._open.get(key)
        if video is not None and video.path == path:
            return video
        if video is not None:
            video.close()
            del self._open[key]
        if not path.is_file():
            raise CorruptError("missing")
        video = self._open[key] = VideoFile(path)
        if video.fps is not None and abs(video.fps / self._fps - 1) > FPS_TOLERANCE:
            name = path.relative_to(self._path.resolve())
            words = f"{name}: {video.fps:g} pictures a second, expected {self._fps:g}"
            self._tell(path, "rate", words)
        return video

    def _tell(self, path: Path, kind: str, words: str) -> None:
        if (path, kind) not in self._told:
            self._told.add((path, kind))
            self._defects.append(words)
