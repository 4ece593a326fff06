"""What a control step asks for observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flashrt_ros.contract import Sample
from flashrt_ros.contract.task import TaskText
from flashrt_ros.runtime.picture import BytePicture


class Source(Protocol):
    """Where observations come from: the intake in the node."""

    def sample(self, now_ns: int, not_before_ns: int) -> Sample:
        """Observations as of ``now_ns``, from messages received at ``not_before_ns`` or later."""

    def pictures(self, now_ns: int, not_before_ns: int) -> Mapping[str, BytePicture]:
        """Of these observations those that cross to a device as bytes, and have no fault.

        A glance ahead: nothing takes it for a sample, and a jump in time does not matter to it.
        """

    def take_jump(self) -> tuple[int, str] | None:
        """The last jump back in time not yet taken: steady receive time, and words."""

    def clear(self) -> None:
        """Drops all that was received."""

    def task(self) -> TaskText | None:
        """The last task text that came."""
