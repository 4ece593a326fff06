"""A state on the host, laid out as an arena is, and the same as a capsule image.

An arena pads and aligns its buffers; an image has each of them dense, and its rows may have been
placed by another version of the layout. Only numpy touches bytes here: large copies leave the
interpreter to the control thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.errors import CorruptError, NoMemoryError
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import StateLayout
from flashrt_ros.runtime.capsule_image import (
    CapsuleFacts,
    CapsuleImage,
    HostBuffer,
    RowBlock,
    RowBuffer,
)


@dataclass(frozen=True)
class HostState:
    """One state in pageable memory of the host.

    Attributes:
        section_N: ``(fixed_bytes,)`` uint8; padding is zero.
        rows_N: ``(n * row_bytes,)`` uint8: the committed rows; padding is zero.
    """

    section_N: torch.Tensor
    rows_N: torch.Tensor

    def views(self) -> list[torch.Tensor]:
        """Returns both, in the order of ``Place.views``."""
        return [self.section_N, self.rows_N]


def empty_state(layout: StateLayout, rows: int) -> HostState:
    """Returns room for a state; its content is garbage.

    It is not zeroed first: that would take as long as filling it, with the interpreter locked.
    """
    sizes = layout.fixed_bytes, rows * layout.row_bytes
    section_N, rows_N = (torch.from_numpy(np.empty(size, np.uint8)) for size in sizes)
    return HostState(section_N, rows_N)


def image_of(layout: StateLayout, facts: CapsuleFacts, state: HostState) -> CapsuleImage:
    """Returns an image that aliases ``state``, whose rows get zeros for padding."""
    view = state.section_N.numpy().data
    buffers = tuple(
        HostBuffer(
            slot.spec.name,
            slot.spec.dtype,
            tuple(slot.spec.shape),
            view[slot.offset : slot.offset + slot.size_bytes],
        )
        for slot in layout.state
    )
    if not layout.rows:
        return CapsuleImage(facts, buffers)
    block = RowBlock(_row_buffers(layout), layout.row_bytes, state.rows_N.numpy().data)
    bytes_TB = block.bytes_TB()
    for begin, end in block.gaps():
        bytes_TB[:, begin:end] = 0
    return CapsuleImage(facts, buffers, block)


def _row_buffers(layout: StateLayout) -> tuple[RowBuffer, ...]:
    return tuple(
        RowBuffer(slot.spec.name, slot.spec.dtype, tuple(slot.spec.shape), slot.offset)
        for slot in layout.rows
    )


def lay_out(layout: StateLayout, image: CapsuleImage) -> HostState:
    """Returns the state of an image, as an arena of ``layout`` has it.

    Raises:
        CorruptError: Its buffers are not those of the layout.
        NoMemoryError: It has more rows than the layout has room for.
    """
    buffers: Mapping[str, HostBuffer] = image.by_name()
    section_N = np.zeros(layout.fixed_bytes, np.uint8)
    for slot in layout.state:
        buffer = buffers.get(slot.spec.name)
        size_bytes = -1 if buffer is None else len(buffer.data)
        if buffer is None or size_bytes != slot.size_bytes:
            raise CorruptError(
                f"buffer {slot.spec.name!r}: expected {slot.size_bytes} bytes, found"
                f" {'none' if buffer is None else size_bytes}"
            )
        section_N[slot.offset : slot.offset + slot.size_bytes] = np.asarray(buffer.data, np.uint8)
    return HostState(torch.from_numpy(section_N), torch.from_numpy(_lay_out_rows(layout, image)))


def check_rows(layout: StateLayout, facts: CapsuleFacts) -> None:
    """Raises if a capsule has more rows than there is room for.

    Raises:
        NoMemoryError: It has.
    """
    if facts.host.rows > layout.capacity:
        raise NoMemoryError(
            f"capsule {facts.name!r}: host.rows: expected at most {layout.capacity}, the capacity"
            f" of this policy's buffers, found {facts.host.rows}; give them a larger capacity"
        )


def _lay_out_rows(layout: StateLayout, image: CapsuleImage) -> npt.NDArray[np.uint8]:
    block = image.rows
    count = 0 if block is None else block.count
    check_rows(layout, image.facts)
    if image.facts.host.rows != count:
        raise CorruptError(f"host.rows: expected {count}, found {image.facts.host.rows}")
    if block is None or not layout.rows:
        return np.zeros(0, np.uint8)
    if block.buffers == _row_buffers(layout) and block.row_bytes == layout.row_bytes:
        return np.require(np.asarray(block.data, np.uint8), requirements="W")
    theirs = {row.name: row for row in block.buffers}
    from_TB = block.bytes_TB()
    into_TB = np.zeros((count, layout.row_bytes), np.uint8)
    for slot in layout.rows:
        row = theirs.get(slot.spec.name)
        if row is None or row.size_bytes != slot.size_bytes:
            raise CorruptError(
                f"rows of {slot.spec.name!r}: expected {slot.size_bytes} bytes each, found"
                f" {'none' if row is None else row.size_bytes}"
            )
        own_TB = into_TB[:, slot.offset : slot.offset + slot.size_bytes]
        own_TB[:] = from_TB[:, row.offset : row.end]
    return into_TB.reshape(-1)


def noise_key_of(image: CapsuleImage) -> int:
    """Returns the unsigned key in the image's bytes."""
    return int.from_bytes(image.by_name()[noise.KEY].data, "little")
