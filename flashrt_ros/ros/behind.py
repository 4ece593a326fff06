"""What stands behind an action: the samples and the plan that it was computed from.

A plan beside sees an older sample than the control steps that take its rows, and that sample may
have come in a control period which took no action at all. Nothing else in the node knows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from flashrt_ros.contract import InputStamp, Sample
from flashrt_ros.contract.rebuild import array_digest
from flashrt_ros.ros.records import PlanOrigin


class Behind:
    """Used by the control thread alone.

    Attributes:
        sample: What the present chunk was planned from, or what the last control step saw; None
            where a verb brought the chunk back.
        act_stamps: What the last control step saw besides.
        adopted: The plan whose chunk was adopted for this control step; None: none was.
        digest: Of the arrays in ``sample``; 0 where none was asked for.
    """

    def __init__(self) -> None:
        """Knows of nothing."""
        self.sample: Sample | None = None
        self.act_stamps: tuple[InputStamp, ...] = ()
        self.adopted: PlanOrigin | None = None
        self.digest = 0
        self._begun: tuple[Sample, PlanOrigin, int] | None = None

    def begin(self, sample: Sample, origin: PlanOrigin, digested: bool) -> None:
        """A plan begins to run beside control steps."""
        self._begun = sample, origin, array_digest(sample.arrays()) if digested else 0

    def adopt(self, consumed: int) -> None:
        """That plan is adopted, so many control steps later."""
        assert self._begun is not None
        self.sample, origin, self.digest = self._begun
        self.adopted = replace(origin, consumed=consumed)

    def stepped(self, sample: Sample, origin: PlanOrigin | None, digested: bool) -> None:
        """A control step on this thread; ``origin``: it began with a plan."""
        self.sample = sample
        self.digest = array_digest(sample.arrays()) if digested else 0
        if origin is not None:
            self.adopted = origin

    def saw(self, sample: Sample) -> None:
        """An act beside plans took an observation in."""
        self.act_stamps = sample.stamps

    def age_ms(self, now_ns: int, keys: Collection[str]) -> float:
        """Age of the oldest input, see ``Sample.age_ms``; NaN where nothing is known of it."""
        return float("nan") if self.sample is None else self.sample.age_ms(now_ns, keys)

    def facts(self) -> dict[str, Any]:
        """Its part of a ``StepRecord``."""
        return {
            "stamps": () if self.sample is None else self.sample.stamps,
            "act_stamps": self.act_stamps,
            "plan": self.adopted,
            "observation_digest": self.digest,
        }

    def end(self) -> None:
        """The control step is on record, or was taken back."""
        self.act_stamps = ()
        self.adopted = None

    def forget(self) -> None:
        """The state is another one now; records of its own time name what is behind it."""
        self.sample = self._begun = None
        self.digest = 0
        self.end()
