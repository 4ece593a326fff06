"""One received message, as the sampler keeps it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.framed import Framed
from flashrt_ros.contract.image.reader import Frame
from flashrt_ros.contract.schema import Input
from flashrt_ros.runtime.picture import BytePicture

Array = npt.NDArray[Any]


@dataclass
class Message:
    """What one message holds for each source that reads its topic.

    Attributes:
        received_ns: Steady clock.
        stamp_ns: Header stamp, clock of the publisher; 0 where there is none.
        digest: Of the serialized message.
        sequence: Messages received on the topic so far, this one included.
        values: What was read; images perhaps not yet decoded, poses not yet transformed.
        faults: Why something could not be read.
        text: Of a task.
    """

    received_ns: int
    stamp_ns: int = 0
    digest: int = 0
    sequence: int = 0
    values: dict[Input, np.ndarray[Any, Any] | Frame | Framed] = dataclasses.field(
        default_factory=dict
    )
    faults: dict[Input, str] = dataclasses.field(default_factory=dict)
    text: str = ""

    def value(self, source: Input) -> Array:
        """What ``source`` reads.

        Raises:
            ContractError: An image turned out to be damaged, or there is no transform.
        """
        value = self.seen(source)
        return value if isinstance(value, np.ndarray) else np.asarray(value)

    def seen(self, source: Input) -> Array | BytePicture:
        """The same, but for images that were left in bytes.

        Raises:
            ContractError: As ``value``.
        """
        value = self.values[source]
        if isinstance(value, Frame):
            return value.picture()
        return value if isinstance(value, np.ndarray) else value.array()
