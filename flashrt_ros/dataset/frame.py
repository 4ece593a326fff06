"""One frame of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import CorruptError

Vector = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Frame:
    """What was recorded at one moment; pictures are decoded when they are asked for.

    Attributes:
        index: Number in the whole data set.
        episode: ``episode_index``.
        step: Number in the episode.
        time_ns: Time in the whole data set, its episodes laid end to end, from 0.
        task: What was to be done; empty where unknown.
        vectors: By key: ``(elements,)`` in the type of the file.
        faults: By key, why there is no vector.
    """

    index: int
    episode: int
    step: int
    time_ns: int
    task: str
    vectors: Mapping[str, Vector]
    faults: Mapping[str, str]
    _pictures: Mapping[str, Callable[[], Pixels]] = field(default_factory=dict, repr=False)

    def image(self, key: str) -> Pixels:
        """Returns the picture of a camera, ``(H, W, C)`` uint8, colors red, green, blue.

        Raises:
            CorruptError: It is missing or damaged; in words that name the file.
        """
        picture = self._pictures.get(key)
        if picture is None:
            raise CorruptError("no such column in the file")
        return picture()
