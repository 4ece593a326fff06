"""The closed set of named static buffers, and the one allocation that holds the state."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import torch

from flashrt_ros.errors import SpecError

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
