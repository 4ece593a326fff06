"""From the action vector to commands: finite, within limits, no step too long, or not at all.

Everything is a function of its arguments: the caller keeps the last command and the clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.messages import OUTPUT_TYPES, Fields, Values
from flashrt_ros.contract.pose import POSE, ROTATION, PoseForm, angle, turn
from flashrt_ros.contract.schema import Output
from flashrt_ros.contract.start import measured_pose
from flashrt_ros.errors import ContractError

Commands = Mapping[str, Values]
"""Topic to the values of its command: in the order of the output's names, or the seven numbers of
a pose."""

ROUNDING = 1e-6
"""Relative excess that ``refuse`` forgives: a float32 action cannot hit a decimal limit."""


@dataclass(frozen=True)
class Shaped:
    """What may leave of one action.

    Attributes:
        commands: Topic to float64 values; empty where the frame was dropped.
        action: ``(A,)`` float64, the action after limits, for the record.
        dropped: Why nothing may leave; empty where something may.
        limited: What was changed, in words, one entry for each element.
    """

    commands: dict[str, Values]
    action: Values
    dropped: str = ""
    limited: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """One message to send.

    Attributes:
        output: Where it goes.
        fields: Of the message, nested plain values.
        values: The same as numbers, see ``Commands``.
        repeat: True where it is sent again in each control step until fresh actions come, false
            where it is sent once and then nothing.
    """

    output: Output
    fields: Fields
    values: Values = field(compare=False)
    repeat: bool = False


class ActionShaper:
    """Applies a contract's ``actions``."""

    def __init__(self, contract: Contract) -> None:
        """Prepares arrays of limits and steps."""
        self.contract = contract
        self.size = 1 + max(
            [*contract.unused_actions, *(i for output in contract.actions for i in output.index)]
        )
        self._index = {o.topic: np.array(o.index, dtype=np.intp) for o in contract.actions}
        self._low = {
            o.topic: _column(o, {n: p[0] for n, p in o.limits.items()}, -np.inf)
            for o in contract.actions
        }
        self._high = {
            o.topic: _column(o, {n: p[1] for n, p in o.limits.items()}, np.inf)
            for o in contract.actions
        }
        self._step = {o.topic: _column(o, o.max_step, np.inf) for o in contract.actions}
        self._bounds = {
            topic: np.column_stack([low, self._high[topic], self._step[topic]]).tolist()
            for topic, low in self._low.items()
        }
        self._forms = {
            o.topic: PoseForm(o.rotation, o.names) for o in contract.actions if o.is_pose
        }

    def at_rest(self, measured: npt.ArrayLike | None) -> dict[str, Values]:
        """What stands for the last command before the first one.

        Args:
            measured: Positions in the order of ``start.measured.names``, or None.

        Returns:
            For each output the measured positions or pose, NaN for one that is not measured,
            and zeros for velocities, efforts and twists.

        Raises:
            ContractError: Another number of positions than ``start.measured`` names.
        """
        action = np.full(self.size, np.nan)
        start = self.contract.start
        if start is not None and start.pose is None and measured is not None:
            values = np.asarray(measured, dtype=np.float64)
            if values.shape != (len(start.index),):
                raise ContractError(
                    f"measured positions: expected {len(start.index)} "
                    f"({list(start.measured.names)}), found shape {values.shape}"
                )
            action[list(start.index)] = values
        rest = {
            output.topic: action[self._index[output.topic]]
            if output.is_place
            else np.zeros(len(output.index))
            for output in self.contract.actions
        }
        for output in self.contract.actions:
            if output.is_pose:
                rest[output.topic] = np.full(len(POSE), np.nan)
        if start is not None and start.pose is not None and measured is not None:
            pose, fault = measured_pose(measured)
            if not fault:
                rest[start.pose.topic] = pose
        return rest

    def pack(self, commands: Commands) -> Values:
        """Commands as one vector, output after output, NaN for those without one."""
        parts = [
            commands.get(output.topic, np.full(_width(output), np.nan))
            for output in self.contract.actions
        ]
        return np.concatenate(parts).astype(np.float64)

    def unpack(self, vector: Values) -> dict[str, Values]:
        """Commands that ``pack`` made a vector of.

        Raises:
            ContractError: It has another length than the contract's outputs have together.
        """
        widths = [_width(output) for output in self.contract.actions]
        if vector.shape != (sum(widths),):
            raise ContractError(
                f"commands: expected {sum(widths)} numbers for {self.contract.source}, found "
                f"shape {vector.shape}"
            )
        parts = np.split(vector, np.cumsum(widths)[:-1])
        outputs = self.contract.actions
        return {output.topic: part for output, part in zip(outputs, parts, strict=True)}

    def shape(self, action: npt.ArrayLike, last: Commands | None = None) -> Shaped:
        """Checks and limits one action.

        Args:
            action: ``(A,)`` numbers in contract units.
            last: The commands sent last, or ``at_rest`` before the first; an element without
                one (None, a missing topic or NaN) has no step limit.

        Raises:
            ContractError: Another number of elements than the contract commands or leaves unused.
        """
        values = np.array(action, dtype=np.float64)
        if values.shape != (self.size,):
            raise ContractError(
                f"action: expected a vector of {self.size} elements for "
                f"{self.contract.source}, found shape {values.shape}"
            )
        commands: dict[str, Values] = {}
        limited: list[str] = []
        shaped = values.copy()
        for output in self.contract.actions:
            wanted = values[self._index[output.topic]]
            before = None if last is None else last.get(output.topic)
            if before is None:
                before = np.full(_width(output), np.nan)
            given, words, reason = self._limit(output, wanted, before)
            if reason:
                return Shaped({}, values, reason)
            commands[output.topic] = given
            form = self._forms.get(output.topic)
            shaped[self._index[output.topic]] = given if form is None else form.elements(given)
            limited += words
        return Shaped(commands, shaped, "", tuple(limited))

    def follow(
        self, output: Output, first: Values, rows_KA: Values, steps: bool = True
    ) -> tuple[Values, str]:
        """The points of a chunk, each limited as if it were commanded after the one before.

        Args:
            output: One of the contract's actions, not a pose.
            first: Its values of this control step, after limits.
            rows_KA: Actions of the control steps after it.
            steps: Whether steps between them are limited, too.

        Returns:
            ``(1 + K, names)``, and why the frame is dropped; empty where it is not.
        """
        points = [first]
        for row, action in enumerate(rows_KA[:, self._index[output.topic]], start=1):
            before = points[-1] if steps else np.full(len(first), np.nan)
            given, _, reason = self._limit(output, action, before)
            if reason:
                return np.stack(points), f"{reason} (row {row} of those to come)"
            points.append(given)
        return np.stack(points), ""

    def _limit(
        self, output: Output, wanted: Values, before: Values
    ) -> tuple[Values, list[str], str]:
        """Values within limits and steps, what was changed, and why the frame is dropped."""
        if not output.is_pose and self._is_within(output, wanted, before):
            return wanted, [], ""
        if not np.isfinite(wanted).all():
            bad = [n for n, v in zip(output.names, wanted, strict=True) if not np.isfinite(v)]
            return wanted, [], f"{output.topic}: non-finite action for {', '.join(bad)}"
        if not output.is_pose:
            return self._clip(output, wanted, before)
        pose, fault = self._forms[output.topic].pose(wanted)
        if fault:
            return wanted, [], f"{output.topic}: {fault}"
        position, words, reason = self._clip(output, pose[:3], before[:3])
        if reason:
            return wanted, [], reason
        rotation, word = self._turn(output, pose[3:], before[3:])
        if word and output.on_limit == "refuse":
            return wanted, [], f"{output.topic}: refused, {word}"
        return np.concatenate([position, rotation]), words + [word] * bool(word), ""

    def _is_within(self, output: Output, wanted: Values, before: Values) -> bool:
        """Whether ``_clip`` would change nothing but the sign of a zero; in plain numbers.

        For a dozen calls of numpy on a few numbers, whose code has left the processor's caches
        since the last control step, the message would wait much longer.
        """
        bounds = self._bounds[output.topic]
        for value, last, (low, high, step) in zip(
            wanted.tolist(), before.tolist(), bounds, strict=True
        ):
            if not (math.isfinite(value) and low <= value <= high):
                return False
            if math.isfinite(last) and not last - step <= value <= last + step:
                return False
        return True

    def _turn(self, output: Output, wanted: Values, before: Values) -> tuple[Values, str]:
        """An orientation within its step from the last one, and what was changed."""
        if not np.isfinite(before).all():
            return wanted, ""
        # Of the two quaternions of an orientation the one that a follower can blend with the last.
        wanted = wanted if float(wanted @ before) >= 0.0 else -wanted
        most, far = output.max_step.get(ROTATION, np.inf), angle(before, wanted)
        if far <= most * (1.0 + ROUNDING):
            return wanted, ""
        words = f"{ROTATION} by {far:.6g} to {most:.6g} rad by max_step"
        return turn(before, wanted, most / far), words

    def _clip(
        self, output: Output, wanted: Values, before: Values
    ) -> tuple[Values, list[str], str]:
        """Single numbers within limits and steps, as ``_limit``."""
        low, high, step = (table[output.topic] for table in (self._low, self._high, self._step))
        known = np.isfinite(before)
        floor = np.maximum(low, np.where(known, before - step, -np.inf))
        ceiling = np.minimum(high, np.where(known, before + step, np.inf))
        if (floor > ceiling).any():
            place = int(np.argmax(floor > ceiling))
            name, b = output.limit_names[place], before[place]
            return (
                wanted,
                [],
                f"{output.topic}: {name} stands at {b:.6g}, outside its limits "
                f"{list(output.limits[name])} by more than max_step "
                f"{output.max_step[name]:.6g}; bring it back inside first",
            )
        given = np.clip(wanted, floor, ceiling)
        words = [
            self._words(output, position, wanted, given, before)
            for position in np.flatnonzero(given != wanted).tolist()
        ]
        if output.on_limit == "refuse":
            excess = np.abs(given - wanted) > ROUNDING * np.maximum(1.0, np.abs(wanted))
            if excess.any():
                first = self._words(output, int(np.argmax(excess)), wanted, given, before)
                return wanted, [], f"{output.topic}: refused, {first}"
        return given, words, ""

    def _words(
        self, output: Output, position: int, wanted: Values, given: Values, before: Values
    ) -> str:
        name = output.limit_names[position]
        low, high = output.limits.get(name, (-np.inf, np.inf))
        if not low <= wanted[position] <= high:
            why = f"limits {[low, high]}"
        else:
            why = f"max_step {output.max_step[name]:.6g} from {before[position]:.6g}"
        return f"{name} {wanted[position]:.6g} to {given[position]:.6g} by {why}"

    def encode(self, output: Output, values: npt.ArrayLike, stamp_ns: int) -> Fields:
        """Fields of the command message.

        Args:
            output: One of the contract's actions.
            values: See ``Commands``.
            stamp_ns: ROS clock; unused where the type has no header, and for single points of a
                JointTrajectory.
        """
        numbers = np.asarray(values, dtype=np.float64)
        return OUTPUT_TYPES[output.type].encode(output, numbers, stamp_ns, False)

    def messages(self, shaped: Shaped, stamp_ns: int) -> list[Command]:
        """The messages of one shaped action; none where the frame was dropped."""
        return [
            Command(output, self.encode(output, values, stamp_ns), values, False)
            for output in self.contract.actions
            if (values := shaped.commands.get(output.topic)) is not None
        ]

    def stop_messages(self, last: Commands | None, stamp_ns: int = 0) -> list[Command]:
        """The message that ends motion, for each output, sent once.

        Positions and poses: the ``last`` ones (sent or, from ``at_rest``, measured), with zero
        velocities where the type has room for them; an output without finite last ones has none,
        since any would be a guess. Velocities, efforts and twists: zeros.
        """
        return [c for o in self.contract.actions if (c := self._stop(o, last, stamp_ns))]

    def miss_messages(self, last: Commands | None, stamp_ns: int = 0) -> list[Command]:
        """What the contract's ``on_miss`` sends when no good action is there.

        ``hold`` repeats the last command, ``zeros`` repeats zeros, ``stop`` sends the stop
        message once and then nothing.
        """
        found: list[Command] = []
        for output in self.contract.actions:
            values = self._finite_last(output, last)
            if output.on_miss == "stop":
                command = self._stop(output, last, stamp_ns)
            elif output.on_miss == "zeros":
                zeros = np.zeros(len(output.names))
                command = Command(output, self.encode(output, zeros, stamp_ns), zeros, True)
            elif values is None:
                command = None
            else:
                command = Command(output, self.encode(output, values, stamp_ns), values, True)
            if command is not None:
                found.append(command)
        return found

    def _finite_last(self, output: Output, last: Commands | None) -> Values | None:
        values = None if last is None else last.get(output.topic)
        return values if values is not None and bool(np.isfinite(values).all()) else None

    def _stop(self, output: Output, last: Commands | None, stamp_ns: int) -> Command | None:
        values: Values | None = np.zeros(len(output.names))
        if output.is_place:
            values = self._finite_last(output, last)
        if values is None:
            return None
        fields = OUTPUT_TYPES[output.type].encode(output, values, stamp_ns, True)
        return Command(output, fields, values, False)


def _width(output: Output) -> int:
    return len(POSE) if output.is_pose else len(output.index)


def _column(output: Output, by_name: Mapping[str, float], default: float) -> Values:
    return np.array([by_name.get(name, default) for name in output.limit_names], dtype=np.float64)
