"""Compares a camera's CameraInfo with what the contract expects of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashrt_ros.contract.image.schema import CameraInfo
from flashrt_ros.errors import ContractError


class CameraInfoReader:
    """Reads one CameraInfo topic; says whether this is the camera that the policy knows."""

    def __init__(self, part: CameraInfo) -> None:
        """Prepares for what the contract expects."""
        self.part = part

    def __call__(self, message: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Height and width of the images that this CameraInfo belongs to, ``(2,)``.

        Raises:
            ContractError: Not the expected camera; names topic, expected and found.
        """
        try:
            return self._read(message)
        except ContractError as error:
            raise ContractError(f"topic {self.part.topic!r} ({self.part.type}): {error}") from None
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            raise ContractError(
                f"topic {self.part.topic!r}: expected a {self.part.type}: {error}"
            ) from error

    def _read(self, message: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        height, width = int(message.height), int(message.width)
        if not height or not width:
            raise ContractError(
                f"expected the camera's size, found {height} x {width} (height x width): the "
                "driver fills in nothing"
            )
        wanted = self.part.intrinsics
        if wanted is not None:
            k = [float(value) for value in message.k]
            found = (k[0], k[4], k[2], k[5])
            if not any(found):
                raise ContractError(
                    "expected intrinsics, found zeros: the camera is not calibrated"
                )
            # Focal lengths by their own size, the centre by the size of the image.
            scales = (wanted[0], wanted[1], width, height)
            for name, want, value, scale in zip(
                ("fx", "fy", "cx", "cy"), wanted, found, scales, strict=True
            ):
                # Written so that a NaN is a difference.
                if not abs(value - want) <= self.part.tolerance * scale:
                    raise ContractError(
                        f"expected {name} of {want:g} within {self.part.tolerance:g} of "
                        f"{scale:g}, found {value:g}: another camera or resolution than the "
                        "policy was trained with"
                    )
        model = self.part.distortion_model
        if model is not None and message.distortion_model != model:
            raise ContractError(
                f"expected distortion model {model!r}, found {message.distortion_model!r}"
            )
        region = message.roi
        return np.array(
            [
                (int(region.height) or height) // max(int(message.binning_y), 1),
                (int(region.width) or width) // max(int(message.binning_x), 1),
            ]
        )


def distortion(message: Any) -> str:
    """Words on lens distortion, which is not undone; empty where there is none."""
    if not any(float(value) for value in message.d):
        return ""
    return f"images are distorted ({message.distortion_model or 'no model named'}), not undone"
