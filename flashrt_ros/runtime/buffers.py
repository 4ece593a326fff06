"""The closed set of named static buffers, and the one allocation that holds the state."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from flashrt_ros.errors import SpecError

if TYPE_CHECKING:
    from flashrt_ros.runtime.device import Device

BUFFER_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")


class Role(enum.Enum):
    """What a buffer is to the runtime."""

    STATE = "state"
    """Part of the execution state: in the arena and in every capsule."""
    INPUT = "input"
    """Written by the runtime before a replay."""
    OUTPUT = "output"
    """Written by a replay, read by the runtime after it."""
    SCRATCH = "scratch"
    """Of no meaning between replays."""


@dataclass(frozen=True)
class BufferSpec:
    """Declaration of one buffer.

    Attributes:
        name: Dotted lower-case name, e.g. ``rnn.h.0``.
        shape: Sizes, each at least 1; ``()`` for a scalar.
        dtype: Element type.
        role: See ``Role``.
        unit: Physical unit, empty where there is none.
        capacity: 0 for a buffer of fixed size. Else the buffer grows: ``shape`` is that of one
            row, one row a token, and there is room for so many. Rows are only appended; see
            ``ROWS_LENGTH``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: Role
    unit: str = ""
    capacity: int = 0

    def __post_init__(self) -> None:
        if not BUFFER_NAME.fullmatch(self.name):
            raise SpecError(
                f"buffer name {self.name!r}: expected dotted lower-case words such as 'rnn.h.0'"
            )
        if any(not isinstance(size, int) or size < 1 for size in self.shape):
            raise SpecError(
                f"buffer {self.name!r}: expected sizes of at least 1, found shape {self.shape}"
            )
        if not isinstance(self.capacity, int) or self.capacity < 0:
            raise SpecError(
                f"buffer {self.name!r}: expected a capacity of at least 1 row, or 0 for a buffer"
                f" that does not grow, found {self.capacity!r}"
            )
        if self.capacity and self.role is not Role.STATE:
            raise SpecError(
                f"buffer {self.name!r}: only state grows by rows, found role {self.role.value}"
            )


ROWS_LENGTH = "rows.length"
"""State buffer, ``(1,)`` int64, of every policy with buffers that grow: rows that are committed.

The device decides how many there are: the policy raises it, by as much as it appended, and the
runtime reads it back once at each boundary. Committed rows never change; what lies beyond them is
scratch. A reset sets it to zero.
"""
ROWS_SPEC = BufferSpec(ROWS_LENGTH, (1,), torch.int64, Role.STATE, "rows")

ALIGNMENT = 256
"""Bytes; every buffer starts on such a boundary, as CUDA's vector loads and copies want it."""


