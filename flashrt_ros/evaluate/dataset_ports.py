"""From a data set's features to the arrays of a policy's ports, by their keys.

A contract says of cameras what it says on the robot (crop, resize, colors, range), and of vectors
how the policy calls their elements. Topics and ages mean nothing here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.check import FIELD_SUFFIXES
from flashrt_ros.contract.image.reader import ImageReader
from flashrt_ros.contract.image.schema import RAW, ImagePart
from flashrt_ros.contract.schema import History, Observation
from flashrt_ros.dataset.frame import Frame
from flashrt_ros.dataset.info import Feature
from flashrt_ros.errors import ContractError, CorruptError, InvalidArgumentError
from flashrt_ros.runtime.policy import Port

Array = npt.NDArray[Any]
Found = Array | str
"""An array, or in words why there is none."""
ENCODINGS = {1: "mono8", 3: "rgb8"}


class VectorReader:
    """One vector port.

    Args:
        where: Begins errors: data set and key.
        feature: What is read.
        port: What is filled.
        observation: What the contract says of it; None: nothing.

    Raises:
        InvalidArgumentError: Elements do not fit.

    Attributes:
        notices: What is worth a word.
    """

    def __init__(
        self, where: str, feature: Feature, port: Port, observation: Observation | None
    ) -> None:
        self.notices: list[str] = []
        self._key, self._shape = feature.key, _moment_shape(port, observation)
        self._flag = observation is not None and observation.present_flag
        size = math.prod(self._shape) - self._flag
        spoken = [port.names[:size]]
        if observation is not None:
            spoken += [
                tuple(n for p in observation.parts for n in (p.elements or p.names)),
                tuple(n for p in observation.parts for n in p.names),
            ]
        known = [names for names in spoken if names]
        self._order, by_position = order(where, feature, size, known)
        if by_position and known:
            self.notices.append(f"{feature.key}: no names in the data set: taken by position")

    def __call__(self, frame: Frame) -> Found:
        """The array of one moment."""
        if self._key in frame.faults:
            return frame.faults[self._key]
        with np.errstate(over="ignore"):  # becomes inf, which is told
            vector = frame.vectors[self._key][self._order].astype(np.float32)
        if not np.isfinite(vector).all():
            return "non-finite values"
        if self._flag:
            vector = np.append(vector, np.float32(1.0))
        return vector.reshape(self._shape)


class PictureReader:
    """One image port; see ``VectorReader``.

    Args:
        feature: What is read.
        port: What is filled.
        observation: What the contract says of it; None: nothing.
        as_bytes: Without a contract: whether the port takes bytes rather than 0 to 1.

    Raises:
        InvalidArgumentError: The port is none for colors.
    """

    def __init__(
        self,
        where: str,
        feature: Feature,
        port: Port,
        observation: Observation | None,
        as_bytes: bool,
    ) -> None:
        self.notices: list[str] = []
        self._key, self._shape = feature.key, _moment_shape(port, observation)
        if len(self._shape) != 3 or self._shape[0] not in ENCODINGS:
            raise InvalidArgumentError(
                f"{where}: expected a port of shape (1 or 3, height, width) for pictures, found "
                f"{self._shape}"
            )
        color = "rgb" if self._shape[0] == 3 else "gray"
        scale = "byte" if as_bytes else "unit"
        plain = ImagePart(feature.key, RAW, tuple(ENCODINGS.values()), color, None, (), scale)
        part = None if observation is None else observation.image
        if part is None:
            self._part, self._plain = plain, plain
            return
        if part.depth is not None:
            raise InvalidArgumentError(
                f"{where}: expected distances as the contract has it, found colors"
            )
        self._part = dataclasses.replace(
            part, topic=feature.key, type=RAW, encodings=plain.encodings
        )
        self._plain = dataclasses.replace(self._part, size=None, steps=())

    def __call__(self, frame: Frame) -> Found:
        """The array of one moment; decodes the picture."""
        try:
            pixels = frame.image(self._key)
            image = ImageReader(self._fitting(pixels.shape[:2])).frame(_message(pixels)).array()
        except (ContractError, CorruptError) as error:
            return str(error)
        if image.shape != self._shape:
            return (
                f"expected pictures of {self._shape} (channels, height, width) as the policy has "
                f"them, found {image.shape}; a contract can say how to crop and resize them"
            )
        return image

    def _fitting(self, size: tuple[int, ...]) -> ImagePart:
        """What to do with pictures of this size."""
        if self._part.size in (None, size) or size != self._shape[1:]:
            return self._part
        words = f"{self._key}: pictures have the policy's size: the contract's steps are left out"
        if words not in self.notices:
            self.notices.append(words)
        return self._plain


class PastReader:
    """Several moments of an episode, the oldest first, as a contract's ``history`` asks.

    Args:
        where: Begins errors.
        reader: Of one moment.
        history: What is asked for.
        fps: Frames a second.

    Raises:
        InvalidArgumentError: The period is no multiple of a frame.
    """

    def __init__(
        self, where: str, reader: VectorReader | PictureReader, history: History, fps: float
    ) -> None:
        frames = history.period_ms * fps / 1e3
        self.stride = round(frames)
        if self.stride < 1 or abs(frames - self.stride) > 0.1 * self.stride:
            raise InvalidArgumentError(
                f"{where}: history: expected a period of whole frames of {1e3 / fps:g} ms, found "
                f"{history.period_ms:g} ms"
            )
        self.lead = (history.steps - 1) * self.stride
        self._history, self._reader = history, reader
        self._episode: int | None = None
        self._past: dict[int, Found] = {}

    @property
    def notices(self) -> list[str]:
        """What is worth a word."""
        return self._reader.notices

    def __call__(self, frame: Frame) -> Found:
        """The array of all moments; to be called with each frame."""
        if frame.episode != self._episode:
            self._episode, self._past = frame.episode, {}
        newest = self._past[frame.step] = self._reader(frame)
        self._past = {s: v for s, v in self._past.items() if s >= frame.step - self.lead}
        if isinstance(newest, str):
            return newest
        usable = {s: v for s, v in self._past.items() if not isinstance(v, str)}
        found = []
        for step in range(frame.step - self.lead, frame.step + 1, self.stride):
            # A moment that is missing or broken is passed over, as on the robot.
            at = max((s for s in usable if s <= step), default=None)
            if at is None and self._history.before == "wait":
                return f"history: expected {self._history.steps} steps, not all have come yet"
            found.append(usable[min(usable) if at is None else at])
        return np.stack(found)


def order(
    where: str, feature: Feature, size: int, spoken: Sequence[tuple[str, ...]]
) -> tuple[npt.NDArray[np.intp], bool]:
    """Where each wanted element stands in a feature, and whether only its position says so.

    Args:
        where: Begins errors.
        feature: With the names of its elements, where it has some.
        size: Elements wanted.
        spoken: Lists of names for them, the policy's first; any that all are found counts.

    Raises:
        InvalidArgumentError: Names differ, or there are none and sizes differ.
    """
    found = feature.names
    for names in spoken:
        for form in (str, bare):
            wanted, there = [form(n) for n in names], [form(n) for n in found]
            different = len(set(there)) == len(there) and len(set(wanted)) == size == len(names)
            if different and set(wanted) <= set(there):
                return np.array([there.index(name) for name in wanted], np.intp), False
    if found and spoken:
        raise InvalidArgumentError(
            f"{where}: expected the elements {list(spoken[0])}, found {list(found)}; a contract "
            "that lists the data set's under `elements` or `names` says which is which"
        )
    if feature.size != size:
        raise InvalidArgumentError(
            f"{where}: expected {size} elements for the policy, found {feature.size}"
        )
    return np.arange(size), True


def bare(name: str) -> str:
    """A name without the field that many end in, such as ``elbow.pos``."""
    for suffixes in FIELD_SUFFIXES.values():
        for suffix in suffixes:
            if name.endswith(f".{suffix}"):
                return name[: -len(suffix) - 1]
    return name


def _moment_shape(port: Port, observation: Observation | None) -> tuple[int, ...]:
    """Of one moment."""
    return port.shape if observation is None or observation.history is None else port.shape[1:]


def _message(pixels: Array) -> Any:
    """Pixels in the place of a ``sensor_msgs/msg/Image``."""
    height, width, channels = pixels.shape
    if channels not in ENCODINGS:
        raise CorruptError(f"expected pictures of 1 or 3 channels, found {channels}")
    return SimpleNamespace(
        encoding=ENCODINGS[channels],
        height=height,
        width=width,
        step=width * channels,
        is_bigendian=0,
        data=np.ascontiguousarray(pixels).reshape(-1),
    )
