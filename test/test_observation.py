"""Images on their way into the host mirror: any dtype of the port, arrays that may not be written.

A decoded image is shared by several control steps, so it must come out of this unchanged.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.observation import ObservationSlot
from flashrt_ros.runtime.policy import Port

SHAPE = (3, 4, 5)
PORT = Port("observation.image", "image", SHAPE)


def shared(dtype: type) -> np.ndarray:
    """An image as a camera's frame hands it over."""
    image = np.arange(60).reshape(SHAPE).astype(dtype)
    image.flags.writeable = False
    return image


@pytest.mark.parametrize("given", [np.uint8, np.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_shared_image_is_written_and_left_alone(given: type, dtype: torch.dtype) -> None:
    mirror = torch.full(SHAPE, -1.0, dtype=dtype)
    slot = ObservationSlot(PORT, mirror)
    image = shared(given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that may not be written
        slot.write(slot.check(image))
        slot.write(slot.check(image.transpose(0, 1, 2)))
    assert torch.equal(mirror, torch.arange(60.0).view(SHAPE).to(dtype))
    mirror.zero_()
    assert np.array_equal(image, shared(given))


def test_bytes_go_into_a_port_of_bytes_and_reals_do_not() -> None:
    mirror = torch.zeros(SHAPE, dtype=torch.uint8)
    slot = ObservationSlot(PORT, mirror)
    slot.write(slot.check(shared(np.uint8)))
    assert mirror.flatten().tolist() == list(range(60))
    with pytest.raises(SpecError, match="expected uint8, found float32"):
        slot.check(shared(np.float32))
    with pytest.raises(SpecError, match=r"expected shape \(3, 4, 5\), found \(4, 5, 3\)"):
        slot.check(np.moveaxis(shared(np.uint8), 0, 2))
