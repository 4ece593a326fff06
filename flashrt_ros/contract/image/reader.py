"""From one image message to the array of the policy's port: checked at once, decoded when asked.

Formulas: gray = 0.299 R + 0.587 G + 0.114 B (BT.601), rounded; unit range = byte / 255.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.contract.image import raw
from flashrt_ros.contract.image.compressed import decode_compressed, open_compressed
from flashrt_ros.contract.image.resample import apply_steps, check_steps, crop_box
from flashrt_ros.contract.image.schema import RAW, Depth, ImagePart, Step
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.picture import BytePicture, unit_values

Array = npt.NDArray[Any]
_GRAY = np.array([9798, 19235, 3735], np.int32)
"""0.299, 0.587 and 0.114 times 2**15, as in OpenCV."""


class Frame:
    """One image message whose header is sound; decoded at most once, by whoever asks first.

    Attributes:
        part: What it is decoded for.
        size: Height and width of the camera's image.
    """

    def __init__(
        self, part: ImagePart, size: tuple[int, int], decode: Callable[[], Array | BytePicture]
    ) -> None:
        self.part = part
        self.size = size
        self._decode: Callable[[], Array | BytePicture] | None = decode
        self._lock = threading.Lock()
        self._array: Array | BytePicture | None = None
        self._fault = ""

    def array(self) -> Array:
        """``part.shape``, float32 or uint8, not to be written.

        Raises:
            ContractError: As ``picture``.
        """
        return np.asarray(self.picture())

    def picture(self) -> Array | BytePicture:
        """The array, the same one at each call; or bytes, where the reader was asked for them.

        Raises:
            ContractError: The pixels are damaged; at each call.
        """
        with self._lock:
            if self._decode is not None:
                try:
                    self._array = self._decode()
                    if not isinstance(self._array, BytePicture):
                        self._array.flags.writeable = False
                except ContractError as error:
                    self._fault = str(error)
                # The message is let go: its bytes are many.
                self._decode = None
        if self._array is None:
            raise ContractError(self._fault)
        return self._array


def crosses_as_bytes(part: ImagePart) -> bool:
    """Whether bytes say all: from 0 to 1, and nothing calculated between pixels."""
    rest = part.steps[1:] if part.steps and part.steps[0].kind == "crop" else part.steps
    return part.range == "unit" and not rest


class ImageReader:
    """Reads the images of one topic as one ``ImagePart`` says."""

    def __init__(
        self,
        part: ImagePart,
        as_bytes: bool = False,
        stage: Callable[[BytePicture], BytePicture] = lambda picture: picture,
    ) -> None:
        """Prepares for the part's type, encodings and steps.

        Args:
            part: What is read, and what is made of it.
            as_bytes: Frames give a ``BytePicture`` where ``crosses_as_bytes``.
            stage: Called with each of them; gives the same picture, perhaps elsewhere.
        """
        self.part = part
        self._stage = stage
        self._as_bytes = as_bytes and crosses_as_bytes(part)

    def frame(self, message: Any) -> Frame:
        """Checks the header of a message.

        Args:
            message: A rosbags or rclpy Image or CompressedImage.

        Raises:
            ContractError: It is not what the contract expects; names topic, expected, found.
        """
        try:
            kind, height, width, pixel, load = self._open(message)
            self._check(kind, height, width)
        except ContractError as error:
            raise self._fault(str(error)) from None
        except (AttributeError, TypeError, ValueError) as error:
            raise self._fault(f"expected a message of this type: {error}") from error

        def decode() -> Array | BytePicture:
            try:
                return (
                    self._picture(message, load())
                    if self._as_bytes
                    else self._convert(load(), pixel)
                )
            except ContractError as error:
                raise self._fault(str(error)) from None

        return Frame(self.part, (height, width), decode)

    def _open(self, message: Any) -> tuple[str, int, int, str, Callable[[], Array]]:
        """Kind, height, width, pixel type of depth, and what gives the pixels."""
        part = self.part
        if part.type == RAW:
            encoding = message.encoding
            self._check_encoding(encoding)
            raw.byte_rows(message)
            kind = raw.ENCODINGS[encoding].kind
            size = int(message.height), int(message.width)
            return kind, *size, encoding, lambda: raw.pixels_of(message)
        opened = open_compressed(message)
        self._check_encoding(opened.encoding)
        size = opened.height, opened.width
        return opened.kind, *size, opened.pixel, lambda: decode_compressed(opened)

    def _check_encoding(self, encoding: str) -> None:
        if encoding not in self.part.encodings:
            raise ContractError(
                f"expected an encoding among {', '.join(self.part.encodings)}, found {encoding!r}"
            )

    def _check(self, kind: str, height: int, width: int) -> None:
        part = self.part
        if (kind == "depth") != (part.depth is not None):
            wanted = "depth" if part.depth else "colors or gray"
            raise ContractError(f"expected an image of {wanted}, found one of {kind}")
        if part.size is not None and part.size != (height, width):
            hint = ""
            if part.size == (width, height):
                hint = "; height and width are interchanged"
            raise ContractError(
                f"expected {part.size[0]} x {part.size[1]} (height x width), found {height} x "
                f"{width}{hint}"
            )
        check_steps(part.steps, height, width)

    def _convert(self, pixels: Array, pixel: str) -> Array:
        """Pixels ``(H, W, C)`` to the array of the port."""
        part, depth = self.part, self.part.depth
        pixels, steps = self._cropped(pixels)
        pixels = self._measured(pixels, pixel, depth) if depth else self._colored(pixels)
        image_CHW = np.ascontiguousarray(np.moveaxis(pixels, 2, 0))
        if part.range == "byte" and not steps:
            return self._own(image_CHW, pixels)
        if part.range == "unit":
            work = torch.from_numpy(unit_values(image_CHW))
        else:
            work = torch.from_numpy(self._own(image_CHW, pixels)).to(torch.float32)
        work = apply_steps(work, steps)
        if part.range == "byte":
            work = work.round().clamp_(0, 255).to(torch.uint8)
        return work.contiguous().numpy()

    def _cropped(self, pixels: Array) -> tuple[Array, tuple[Step, ...]]:
        """Pixels, and the steps that are left: a crop at the begin is a view, and spares work."""
        steps = self.part.steps
        if not steps or steps[0].kind != "crop":
            return pixels, steps
        top, left = crop_box(steps[0], *pixels.shape[:2])
        rows, columns = slice(top, top + steps[0].height), slice(left, left + steps[0].width)
        return pixels[rows, columns], steps[1:]

    def _picture(self, message: Any, pixels: Array) -> BytePicture:
        """Pixels ``(H, W, C)`` as they are: of most encodings a view of the message."""
        colored = self._colored(self._cropped(pixels)[0])
        if colored.strides[1:] != (colored.shape[2], 1):
            colored = np.ascontiguousarray(colored)
        picture = BytePicture(colored)
        staged = self._stage(picture)
        if staged is picture and self.part.type == RAW and not memoryview(message.data).readonly:
            # Its owner may fill it with the next image.
            return BytePicture(self._own(colored, pixels))
        return staged

    @staticmethod
    def _own(array: Array, pixels: Array) -> Array:
        """The array, copied where it would be a view of the message."""
        return array.copy() if np.may_share_memory(array, pixels) else array

    def _colored(self, pixels: Array) -> Array:
        channels, color = pixels.shape[2], self.part.color
        if color == "gray":
            if channels == 1:
                return pixels
            gray = pixels.astype(np.int32) @ _GRAY
            return ((gray + (1 << 14)) >> 15).astype(np.uint8)[..., None]
        if channels == 1:
            return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        return pixels[..., ::-1] if color == "bgr" else pixels

    @staticmethod
    def _measured(pixels: Array, pixel: str, depth: Depth) -> Array:
        """Depth in the contract's unit, float32."""
        if pixel not in depth.scale:
            raise ContractError(
                f"expected depth of {', '.join(depth.scale)}, for which the contract has a scale, "
                f"found {pixel}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            metric: Array = pixels.astype(np.float32) * np.float32(depth.scale[pixel])
            known = (metric > 0) & (metric < np.inf)  # false for NaN
        if depth.clip is not None:
            np.clip(metric, *(np.float32(limit) for limit in depth.clip), out=metric)
        metric[~known] = np.float32(depth.invalid)
        return metric

    def _fault(self, words: str) -> ContractError:
        return ContractError(f"topic {self.part.topic!r} ({self.part.type}): {words}")