def padded(size_bytes: int) -> int:
    """Returns what a buffer of this size takes of its section."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Slot:
    """Where a buffer lies in its section.

    Attributes:
        spec: The declaration.
        offset: Bytes from the start of the section, a multiple of ``ALIGNMENT``.
        size_bytes: Bytes of the elements, without the padding that follows.
    """

    spec: BufferSpec
    offset: int
    size_bytes: int

    def view(self, section: torch.Tensor) -> torch.Tensor:
        """Returns the buffer as a view of ``section``, a flat uint8 tensor; aliases it."""
        flat_N = section[self.offset : self.offset + self.size_bytes]
        return flat_N.view(self.spec.dtype).view(self.spec.shape)


ROW_ALIGNMENT = 16
"""Bytes; the widest vector load. More would waste memory where rows are small."""


@dataclass(frozen=True)
class RowSlot:
    """Where the rows of one buffer lie in the row of a token, which holds those of all buffers.

    Attributes:
        spec: The declaration.
        offset: Bytes from the start of the token's row, a multiple of ``ROW_ALIGNMENT``.
        size_bytes: Bytes of the buffer's own row.
    """

    spec: BufferSpec
    offset: int
    size_bytes: int

    def view(self, rows_TB: torch.Tensor) -> torch.Tensor:
        """Returns the buffer as a view of the rows section; aliases it.

        Args:
            rows_TB: ``(T, row_bytes)`` uint8, T tokens.

        Returns:
            ``(T, *spec.shape)``; a step along T crosses the rows of all other buffers.
        """
        own_TB = rows_TB[:, self.offset : self.offset + self.size_bytes]
        return own_TB.view(self.spec.dtype).view((rows_TB.shape[0], *self.spec.shape))


class StateLayout:
    """Places every declared buffer: state, inputs, outputs with scratch, each in one section.

    Attributes:
        specs: All declarations, in the order given.
        state: Slots of the fixed section, in the order declared.
        inputs: Slots of the input section.
        outputs: Slots of the output section, scratch included.
        fixed_bytes: Size of the fixed section, padding included: what one capsule weighs, besides
            its rows.
        rows: Slots of the rows section, in the order declared.
        row_bytes: Size of one token's row, padding included; 0 where nothing grows.
        capacity: Tokens that the rows section has room for.
        input_bytes: Size of the input section.
        output_bytes: Size of the output section.

    Raises:
        SpecError: Two buffers have one name, two that grow have different capacities, or there is
            nothing to place.
    """

    def __init__(self, specs: Iterable[BufferSpec]) -> None:
        self.specs: tuple[BufferSpec, ...] = tuple(specs)
        seen: set[str] = set()
        for spec in self.specs:
            if spec.name in seen:
                raise SpecError(f"buffer {spec.name!r} is declared twice; names must be unique")
            seen.add(spec.name)
        fixed = [spec for spec in self.specs if not spec.capacity]
        self.state, self.fixed_bytes = _place(fixed, (Role.STATE,))
        self.rows, self.row_bytes, self.capacity = _place_rows(self.specs)
        self.inputs, self.input_bytes = _place(self.specs, (Role.INPUT,))
        self.outputs, self.output_bytes = _place(self.specs, (Role.OUTPUT, Role.SCRATCH))
        if not self.state:
            raise SpecError("a layout needs at least one buffer of role state, found none")

    def find(self, name: str) -> BufferSpec:
        """Returns the declaration of ``name``.

        Raises:
            SpecError: There is no such buffer.
        """
        for spec in self.specs:
            if spec.name == name:
                return spec
        names = ", ".join(sorted(spec.name for spec in self.specs))
        raise SpecError(f"no buffer {name!r} is declared; declared are: {names}")


def _place(specs: Iterable[BufferSpec], roles: tuple[Role, ...]) -> tuple[tuple[Slot, ...], int]:
    slots: list[Slot] = []
    end = 0
    for spec in specs:
        if spec.role in roles:
            size_bytes = spec.dtype.itemsize * math.prod(spec.shape)
            slots.append(Slot(spec, end, size_bytes))
            end += padded(size_bytes)
    return tuple(slots), end


def _place_rows(specs: Iterable[BufferSpec]) -> tuple[tuple[RowSlot, ...], int, int]:
    slots: list[RowSlot] = []
    end = 0
    for spec in specs:
        if not spec.capacity:
            continue
        if slots and slots[0].spec.capacity != spec.capacity:
            raise SpecError(
                f"buffer {spec.name!r}: expected a capacity of {slots[0].spec.capacity} rows, as"
                f" {slots[0].spec.name!r} has: a token has a row in each; found {spec.capacity}"
            )
        size_bytes = spec.dtype.itemsize * math.prod(spec.shape)
        slots.append(RowSlot(spec, end, size_bytes))
        end += -(-size_bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT
    return tuple(slots), end, slots[0].spec.capacity if slots else 0


class Arena:
    """The memory of a layout on one device; no address changes as long as it lives.

    All state of fixed size is one section, so that a capsule is one contiguous copy. What grows
    is another, token by token, so that the rows of the first n tokens are one range of it. Inputs
    are a third, with a host mirror in front of them, so that all observations cross in one copy.

    Attributes:
        layout: What is placed.
        memory: Holds ``fixed`` and ``rows``, and spare sets of both.
        fixed: ``(fixed_bytes,)`` uint8 on the device: the state of fixed size, zeroed.
        rows: ``(capacity, row_bytes)`` uint8 on the device: the rows, zeroed.
        mirror: ``(input_bytes,)`` uint8 on the host, pinned on CUDA; aliases the input section on
            CPU.
        state: Name to view of ``fixed`` or ``rows``.
        inputs: Name to view of the input section.
        mirrors: Name to view of ``mirror``.
        outputs: Name to view of the output section, roles output and scratch.
    """

    def __init__(self, layout: StateLayout, device: Device, spare_sets: int = 0) -> None:
        self.layout = layout
        rows_bytes = layout.capacity * layout.row_bytes
        self.memory = device.allocate_state(layout.fixed_bytes, rows_bytes, spare_sets)
        self.fixed = self.memory.fixed
        self.rows = self.memory.rows.view(layout.capacity, layout.row_bytes)
        self.input_section, self.mirror = device.allocate_mirrored(layout.input_bytes)
        self.output_section = device.allocate(layout.output_bytes)
        self.state: Mapping[str, torch.Tensor] = MappingProxyType(
            {
                **_views(layout.state, self.fixed),
                **{slot.spec.name: slot.view(self.rows) for slot in layout.rows},
            }
        )
        self.inputs = _views(layout.inputs, self.input_section)
        self.mirrors = _views(layout.inputs, self.mirror)
        self.outputs = _views(layout.outputs, self.output_section)


def _views(slots: Iterable[Slot], section: torch.Tensor) -> Mapping[str, torch.Tensor]:
    return MappingProxyType({slot.spec.name: slot.view(section) for slot in slots})
