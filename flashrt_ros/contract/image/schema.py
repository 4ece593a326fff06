"""The contract's words for camera images: frozen dataclasses, and the keys in the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from flashrt_ros.contract.qos import Qos

RAW = "sensor_msgs/msg/Image"
COMPRESSED = "sensor_msgs/msg/CompressedImage"
IMAGE_TYPES = (RAW, COMPRESSED)

KEYS: Mapping[str, tuple[str, ...]] = {
    "image": (
        "topic",
        "type",
        "encoding",
        "size",
        "color",
        "depth",
        "steps",
        "range",
        "camera_info",
        "qos",
    ),
    "camera_info": ("topic", "intrinsics", "tolerance", "distortion_model", "qos"),
    "depth": ("unit", "scale", "invalid", "clip"),
    "crop": ("crop", "at"),
    "resize": ("resize", "interpolation", "antialias"),
    "resize_with_pad": ("resize_with_pad", "interpolation", "antialias", "place", "fill"),
    "pad": ("pad", "place", "fill"),
}
"""Keys by the kind of mapping; the last four are the kinds of a step."""

STEP_KINDS = ("crop", "resize", "resize_with_pad", "pad")
INTERPOLATIONS = ("bilinear", "nearest", "area")
PLACES = ("centre", "bottom_right")


@dataclass(frozen=True)
class Step:
    """One step from the camera's image to the policy's.

    Attributes:
        kind: One of ``STEP_KINDS``.
        height: Of the result, pixels.
        width: Of the result, pixels.
        at: Crop: top and left edge, pixels; None: in the centre.
        interpolation: One of ``INTERPOLATIONS``.
        antialias: Bilinear only: the filter grows with the reduction.
        place: Where the image lies in its padding.
        fill: Of the padding, in the range and unit of the result.
    """

    kind: str
    height: int
    width: int
    at: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    antialias: bool = False
    place: str = "centre"
    fill: float = 0.0


@dataclass(frozen=True)
class Depth:
    """What the numbers of a depth image mean.

    Attributes:
        unit: Of the result.
        scale: By encoding, ``16UC1`` or ``32FC1``: what a message's number is multiplied by.
        invalid: What stands for pixels without a measurement, in ``unit``.
        clip: Lowest and highest depth, in ``unit``; None: as measured.
    """

    unit: str
    scale: Mapping[str, float] = dataclasses.field(hash=False)
    invalid: float = 0.0
    clip: tuple[float, float] | None = None


@dataclass(frozen=True)
class CameraInfo:
    """What a camera says of itself, and what the contract expects.

    Attributes:
        topic: As the contract writes it.
        intrinsics: fx, fy, cx, cy in pixels; None: not compared.
        tolerance: Allowed difference, as a share of the focal length, or of width and height.
        distortion_model: As named in the message; None: not compared.
        qos: Of the subscription.
        path: Key path in the file, for messages.
        type: Full type name.
    """

    topic: str
    intrinsics: tuple[float, float, float, float] | None = None
    tolerance: float = 0.02
    distortion_model: str | None = None
    qos: Qos = dataclasses.field(default_factory=Qos)
    path: str = ""
    type: str = "sensor_msgs/msg/CameraInfo"


@dataclass(frozen=True)
class ImagePart:
    """One camera topic, and the way from its messages to the policy's ``(C, H, W)`` port.

    Attributes:
        topic: As the contract writes it; the node resolves it.
        type: ``sensor_msgs/msg/Image`` or ``sensor_msgs/msg/CompressedImage``.
        encodings: The ones that are accepted.
        color: ``rgb``, ``bgr``, ``gray`` or ``depth``: channels of the result, in this order.
        size: Height and width that the camera must have; None: what the first step can take.
        steps: In this order.
        range: ``unit``, float32 from 0 to 1, or ``byte``, 0 to 255; ``metric`` for depth.
        depth: For depth images, else None.
        camera_info: What must be true of the camera; None: not looked at.
        qos: Of the subscription.
        path: Key path in the file, for messages.
    """

    topic: str
    type: str
    encodings: tuple[str, ...]
    color: str
    size: tuple[int, int] | None
    steps: tuple[Step, ...]
    range: str
    depth: Depth | None = None
    camera_info: CameraInfo | None = None
    qos: Qos = dataclasses.field(default_factory=Qos)
    path: str = ""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""
        channels = 3 if self.color in ("rgb", "bgr") else 1
        if self.steps:
            return channels, self.steps[-1].height, self.steps[-1].width
        assert self.size is not None  # the file is refused otherwise
        return (channels, *self.size)
