"""Pinned memory in which pictures wait, copied there by whoever decodes them.

A control step then only enqueues their way to the device: the copy of two camera images takes it
longer than all else that it does on the host.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, deque
from collections.abc import Iterable

import numpy as np
import torch

from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.picture import BytePicture
from flashrt_ros.runtime.policy import Port

SLOTS = 8
"""Pictures of each port: those that a sampler keeps, one more that comes, one that crosses, and
those behind the present action and a plan under way. With more the copy is made in the step."""


class PictureSlots:
    """A fixed number of slots for each shape of picture."""

    def __init__(self, ports: Iterable[Port], device: Device) -> None:
        """Allocates.

        Args:
            ports: Whose pictures come as bytes.
            device: Where they go; host memory is the kind that it copies from by itself.
        """
        self._free: dict[tuple[int, ...], deque[torch.Tensor]] = {}
        for shape, count in Counter(port.shape for port in ports).items():
            size = math.prod(shape)
            memory = device.allocate_host(SLOTS * count * size)
            self._free[shape] = deque(memory.split(size))

    def stage(self, picture: BytePicture) -> BytePicture:
        """The same picture in a slot, which is free again once nobody has the result; any thread.

        Args:
            picture: Of any shape.

        Returns:
            The picture as given where there is no free slot of its shape.
        """
        free = self._free.get(picture.shape)
        if free is None:
            return picture
        try:
            slot = free.popleft()
        except IndexError:
            return picture
        pixels_HWC = slot.view(picture.pixels_HWC.shape).numpy()
        np.copyto(pixels_HWC, picture.pixels_HWC)
        staged = BytePicture(pixels_HWC, slot)
        weakref.finalize(staged, free.append, slot).atexit = False
        return staged
