"""The first command after activate, restore, rollback, reset or resume: near, blended, or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.messages import Values
from flashrt_ros.contract.pose import POSE, POSITION, ROTATION, PoseForm, angle, between
from flashrt_ros.contract.schema import Output, Start
from flashrt_ros.errors import ContractError

LONGEST_LEAD_PERIODS = 2
"""Control periods that the ramp may go on by between two commands: the jitter of one period."""


@dataclass(frozen=True)
class Admitted:
    """What the gate makes of one action.

    Attributes:
        action: ``(A,)`` float64 to go on with; None where nothing may leave.
        refused: Why not; empty where it may.
        share: Part of the way to the action that it has let pass; 1: all of it.
        origin: Measured positions or pose where the ramp begins; None without one.
    """

    action: Values | None
    refused: str = ""
    share: float = 1.0
    origin: Values | None = None

    @property
    def blending(self) -> bool:
        """Whether the ramp runs."""
        return self.origin is not None


def distance_fault(
    contract: Contract, action: npt.ArrayLike, measured: npt.ArrayLike | None
) -> str:
    """Says by how much a first command is too far away; empty where it is near enough.

    Args:
        contract: Whose ``start`` applies; without one every command is near enough.
        action: ``(A,)`` in contract units.
        measured: Positions in the order of ``start.measured.names``; None: not known.

    Raises:
        ContractError: Another number of positions than the contract names.
    """
    start = contract.start
    if start is None:
        return ""
    if start.pose is not None:
        return _pose_fault(start, start.pose, action, measured)
    names = start.measured.names
    if measured is None:
        return f"measured position unknown: expected {list(names)} on {start.measured.topic!r}"
    wanted = np.asarray(action, dtype=np.float64)[list(start.index)]
    positions = np.asarray(measured, dtype=np.float64)
    if positions.shape != wanted.shape:
        raise ContractError(
            f"measured positions: expected {len(names)} ({list(names)}), found shape "
            f"{positions.shape}"
        )
    unit = f" {start.measured.unit}" if start.measured.unit else ""
    faults = [
        f"{name}: command {w:.6g} is {abs(w - p):.6g}{unit} from the measured "
        f"{p:.6g}, more than max_distance {start.max_distance[name]:.6g}"
        for name, w, p in zip(names, wanted, positions, strict=True)
        # Written so that a NaN counts as too far.
        if not abs(w - p) <= start.max_distance[name]
    ]
    return "; ".join(faults)


def _pose_fault(
    start: Start, output: Output, action: npt.ArrayLike, measured: npt.ArrayLike | None
) -> str:
    """As ``distance_fault``: metres along each axis, and one angle."""
    if measured is None:
        return f"measured pose unknown: expected one on {start.measured.topic!r}"
    here, fault = measured_pose(measured)
    if fault:
        return f"measured pose on {start.measured.topic!r}: {fault}"
    elements = np.asarray(action, dtype=np.float64)[list(output.index)]
    there, fault = PoseForm(output.rotation, output.names).pose(elements)
    if fault:
        return fault
    away = [*np.abs(there[:3] - here[:3]).tolist(), angle(there[3:], here[3:])]
    return "; ".join(
        f"{name}: command is {distance:.6g} {'rad' if name == ROTATION else 'm'} from the "
        f"measured pose, more than max_distance {start.max_distance[name]:.6g}"
        for name, distance in zip((*POSITION, ROTATION), away, strict=True)
        # Written so that a NaN counts as too far.
        if not distance <= start.max_distance[name]
    )


def measured_pose(measured: npt.ArrayLike) -> tuple[Values, str]:
    """A measured pose with a unit quaternion, and why it is none.

    Raises:
        ContractError: Not seven numbers.
    """
    values = np.array(measured, dtype=np.float64)
    if values.shape != (len(POSE),):
        raise ContractError(
            f"measured pose: expected {len(POSE)} numbers ({', '.join(POSE)}), found shape "
            f"{values.shape}"
        )
    return PoseForm("quaternion", POSE).pose(values)


@dataclass(frozen=True)
class GateStanding:
    """What a gate knows, for another that is to go on from there.

    Attributes:
        armed: The next action is a first one.
        origin: Measured positions from which it leads up to actions; None: it does not.
        led_s: For how long it has led.
        last_ns: When it led last; the clock of ``StartGate.admit``.
    """

    armed: bool = True
    origin: tuple[float, ...] | None = None
    led_s: float = 0.0
    last_ns: int = 0


class StartGate:
    """Holds back first commands that lie too far away, or leads up to them.

    Used by the control thread alone: ``arm_`` when motion may begin anew, ``admit`` with every
    action. Open from the first admitted action on, until armed again.
    """

    def __init__(self, contract: Contract) -> None:
        """Begins armed."""
        self.contract = contract
        self._armed = True
        self._from: Values | None = None
        self._led_s = 0.0
        self._last_ns = 0

    @property
    def armed(self) -> bool:
        """Whether the next action counts as a first one."""
        return self._armed

    @property
    def standing(self) -> GateStanding:
        """What it knows; ``go_on`` of another gate takes it."""
        origin = None if self._from is None else tuple(self._from.tolist())
        return GateStanding(self._armed, origin, self._led_s, self._last_ns)

    def go_on(self, standing: GateStanding) -> None:
        """Goes on as the gate that stood so."""
        self._armed = standing.armed
        self._from = None if standing.origin is None else np.array(standing.origin)
        self._led_s, self._last_ns = standing.led_s, standing.last_ns

    def arm_(self) -> None:
        """Makes the next action a first one."""
        self._armed, self._from = True, None

    def admit(
        self, action: npt.ArrayLike, measured: npt.ArrayLike | None, now_ns: int
    ) -> Admitted:
        """Passes, blends or refuses one action.

        Args:
            action: ``(A,)`` in contract units.
            measured: Positions in the order of ``start.measured.names``; None: not known. Only
                looked at while armed.
            now_ns: Steady clock.

        Raises:
            ContractError: Another number of positions than the contract names.
        """
        values = np.array(action, dtype=np.float64)
        start = self.contract.start
        if start is None:
            self._armed = False
            return Admitted(values)
        if self._armed:
            fault = distance_fault(self.contract, values, measured)
            finite = measured is not None and bool(
                np.isfinite(np.asarray(measured, dtype=np.float64)).all()
            )
            if start.pose is not None and finite:
                # No way leads from a pose that is none.
                finite = not measured_pose(np.asarray(measured))[1]
            if fault and not (start.ramp_s > 0.0 and finite and np.isfinite(values).all()):
                return Admitted(None, fault)
            self._armed = False
            if fault:
                self._from = np.array(measured, dtype=np.float64)
                self._led_s, self._last_ns = 0.0, now_ns
        if self._from is None:
            return Admitted(values)
        # The first blended command already moves by one control period's share. While no command
        # leaves the ramp stands still, else a gap in it would become a jump of the arm.
        period_s = self.contract.period_s
        gap_s = (now_ns - self._last_ns) * 1e-9
        self._led_s += min(gap_s, LONGEST_LEAD_PERIODS * period_s) if self._led_s else period_s
        self._last_ns = now_ns
        share = self._led_s / start.ramp_s
        if share >= 1.0:
            self._from = None
            return Admitted(values)
        origin = self._from.copy()
        return Admitted(blend(start, values, origin, share), "", share, origin)


def blend(start: Start, action: Values, origin: Values, share: float) -> Values:
    """What the start ramp makes of an action.

    Args:
        start: Of the contract.
        action: ``(A,)`` in contract units.
        origin: Measured positions in the order of ``start.measured.names``, or a pose.
        share: Part of the way from there to the action, below 1.
    """
    values = np.array(action, dtype=np.float64)
    index = list(start.index)
    if start.pose is None:
        values[index] = origin + share * (values[index] - origin)
        return values
    form = PoseForm(start.pose.rotation, start.pose.names)
    here, _ = measured_pose(origin)
    there, fault = form.pose(values[index])
    # An action that is no pose goes on as it is: the shaper says what is wrong with it.
    if not fault and bool(np.isfinite(there).all()):
        values[index] = form.elements(between(here, there, share))
    return values
