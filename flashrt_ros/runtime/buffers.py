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
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: Role
    unit: str = ""

    def __post_init__(self) -> None:
        if not BUFFER_NAME.fullmatch(self.name):
            raise SpecError(
                f"buffer name {self.name!r}: expected dotted lower-case words such as 'rnn.h.0'"
            )
        if any(not isinstance(size, int) or size < 1 for size in self.shape):
            raise SpecError(
                f"buffer {self.name!r}: expected sizes of at least 1, found shape {self.shape}"
            )


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


class StateLayout:
    """Places every declared buffer: state, inputs, outputs with scratch, each in one section.

    Attributes:
        specs: All declarations, in the order given.
        state: Slots of the fixed section, in the order declared.
        inputs: Slots of the input section.
        outputs: Slots of the output section, scratch included.
        fixed_bytes: Size of the fixed section, padding included: what one capsule weighs.
        input_bytes: Size of the input section.
        output_bytes: Size of the output section.

    Raises:
        SpecError: Two buffers have one name, or there is nothing to place.
    """

    def __init__(self, specs: Iterable[BufferSpec]) -> None:
        self.specs: tuple[BufferSpec, ...] = tuple(specs)
        seen: set[str] = set()
        for spec in self.specs:
            if spec.name in seen:
                raise SpecError(f"buffer {spec.name!r} is declared twice; names must be unique")
            seen.add(spec.name)
        self.state, self.fixed_bytes = _place(self.specs, (Role.STATE,))
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


class Arena:
    """The memory of a layout on one device; no address changes as long as it lives.

    All state is one allocation, so that a capsule is one contiguous copy. Inputs are another, with
    a host mirror in front of them, so that all observations cross in one copy.

    Attributes:
        layout: What is placed.
        fixed: ``(fixed_bytes,)`` uint8 on the device: the state, zeroed.
        mirror: ``(input_bytes,)`` uint8 on the host, pinned on CUDA; aliases the input section on
            CPU.
        state: Name to view of ``fixed``.
        inputs: Name to view of the input section.
        mirrors: Name to view of ``mirror``.
        outputs: Name to view of the output section, roles output and scratch.
    """

    def __init__(self, layout: StateLayout, device: Device) -> None:
        self.layout = layout
        self.fixed = device.allocate(layout.fixed_bytes)
        self.input_section, self.mirror = device.allocate_mirrored(layout.input_bytes)
        self.output_section = device.allocate(layout.output_bytes)
        self.state = _views(layout.state, self.fixed)
        self.inputs = _views(layout.inputs, self.input_section)
        self.mirrors = _views(layout.inputs, self.mirror)
        self.outputs = _views(layout.outputs, self.output_section)


def _views(slots: Iterable[Slot], section: torch.Tensor) -> Mapping[str, torch.Tensor]:
    return MappingProxyType({slot.spec.name: slot.view(section) for slot in slots})
