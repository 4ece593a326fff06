"""The table of rows in the header of a capsule file: what lies where in the row of a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashrt_ros.errors import CorruptError
from flashrt_ros.runtime import strict_json as js
from flashrt_ros.runtime.buffers import BUFFER_NAME
from flashrt_ros.runtime.capsule_image import DTYPES, RowBuffer, dtype_name
from flashrt_ros.runtime.fingerprint import describe_rows

ROWS_TENSOR = "__rows__"
"""Name of the rows in the tensor table: no buffer can be called that."""
MAX_ROW_BYTES = 1 << 30
_KEYS = ("dtype", "name", "offset", "shape")
MAX_DIMENSIONS = 16


def encode_rows(rows: Sequence[RowBuffer]) -> str:
    """Returns the text of the table."""
    return js.canonical(
        [
            {
                "dtype": dtype_name(row.dtype),
                "name": row.name,
                "offset": row.offset,
                "shape": list(row.shape),
            }
            for row in rows
        ]
    )


def decode_rows(table: object, row_bytes: int) -> tuple[RowBuffer, ...]:
    """Returns the table, which must be sorted by offset, without overlaps.

    Raises:
        CorruptError: It is not, or reaches beyond ``row_bytes``.
    """
    if not isinstance(table, list) or not table:
        raise CorruptError(f"rows: expected a list of buffers, found {js.shown(table)}")
    rows: list[RowBuffer] = []
    end = 0
    for line in table:
        line = js.record("rows", line, _KEYS)
        name = js.text("rows: name", line["name"])
        where = f"rows: {js.shown(name)}"
        if not BUFFER_NAME.fullmatch(name) or name in {row.name for row in rows}:
            raise CorruptError(f"{where}: expected the name of a buffer, each once")
        dtype = DTYPES.get(js.text(f"{where}: dtype", line["dtype"]))
        if dtype is None:
            raise CorruptError(f"{where}: unknown dtype {js.shown(line['dtype'])}")
        offset = js.integer(f"{where}: offset", line["offset"], MAX_ROW_BYTES)
        row = RowBuffer(name, dtype, shape_of(where, line["shape"], MAX_ROW_BYTES), offset)
        if offset < end or row.end > row_bytes:
            raise CorruptError(
                f"{where}: offset: expected {end} or more, and an end within the {row_bytes}"
                f" bytes of a row, found {offset} to {row.end}"
            )
        end = row.end
        rows.append(row)
    return tuple(rows)


def shape_of(where: str, shape: object, most: int) -> tuple[int, ...]:
    """Returns sizes of at least 1.

    Raises:
        CorruptError: They are something else.
    """
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise CorruptError(
            f"{where}: shape: expected at most {MAX_DIMENSIONS} sizes, found {js.shown(shape)}"
        )
    sizes = tuple(js.integer(f"{where}: shape", size, most) for size in shape)
    if 0 in sizes:
        raise CorruptError(f"{where}: shape: expected sizes of at least 1, found {shape}")
    return sizes


def described(rows: Sequence[RowBuffer]) -> Mapping[str, str]:
    """Returns the fields of a state fingerprint that name these rows."""
    return {f"state.{row.name}": describe_rows(row.dtype, row.shape) for row in rows}


def block_shape(where: str, line: Mapping[str, Any]) -> tuple[int, int]:
    """Returns number and bytes of the rows, as the tensor table says.

    Raises:
        CorruptError: It says something else.
    """
    shape = line["shape"]
    if line["dtype"] != "U8" or not isinstance(shape, list) or len(shape) != 2:
        raise CorruptError(
            f"{where}: expected U8 of shape [rows, bytes of a row], found"
            f" {js.shown(line['dtype'])} of {js.shown(shape)}"
        )
    count = js.integer(f"{where}: shape", shape[0])
    row_bytes = js.integer(f"{where}: shape", shape[1], MAX_ROW_BYTES)
    if not row_bytes:
        raise CorruptError(f"{where}: shape: expected rows of at least 1 byte, found {shape}")
    return count, row_bytes
