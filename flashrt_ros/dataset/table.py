"""Rows of the files under ``data/``, streamed: a batch at a time, never a whole file.

Suffixes: N rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.dataset.extras import parquet, reading
from flashrt_ros.dataset.info import BOOKKEEPING, Feature
from flashrt_ros.errors import CorruptError

ROWS, ROWS_WITH_IMAGES = 512, 16
"""Rows of a batch; pictures lie in the rows as they were compressed."""
BUFFER_BYTES = 1 << 20

Vector = npt.NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """Some rows of one file.

    Attributes:
        numbers: ``(N,)`` int64 by name, of ``BOOKKEEPING``, and ``timestamp`` as float64 seconds.
        values: By key of the feature: for each row ``(elements,)`` in the file's type, or in words
            why there is none.
        images: By key: for each row what is stored of the picture.
    """

    numbers: Mapping[str, npt.NDArray[Any]]
    values: Mapping[str, Sequence[Vector | str]]
    images: Mapping[str, Sequence[Mapping[str, Any] | bytes | None]]

    def __len__(self) -> int:
        return len(self.numbers["index"])


class DataFile:
    """One file of rows, open for reading.

    Args:
        path: The file.

    Raises:
        CorruptError: It is damaged or lacks a column that every data set has.
    """

    def __init__(self, path: Path) -> None:
        with reading():
            self._file = parquet().ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
            self._names = set(self._file.schema_arrow.names)
        missing = [name for name in BOOKKEEPING if name not in self._names]
        if missing:
            self.close()
            raise CorruptError(f"no column {', '.join(missing)}")

    @property
    def rows(self) -> int:
        """Rows of the whole file."""
        return int(self._file.metadata.num_rows)

    def holds(self, key: str) -> bool:
        """Whether there is a column of this name."""
        return key in self._names

    def batches(self, features: Sequence[Feature], start: int = 0) -> Iterator[Batch]:
        """Yields the rows from ``start`` (a value of ``index``) on.

        Raises:
            CorruptError: Damaged farther on; what came before was good.
        """
        features = [f for f in features if self.holds(f.key)]
        columns = [*BOOKKEEPING, *(feature.key for feature in features)]
        images = any(feature.is_image for feature in features)
        with reading():
            groups = [g for g in range(self._file.num_row_groups) if self._last(g) >= start]
            batches = self._file.iter_batches(
                ROWS_WITH_IMAGES if images else ROWS, row_groups=groups, columns=columns
            )
        while True:
            with reading():
                found = next(batches, None)
                if found is None:
                    return
                batch = _batch(found, features, start)
            if len(batch):
                yield batch

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _last(self, group: int) -> int:
        """Highest ``index`` of a row group."""
        facts = self._file.metadata.row_group(group)
        for number in range(facts.num_columns):
            column = facts.column(number)
            statistics = column.statistics if column.path_in_schema == "index" else None
            if statistics is not None and statistics.has_min_max:
                return int(statistics.max)
        indices = self._file.read_row_group(group, columns=["index"])["index"].to_numpy()
        return int(indices.max()) if len(indices) else -1


def _batch(found: Any, features: Sequence[Feature], start: int) -> Batch:
    index = found.column("index").to_numpy(zero_copy_only=False)
    if start:
        found = found.filter(index >= start)
    numbers = {}
    for name in BOOKKEEPING:
        column = found.column(name).to_numpy(zero_copy_only=False)
        numbers[name] = column.astype(np.float64 if name == "timestamp" else np.int64)
    values: dict[str, Sequence[Vector | str]] = {}
    images: dict[str, Sequence[Any]] = {}
    for feature in features:
        column = found.column(feature.key)
        if feature.is_image:
            images[feature.key] = column.to_pylist()
        else:
            values[feature.key] = _vectors(column, feature)
    return Batch(numbers, values, images)


def _vectors(column: Any, feature: Feature) -> Sequence[Vector | str]:
    """Each row of a column as a vector, whatever lists it is nested in."""
    size, count = feature.size, len(column)
    flat = column
    regular = True
    while hasattr(flat, "flatten") and flat.type.num_fields == 1:
        lengths = flat.value_lengths().to_numpy(zero_copy_only=False)
        regular = regular and not flat.null_count and len(set(lengths.tolist())) <= 1
        flat = flat.flatten()
    if regular and not flat.null_count and len(flat) == count * size:
        rows_NE: Vector = flat.to_numpy(zero_copy_only=False).reshape(count, size)
        return list(rows_NE)
    return [_vector(value, feature) for value in column.to_pylist()]


def _vector(value: Any, feature: Feature) -> Vector | str:
    """One row that is not like the others, or what is wrong with it."""
    if value is None:
        return "no value"
    try:
        vector = np.asarray(value, dtype=feature.dtype).reshape(-1)
    except (TypeError, ValueError):
        return "no numbers"
    if vector.dtype.kind == "f" and np.isnan(vector).any():  # which is also what None becomes
        return "numbers are missing"
    if len(vector) != feature.size:
        return f"expected {feature.size} elements, found {len(vector)}"
    return vector
