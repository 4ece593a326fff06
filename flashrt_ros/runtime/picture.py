"""Pictures that cross to the device as the bytes they came in, and become numbers there.

A quarter of the bytes of float32 crosses, and the host calculates nothing. The numbers are looked
up in a table that the host has made: on CUDA torch divides by a constant as it multiplies by the
inverse, which rounds otherwise. So a picture is the same to the bit whichever way it crosses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.runtime.buffers import Arena, StateLayout, padded
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.policy import Port, Ports

LEVELS = 256
TABLE_BYTES = LEVELS * torch.float32.itemsize


def unit_values(bytes_: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Bytes divided by 255, float32, contiguous and of the same shape."""
    given = np.require(bytes_, requirements=["C", "W"])  # torch warns of what may not be written
    values: npt.NDArray[np.float32] = torch.from_numpy(given).to(torch.float32).div_(255).numpy()
    return values


class BytePicture:
    """A picture in bytes, to whom it concerns; to all others its ``(C, H, W)`` float32 numbers.

    Attributes:
        pixels_HWC: uint8, perhaps a view of a message; not to be written, and never changes as
            long as somebody has this object.
        shape: Of the numbers, ``(C, H, W)``.
        staged: The same bytes, flat, in memory that a device copies from; None elsewhere.
    """

    __slots__ = ("__weakref__", "pixels_HWC", "shape", "staged")
    dtype = np.dtype(np.float32)

    def __init__(
        self, pixels_HWC: npt.NDArray[np.uint8], staged: torch.Tensor | None = None
    ) -> None:
        self.pixels_HWC = pixels_HWC
        self.staged = staged
        height, width, channels = pixels_HWC.shape
        self.shape = (channels, height, width)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The numbers, calculated at each call: bytes divided by 255."""
        values = unit_values(np.moveaxis(self.pixels_HWC, 2, 0))
        return values if dtype is None else values.astype(dtype, copy=False)


def picture_ports(ports: Ports, layout: StateLayout, keys: Collection[str]) -> tuple[Port, ...]:
    """Those of ``keys`` whose buffer is a float32 picture; others take the numbers."""
    return tuple(
        port
        for port in ports.observations
        if port.key in keys
        and len(port.shape) == 3
        and layout.find(port.buffer).dtype == torch.float32
    )


def wire_bytes(ports: Iterable[Port]) -> int:
    """What a ``PictureWire`` takes of device and host, each; 0 without ports."""
    sizes = [padded(math.prod(port.shape)) for port in ports]
    return TABLE_BYTES + sum(sizes) if sizes else 0


class PictureWire:
    """Room for the bytes of pictures on both sides, and what makes numbers of them.

    Attributes:
        size_bytes: Of the room on each side.
    """

    def __init__(self, ports: tuple[Port, ...], arena: Arena, device: Device) -> None:
        """Allocates.

        Args:
            ports: As ``picture_ports`` says; at least one.
            arena: Has their buffers.
            device: Where they are.
        """
        self._device = device
        self.size_bytes = wire_bytes(ports)
        self._section, self._mirror = device.allocate_mirrored(self.size_bytes)
        table = unit_values(np.arange(LEVELS, dtype=np.uint8))
        self._mirror[:TABLE_BYTES].view(torch.float32).copy_(torch.from_numpy(table))
        self._table = self._section[:TABLE_BYTES].view(torch.float32)
        self._apart = self._mirror is not self._section
        self._places: dict[str, slice] = {}
        self._due: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._is_news = self._reads_mirror = False
        # Whose numbers the buffers hold, or will; they keep their slots. One that is replaced
        # while its copy is under way may lose its own: nothing reads it before the next is there.
        self._present: dict[str, BytePicture] = {}
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        begin = TABLE_BYTES
        for port in ports:
            channels, height, width = port.shape
            end, shape = begin + math.prod(port.shape), (height, width, channels)
            self._places[port.key] = slice(begin, end)
            self._pairs.append((self._section[begin:end].view(shape), arena.inputs[port.buffer]))
            begin += padded(end - begin)
        # It holds what it needs and not the wire, which would hold memory of a closed session.
        widen = functools.partial(_widen, self._table, self._pairs)
        self._plan = GraphPlan("pictures", widen, device)

    def prepare(self, warm_up: int) -> None:
        """Captures what makes numbers of bytes; see ``GraphPlan.prepare``."""
        if self._apart:
            self._device.copy_(self._table.view(torch.uint8), self._mirror[:TABLE_BYTES])
        self._plan.prepare(warm_up)

    def write(self, key: str, picture: BytePicture) -> None:
        """Says what crosses next, unless it is there; bytes not ``staged`` go into the mirror.

        Args:
            key: Of the observation.
            picture: Of its port's shape.
        """
        if self._present.get(key) is picture:
            return
        place, staged = self._places[key], picture.staged
        if staged is None or not self._apart:
            staged = self._mirror[place]
            np.copyto(staged.view(picture.pixels_HWC.shape).numpy(), picture.pixels_HWC)
            self._reads_mirror = self._apart
        if self._apart:
            self._due.append((self._section[place], staged))
        self._present[key] = picture
        self._is_news = True

    def forget(self, key: str) -> None:
        """Numbers overwrite the buffer of this observation."""
        self._present.pop(key, None)

    def cross(self) -> bool:
        """Enqueues what was written and is new; all buffers then hold numbers again.

        Returns:
            Whether that reads the mirror.
        """
        if not self._is_news:
            return False
        # Until all has worked it is news, and due.
        for section, source in self._due:
            self._device.copy_(section, source)
        self._plan.replay()
        self._due.clear()
        reads_mirror, self._is_news, self._reads_mirror = self._reads_mirror, False, False
        return reads_mirror


def _widen(table: torch.Tensor, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for bytes_HWC, values_CHW in pairs:
        # Brought into order while they are small.
        index_CHW = bytes_HWC.permute(2, 0, 1).to(
            torch.int32, memory_format=torch.contiguous_format
        )
        torch.index_select(table, 0, index_CHW.view(-1), out=values_CHW.view(-1))
