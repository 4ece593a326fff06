"""Where each element of the action is measured to be, as far as the contract tells."""

from __future__ import annotations

import numpy as np

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.messages import Values
from flashrt_ros.contract.pose import PoseForm
from flashrt_ros.contract.sample import Sample
from flashrt_ros.contract.schema import Output
from flashrt_ros.contract.start import measured_pose


class MeasuredState:
    """Finds, for each element, the measurement of what it commands.

    ``start.measured`` says it outright. Elsewhere an observation counts whose name and field are
    those of the command, or of the policy's word for it; nothing goes by position.
    """

    def __init__(self, contract: Contract, size: int) -> None:
        """Looks for a measurement of each element.

        Args:
            contract: Observations, actions and start check.
            size: Elements of the action.
        """
        self._size = size
        self._start: list[int] = []
        self._pose: tuple[Output, PoseForm] | None = None
        if contract.start is not None and contract.start.pose is not None:
            output = contract.start.pose
            self._pose = (output, PoseForm(output.rotation, output.names))
        elif contract.start is not None:
            self._start = list(contract.start.index)
        self._columns: list[tuple[int, str, int]] = []
        known = set(self._start) | set(self._pose[0].index if self._pose else ())
        for output in contract.actions:
            for place, element in enumerate(output.index):
                found = None if element in known else _column(contract, output, place)
                if found is not None:
                    self._columns.append((element, *found))

    def __call__(self, sample: Sample) -> Values:
        """``(A,)`` float64, contract units; NaN where nothing fresh is known."""
        state_A = np.full(self._size, np.nan)
        if sample.measured is not None:
            if self._start:
                state_A[self._start] = sample.measured
            elif self._pose is not None:
                pose, fault = measured_pose(sample.measured)
                if not fault:
                    state_A[list(self._pose[0].index)] = self._pose[1].elements(pose)
        for element, key, column in self._columns:
            found = sample.observations.get(key)
            if found is not None:
                value = np.asarray(found)
                state_A[element] = value[column] if value.ndim == 1 else value[-1, column]
        return state_A


def _column(contract: Contract, output: Output, place: int) -> tuple[str, int] | None:
    """Observation and column that measure one element of an output."""
    wanted = {output.names[place]}
    if output.elements:
        wanted.add(output.elements[place])
    for observation in contract.observations:
        offset = 0
        for part in observation.parts:
            if part.field == output.field:
                for position, name in enumerate(part.names):
                    element = part.elements[position] if part.elements else name
                    if name in wanted or element in wanted:
                        return observation.key, offset + position
            offset += len(part.names)
    return None
