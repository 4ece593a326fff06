"""What plans and acts read, on its way from the host to the input section."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch

from flashrt_ros.runtime.buffers import Arena, padded
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.observation import Checked, ObservationWriter
from flashrt_ros.runtime.picture import BytePicture, PictureWire, picture_ports
from flashrt_ros.runtime.picture_slots import PictureSlots
from flashrt_ros.runtime.policy import PlanKind, Policy


class Inputs:
    """Writes observations, the task and numbers; everything is enqueued on the control lane.

    Attributes:
        act_fetches: Acts begin with the copy from the mirror, since nothing else reads inputs.
        crossing: The mirror may still be read; to be set around what fetches it.
        slots: Where pictures wait; None where a step does not copy them.
        task: Says which task the observations are written for.
        writer: Of observations.
    """

    def __init__(
        self, policy: Policy, arena: Arena, device: Device, pictures: Collection[str] = ()
    ) -> None:
        """Allocates room for bytes.

        Args:
            policy: Whose inputs.
            arena: Has them.
            device: Where they are.
            pictures: Keys of the observations that may come as ``BytePicture``.
        """
        self._policy, self._arena, self._device = policy, arena, device
        self._apart = arena.mirror is not arena.input_section
        ports = policy.ports()
        narrow = picture_ports(ports, arena.layout, pictures)
        self._wire = PictureWire(narrow, arena, device) if narrow else None
        self.slots = PictureSlots(narrow, device) if narrow and self._apart else None
        self.act_fetches = self._apart and policy.plan_kind is PlanKind.NONE and self._wire is None
        self.writer = ObservationWriter(ports.observations, arena, {port.key for port in narrow})
        self.crossing = False
        self.task: Callable[[], str] = str
        self._task_inputs = policy.task_inputs()
        self._task_written: str | None = None
        self._numbers: dict[str, int] = {}
        # By the buffers that came as bytes: what of the section crosses beside them.
        self._rest: dict[frozenset[str], list[slice]] = {frozenset(): [slice(None)]}

    def prepare(self, warm_up: int) -> None:
        """Captures what is replayed when pictures come as bytes."""
        if self._wire is not None:
            self._wire.prepare(warm_up)

    def write(self, checked: Checked) -> None:
        """Writes all observations into the input section, in one copy unless pictures are bytes.

        Where only acts read them, that copy is the beginning of the act.
        """
        self._await_crossing()
        if self._task_inputs:
            self._write_task(checked)
        narrow = self._cross_pictures(checked) if self._wire is not None else frozenset()
        self.writer.write(checked)
        if not self.act_fetches:
            if narrow not in self._rest:
                self._rest[narrow] = self._beside(narrow)
            for part in self._rest[narrow]:
                self._cross(self._arena.input_section[part], self._arena.mirror[part])

    def write_number(self, name: str, number: int) -> None:
        """Writes an input buffer of one number, where the policy declares it."""
        mirror = self._arena.mirrors.get(name)
        # One that stands there need not be waited for.
        if mirror is not None and self._numbers.get(name) != number:
            self._await_crossing()
            self._numbers.pop(name, None)
            mirror.fill_(number)
            self._cross(self._arena.inputs[name], mirror)
            self._numbers[name] = number

    @property
    def foresees(self) -> bool:
        """Whether pictures may cross ahead of ``write``."""
        return self._wire is not None

    def foresee(self, observations: Mapping[str, object]) -> None:
        """Lets pictures cross that the next ``write`` will bring; all else follows then."""
        checked = self.writer.check(observations, partial=True)
        self._await_crossing()
        self._cross_pictures(checked)

    def _cross_pictures(self, checked: Checked) -> frozenset[str]:
        """Lets pictures cross that are bytes; all others follow, and overwrite what was stale.

        Returns:
            Their buffers.
        """
        assert self._wire is not None
        narrow = set()
        for slot, value in checked:
            if isinstance(value, BytePicture):
                self._wire.write(slot.port.key, value)
                narrow.add(slot.port.buffer)
            else:
                self._wire.forget(slot.port.key)
        self.crossing |= self._wire.cross()
        return frozenset(narrow)

    def _beside(self, narrow: frozenset[str]) -> list[slice]:
        """What of the section crosses beside pictures that came as bytes, in few copies."""
        parts: list[slice] = []
        end = 0
        for slot in self._arena.layout.inputs:
            if slot.spec.name in narrow:
                continue
            begin, joins = slot.offset, bool(parts) and slot.offset == end
            end = slot.offset + padded(slot.size_bytes)
            if joins:
                parts[-1] = slice(parts[-1].start, end)
            else:
                parts.append(slice(begin, end))
        return parts

    def _write_task(self, checked: Checked) -> None:
        task = self.task()
        if task == self._task_written and not self._policy.task_observes:
            return
        seen = {slot.port.key: None if v is None else np.asarray(v) for slot, v in checked}
        encoded: Mapping[str, torch.Tensor] = self._policy.encode_task(task, seen)
        self._task_written = None
        for name in self._task_inputs:
            self._arena.mirrors[name].copy_(encoded[name])
        self._task_written = task

    def _await_crossing(self) -> None:
        # The mirror may be written once its last copy is through. After an act it is.
        if self.crossing:
            self._device.synchronize()
            self.crossing = False

    def _cross(self, inputs: torch.Tensor, mirror: torch.Tensor) -> None:
        if self._apart:
            self._device.copy_(inputs, mirror)
            self.crossing = True
