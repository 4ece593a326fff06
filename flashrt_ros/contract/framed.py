"""Numbers in the frame of their message, and in the one that the contract asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.frames import Frames, bare
from flashrt_ros.contract.pose import compose, rotate
from flashrt_ros.errors import ContractError

if TYPE_CHECKING:
    from flashrt_ros.contract.conversions import Decoded, PartReader
    from flashrt_ros.contract.message import Message
    from flashrt_ros.contract.schema import Part

Values = npt.NDArray[np.float64]

TRANSFORMABLE: Mapping[tuple[str, str], str] = {
    ("geometry_msgs/msg/PoseStamped", "pose"): "pose",
    ("geometry_msgs/msg/PoseStamped", "position"): "position",
    ("geometry_msgs/msg/PoseStamped", "orientation"): "orientation",
    ("geometry_msgs/msg/PointStamped", "point"): "position",
}
"""Type and field to what is transformed."""


class Framed:
    """Numbers in the frame of their message, brought into another one whenever they are sampled.

    Attributes:
        used: The messages behind the last ``array``, with their topics.
    """

    def __init__(self, reader: FramedReader, whole: Values, frame: str, stamp_ns: int) -> None:
        """Takes all numbers of the field."""
        self.used: list[tuple[str, Message]] = []
        self._reader = reader
        self._whole = whole
        self._frame = frame
        self._stamp_ns = stamp_ns

    def array(self) -> npt.NDArray[np.float32]:
        """The elements of the part, in its frame.

        Raises:
            ContractError: There is no transform.
        """
        self.used = []
        reader, values = self._reader, self._whole
        if bare(self._frame) != bare(reader.part.frame_id):
            pose, self.used = reader.frames.lookup(
                reader.part.frame_id, self._frame, self._stamp_ns
            )
            if reader.kind == "position":
                values = pose[:3] + rotate(pose[3:], values)
            else:
                here = values if reader.kind == "pose" else np.concatenate([np.zeros(3), values])
                moved = compose(pose, here)
                values = moved if reader.kind == "pose" else moved[3:]
        return values[reader.order].astype(np.float32)


class FramedReader:
    """Reads a part whose numbers are transformed.

    Attributes:
        part: What is asked for.
        frames: The tree.
        kind: ``pose``, ``position`` or ``orientation``.
        order: Where each of the part's elements stands in the field.
    """

    def __init__(self, part: Part, whole: PartReader, labels: tuple[str, ...], frames: Frames):
        """Takes a reader of all numbers of the field, without a frame."""
        self.part = part
        self.frames = frames
        self.kind = TRANSFORMABLE[part.type, part.field]
        self.order = [labels.index(name) for name in part.names]
        self._whole = whole
        self._labels = labels

    def __call__(self, decoded: Decoded) -> Framed:
        """The numbers, to be transformed.

        Raises:
            ContractError: They are not finite, or no rotation.
        """
        values = self._whole(decoded).astype(np.float64)
        bad = [n for n, v in zip(self._labels, values, strict=True) if not np.isfinite(v)]
        if bad:
            raise ContractError(f"non-finite {self.part.field} of {', '.join(bad)}")
        if self.kind != "position":
            turned = values[-4:]
            length = float(np.linalg.norm(turned))
            if not length > 0.01:
                raise ContractError(
                    f"expected a quaternion of length 1 to be transformed, found {length:.3g}"
                )
            values[-4:] = turned / length
        frame = decoded.message.header.frame_id
        return Framed(self, values, frame, decoded.stamp_ns)
