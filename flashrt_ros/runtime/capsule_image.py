"""A capsule on the host: all that a capsule file holds, with neither device nor store."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashrt_ros.errors import UnsupportedError
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.policy import HostRecord

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
}
"""Element types by the names that safetensors gives them."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of an element type in files.

    Raises:
        UnsupportedError: Files do not know it.
    """
    if dtype not in _NAMES:
        raise UnsupportedError(
            f"capsule files: expected an element type among {', '.join(DTYPES)}, found {dtype}"
        )
    return _NAMES[dtype]


@dataclass(frozen=True)
class CapsuleFacts:
    """All of a capsule but its bytes; the attributes are those of ``Capsule``."""

    id: str
    name: str
    parent_id: str
    created_ns: int
    tick: int
    generation: int
    noise_key: int | None
    host: HostRecord
    state_fingerprint: Fingerprint
    exec_fingerprint: Fingerprint


@dataclass(frozen=True)
class HostBuffer:
    """One state buffer.

    Attributes:
        name: Of its ``BufferSpec``.
        dtype: Element type.
        shape: Sizes; ``()`` for a scalar.
        data: Its elements, dense, row-major, little-endian; ``uint8``, read only by convention.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: memoryview

    def tensor(self) -> torch.Tensor:
        """Returns a copy as a tensor on the host."""
        return torch.frombuffer(bytearray(self.data), dtype=self.dtype).view(self.shape)


@dataclass(frozen=True)
class CapsuleImage:
    """Facts and bytes, each buffer once; the order of the buffers means nothing."""

    facts: CapsuleFacts
    buffers: tuple[HostBuffer, ...]

    def by_name(self) -> dict[str, HostBuffer]:
        """Returns name to buffer."""
        return {buffer.name: buffer for buffer in self.buffers}
