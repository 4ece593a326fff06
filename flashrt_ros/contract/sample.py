"""What the sampler answers: plain data, without the messages that it came from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.conversions import Vector
from flashrt_ros.contract.task import TaskText
from flashrt_ros.runtime.picture import BytePicture


@dataclass(frozen=True)
class Received:
    """What ``put`` noticed.

    Attributes:
        time_jump: A header stamp went back: by how much, in words; empty otherwise. Everything
            received before has been dropped.
        fault: Why the message cannot be used, or empty.
        notices: Peculiarities that do not hinder, each said once per topic until ``clear``.
    """

    time_jump: str = ""
    fault: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputStamp:
    """Which message stood behind one part of an observation.

    Attributes:
        observation: Policy port.
        topic: As the contract writes it.
        stamp_ns: Header stamp, clock of the publisher; 0 where there is none.
        age_ms: Steady clock, from reception to the sample; NaN without a message.
        digest: Of the serialized message, as given to ``put``.
        sequence: Messages received on the topic so far, this one included; 0 without a message.
        present: False where an optional input's fill value was used.
        fault: Why this input hinders the sample, or empty.
        lasting: It holds until the next one comes, so its age says nothing.
    """

    observation: str
    topic: str
    stamp_ns: int = 0
    age_ms: float = float("nan")
    digest: int = 0
    sequence: int = 0
    present: bool = True
    fault: str = ""
    lasting: bool = False


@dataclass(frozen=True)
class Sample:
    """Observations as of one moment.

    Attributes:
        observations: Port key to float32 vector or image, images perhaps uint8 and not to be
            written, or a ``BytePicture`` where the sampler leaves them so; a port with a fault is
            missing.
        stamps: One for each observation and topic.
        faults: ``key (topic): reason`` for each input that hinders; empty: go ahead.
        notices: Peculiarities that do not hinder, such as missing stamps.
        measured: Positions in the order of ``start.measured.names``, float32; None where not
            fresh, or where the contract has no start check.
        measured_fault: Why ``measured`` is None.
        task: The last task text that came since the beginning; None: none, or the contract reads
            none. Neither age nor reset touch it.
        now_ns: Steady clock, the moment.
    """

    observations: dict[str, npt.NDArray[Any] | BytePicture]
    stamps: tuple[InputStamp, ...]
    faults: tuple[str, ...]
    notices: tuple[str, ...] = ()
    measured: Vector | None = None
    measured_fault: str = ""
    task: TaskText | None = None
    now_ns: int = 0

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The observations, those that were left in bytes as numbers."""
        return {key: np.asarray(value) for key, value in self.observations.items()}

    def age_ms(self, now_ns: int, keys: Collection[str]) -> float:
        """Age of the input that is oldest at ``now_ns``, steady clock; NaN where there is none.

        Args:
            now_ns: Steady clock.
            keys: Observations that count; of a history its newest message does.
        """
        newest: dict[tuple[str, str], float] = {}
        for stamp in self.stamps:
            if (
                stamp.observation in keys
                and stamp.present
                and stamp.sequence
                and not stamp.lasting
            ):
                key = (stamp.observation, stamp.topic)
                newest[key] = min(newest.get(key, stamp.age_ms), stamp.age_ms)
        if not newest:
            return float("nan")
        return max(newest.values()) + (now_ns - self.now_ns) / 1e6
