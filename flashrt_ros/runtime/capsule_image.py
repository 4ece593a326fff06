"""A capsule on the host: all that a capsule file holds, with neither device nor store."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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
class RowBuffer:
    """Where the rows of one buffer lie in the row of a token.

    Attributes:
        name: Of its ``BufferSpec``.
        dtype: Element type.
        shape: Sizes of one row.
        offset: Bytes from the start of the token's row.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of one row of it."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def end(self) -> int:
        """Byte of the token's row behind it."""
        return self.offset + self.size_bytes


@dataclass(frozen=True)
class RowBlock:
    """The committed rows: for each token those of all buffers, side by side.

    Attributes:
        buffers: In the order of their offsets; none overlaps another.
        row_bytes: Size of a token's row; what no buffer covers is zero.
        data: ``(n, row_bytes)``, dense, row-major, little-endian; read only by convention.
    """

    buffers: tuple[RowBuffer, ...]
    row_bytes: int
    data: memoryview

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.data) // self.row_bytes

    def bytes_TB(self) -> npt.NDArray[np.uint8]:
        """Returns ``(n, row_bytes)`` uint8; aliases ``data``."""
        return np.asarray(self.data, np.uint8).reshape(-1, self.row_bytes)

    def gaps(self) -> list[tuple[int, int]]:
        """Returns first byte and end of each stretch of a row that no buffer covers."""
        ends = [0, *(buffer.end for buffer in self.buffers)]
        starts = [*(buffer.offset for buffer in self.buffers), self.row_bytes]
        return [(a, b) for a, b in zip(ends, starts, strict=True) if a < b]


@dataclass(frozen=True)
class CapsuleImage:
    """Facts and bytes, each buffer once; the order of the buffers means nothing.

    Attributes:
        facts: All but the bytes.
        buffers: Those of fixed size.
        rows: Those that grow; None: the policy has none.
    """

    facts: CapsuleFacts
    buffers: tuple[HostBuffer, ...]
    rows: RowBlock | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        rows = 0 if self.rows is None else len(self.rows.data)
        return sum(len(buffer.data) for buffer in self.buffers) + rows

    def by_name(self) -> dict[str, HostBuffer]:
        """Returns name to buffer, of those of fixed size."""
        return {buffer.name: buffer for buffer in self.buffers}
