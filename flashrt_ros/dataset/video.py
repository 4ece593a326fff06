"""Pictures of one video file by their time: decoded when asked for, and none but those needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.dataset.extras import av, reading
from flashrt_ros.errors import CorruptError

Pixels = npt.NDArray[np.uint8]

TOLERANCE_S = 1e-4
"""How far a picture may lie from the time asked for, as in LeRobot; a wrong picture would be a
whole frame away."""
AHEAD_S = 2.0
"""Farther ahead than this, seeking costs less than decoding all that lies between."""
BACK_S = (0.0, 1.0, 10.0)
"""How much earlier a seek is tried again: at some files a seek lands after its goal."""


class VideoFile:
    """One video, open for reading.

    The pixels are those of LeRobot with PyAV: the frame converted to rgb24 by the same library.

    Args:
        path: The file.

    Raises:
        CorruptError: It is damaged, or holds no video.
        UnsupportedError: av is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        library = av()
        with reading():
            self._container = library.open(str(path))
        try:
            if not self._container.streams.video:
                raise CorruptError("no video in it")
            self._stream = self._container.streams.video[0]
        except BaseException:
            self.close()
            raise
        self._frames: Iterator[Any] | None = None
        self._present: Any = None

    @property
    def fps(self) -> float | None:
        """Mean rate, as the file says; None where it does not."""
        rate = self._stream.average_rate
        return float(rate) if rate else None

    def at(self, time_s: float) -> Pixels:
        """Returns the picture at a time, ``(H, W, 3)`` uint8.

        Args:
            time_s: From the beginning of the file.

        Raises:
            CorruptError: There is none within the tolerance, or the file is damaged there.
        """
        # A float32 of some thousand seconds is no nearer to its time than this.
        tolerance_s = max(TOLERANCE_S, 4 * float(np.spacing(np.float32(time_s))))
        try:
            with reading():
                frame = self._find(time_s, tolerance_s)
                pixels: Pixels = frame.to_ndarray(format="rgb24")
        except CorruptError:
            self._frames = self._present = None  # the next call seeks anew
            raise
        return pixels

    def close(self) -> None:
        """Closes the file."""
        self._frames = self._present = None
        with contextlib.suppress(Exception):  # nothing was written, so nothing can be lost
            self._container.close()

    def _find(self, time_s: float, tolerance_s: float) -> Any:
        present = self._present
        if present is not None:
            if abs(self._time_s(present) - time_s) <= tolerance_s:
                return present
            if 0 < time_s - self._time_s(present) <= AHEAD_S:
                return self._forward(time_s, tolerance_s, present)
        for back_s in BACK_S:
            first = self._seek(time_s - back_s)
            if first is not None and self._time_s(first) <= time_s + tolerance_s:
                return self._forward(time_s, tolerance_s, first)
            if time_s <= back_s:
                break
        words = "nothing" if first is None else f"{self._time_s(first):.6f} s as the first"
        raise CorruptError(f"no picture at {time_s:.6f} s, found {words}")

    def _seek(self, time_s: float) -> Any:
        base = self._stream.time_base
        self._container.seek(
            max(0, round(time_s / base)), stream=self._stream, backward=True, any_frame=False
        )
        self._frames = (f for f in self._container.decode(self._stream) if f.pts is not None)
        self._present = next(self._frames, None)
        return self._present

    def _forward(self, time_s: float, tolerance_s: float, frame: Any) -> Any:
        """Decodes on from ``frame`` to the one wanted."""
        before = frame
        assert self._frames is not None
        while frame is not None and self._time_s(frame) < time_s - tolerance_s:
            before, frame = frame, next(self._frames, None)
        self._present = frame if frame is not None else before
        if frame is None:
            last_s = self._time_s(before)
            raise CorruptError(f"no picture at {time_s:.6f} s, the last is at {last_s:.6f} s")
        if self._time_s(frame) > time_s + tolerance_s:
            raise CorruptError(
                f"no picture at {time_s:.6f} s, found {self._time_s(before):.6f} s and "
                f"{self._time_s(frame):.6f} s"
            )
        return frame

    def _time_s(self, frame: Any) -> float:
        return float(frame.pts * self._stream.time_base)
