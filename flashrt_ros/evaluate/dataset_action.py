"""The recorded action of a data set's frames, and where the robot was measured to be."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.contract import Contract
from flashrt_ros.dataset.frame import Frame
from flashrt_ros.dataset.info import Info
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.evaluate.dataset_ports import bare, order
from flashrt_ros.runtime.policy import Port

ACTION, STATE = "action", "observation.state"

Vector = npt.NDArray[np.float64]


class ActionReader:
    """Reads the action as the policy orders it, and the state by the names of its elements.

    Args:
        name: Of the data set, for errors.
        info: What it says of itself.
        port: The policy's action.
        contract: Names and start check; None: neither.

    Raises:
        InvalidArgumentError: The action's elements do not fit, or the contract's start check asks
            for what the data set does not tell.

    Attributes:
        keys: Features that are read.
        notices: What is worth a word.
    """

    def __init__(self, name: str, info: Info, port: Port, contract: Contract | None) -> None:
        self.keys = [key for key in (ACTION, STATE) if key in info.features]
        self.notices: list[str] = []
        self._size = size = math.prod(port.shape)
        self._start = contract.start if contract is not None else None
        spoken = [port.names, *_said(contract, size)]
        known = [names for names in spoken if names]
        action = info.features.get(ACTION)
        self._order: npt.NDArray[np.intp] | None = None
        own: list[str] = [""] * size
        if action is None or not action.is_vector:
            self.notices.append(f"{ACTION}: not in the data set: nothing to compare with")
        else:
            self._order, by_position = order(f"{name}: {ACTION}", action, size, known)
            if by_position and known:
                self.notices.append(f"{ACTION}: no names in the data set: taken by position")
            if action.names:
                own = [action.names[place] for place in self._order]
        state = info.features.get(STATE)
        columns = state.names if state is not None and state.is_vector else ()
        self._columns: dict[int, int] = {}
        for element in range(size):
            words = {names[element] for names in known} | {own[element]}
            place = _place(words - {""}, columns)
            if place is not None:
                self._columns[element] = place
        self._check_start(name, contract)

    def recorded(self, frame: Frame) -> Vector:
        """``(A,)`` float64; NaN where there is none."""
        vector = frame.vectors.get(ACTION)
        if vector is None or self._order is None:
            return np.full(self._size, np.nan)
        return vector[self._order].astype(np.float64)

    def state(self, frame: Frame) -> Vector:
        """``(A,)`` float64, where each element is measured to be; NaN where not known."""
        state_A = np.full(self._size, np.nan)
        vector = frame.vectors.get(STATE)
        if vector is not None and self._columns:
            state_A[list(self._columns)] = vector[list(self._columns.values())]
        return state_A

    def measured(self, state_A: Vector) -> tuple[npt.NDArray[np.float32] | None, str]:
        """For the check of a first command, as ``Sample.measured``; and why there is none."""
        if self._start is None:
            return None, ""
        values = state_A[list(self._start.index)].astype(np.float32)
        if np.isfinite(values).all():
            return values, ""
        return None, f"{STATE}: no finite values"

    def _check_start(self, name: str, contract: Contract | None) -> None:
        if contract is None or self._start is None:
            return
        unknown = [i for i in self._start.index if i not in self._columns]
        if unknown or self._start.pose is not None:
            what = "a pose" if self._start.pose is not None else f"action elements {unknown}"
            raise InvalidArgumentError(
                f"{name}: {STATE}: expected the measured position of {what}, which the start "
                f"check of {contract.source} asks for, found no elements of these names; evaluate "
                "with a contract that says `start: unchecked`, or without one"
            )


def _said(contract: Contract | None, size: int) -> list[tuple[str, ...]]:
    """What a contract calls the elements: as the policy's, then as the robot's."""
    if contract is None:
        return []
    theirs, robots = [""] * size, [""] * size
    for output in contract.actions:
        elements = output.elements or output.names
        for index, element, name in zip(output.index, elements, output.names, strict=True):
            theirs[index], robots[index] = element, name
    return [tuple(theirs), tuple(robots)]


def _place(words: set[str], columns: tuple[str, ...]) -> int | None:
    """The one column that an element's names mean; None where there is none, or more."""
    for wanted, there in (
        (words, list(columns)),
        ({bare(word) for word in words}, [bare(name) for name in columns]),
    ):
        found = [place for place, name in enumerate(there) if name in wanted]
        if len(found) == 1:
            return found[0]
    return None
