"""A policy over buffers of its own, stepped by hand: what a session does, laid open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.policies.walk import tensor_digest
from flashrt_ros.runtime.buffers import (
    ROWS_LENGTH,
    Arena,
    Role,
    RowSlot,
    Slot,
    StateLayout,
)
from flashrt_ros.runtime.device import Device, Lane
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.noise import COUNTER, KEY, as_signed
from flashrt_ros.runtime.policy import ACT_LEFT, PlanKind, Policy
from flashrt_ros.testing.episode import Observation

Moment = dict[str, str]
"""After one control step: name to digest of every state buffer, and of ``ACTION``."""
ACTION = "the action"
TASK = ""
"""The task text of every episode."""


def difference(expected: Sequence[Moment], found: Sequence[Moment]) -> str:
    """The first step at which two runs differ, in words; empty if none does."""
    for step, (one, other) in enumerate(zip(expected, found, strict=True)):
        names = [name for name in one if one[name] != other[name]]
        if names:
            return f"first at step {step} of {len(expected)}, in {', '.join(names)}"
    return ""


def digests(layout: StateLayout, state: Mapping[str, torch.Tensor]) -> Moment:
    """Name to digest of every state buffer; of those that grow, the committed rows alone."""
    rows = {slot.spec.name for slot in layout.rows}
    length = committed(state)
    return {
        name: tensor_digest(tensor[:length] if name in rows else tensor)
        for name, tensor in state.items()
    }


def committed(state: Mapping[str, torch.Tensor]) -> int:
    """Number of committed rows, within what there is room for."""
    length = state.get(ROWS_LENGTH)
    return 0 if length is None else max(0, int(length.item()))


@dataclass(frozen=True)
class Saved:
    """A whole boundary.

    Attributes:
        fixed: Copy of ``Rig.fixed``.
        rows: ``(T, row_bytes)`` uint8, copy of the committed rows.
        cursor: ``Rig.cursor``.
    """

    fixed: torch.Tensor
    rows: torch.Tensor
    cursor: int


class Rig:
    """Buffers, plans and a chunk cursor.

    Attributes:
        state: Name to state buffer.
        inputs: Name to input buffer.
        outputs: Name to output or scratch buffer.
        fixed: All state of fixed size as one flat uint8 tensor.
        rows: ``(capacity, row_bytes)`` uint8: the rows, committed or not.
        cursor: Rows of the present chunk that were taken.
        watch: Called with the name of each call into the policy, before and after it.

    Args:
        policy: Its module is on the device already.
        device: Where.
        captured: Capture on CUDA, rather than call.
    """

    def __init__(self, policy: Policy, device: Device, *, captured: bool = True) -> None:
        self._policy = policy
        self._device = device
        self.layout = complete_layout(policy)
        self._arena = Arena(self.layout, device)
        self.fixed = self._arena.fixed
        self.rows = self._arena.rows
        # Plain dicts, so that a policy that binds a name anew is seen to do so.
        self.state = dict(self._arena.state)
        self.inputs = dict(self._arena.inputs)
        self.outputs = dict(self._arena.outputs)
        self._scratch = [
            self.outputs[spec.name] for spec in self.layout.specs if spec.role is Role.SCRATCH
        ]
        self._beside = policy.plan_kind is PlanKind.BESIDE
        # Beside the control thread the inputs belong to the plan: adopt may find any in them, and
        # so may act, unless it reads some of its own.
        seen = [*(port.buffer for port in policy.ports().observations), *policy.task_inputs()]
        self._planner_inputs = [self.inputs[name] for name in seen if self._beside]
        self._act_observes = policy.act_observes or not self._beside
        self.cursor = policy.n_action_steps
        self.watch: Callable[[str, bool], None] | None = None
        buffers = (self.state, self.inputs, self.outputs)
        calls: dict[str, Callable[[], None]] = {"act": lambda: policy.act(*buffers)}
        if policy.plan_kind is not PlanKind.NONE:
            calls["plan"] = lambda: policy.plan(*buffers)
            calls["adopt"] = lambda: policy.adopt(*buffers)
        self._calls = calls
        if captured:
            plans = {
                name: GraphPlan(
                    name, call, device, may_run_plain=name == "plan" and policy.may_run_plain
                )
                for name, call in calls.items()
            }
            self.reset()
            initial = self.fixed.clone()
            device.synchronize()
            for plan in plans.values():
                plan.prepare(before=lambda: device.copy_(self.fixed, initial))
            self._calls = {name: plan.replay for name, plan in plans.items()}

    def addresses(self) -> dict[str, tuple[int, int]]:
        """Buffer name to the identity of its tensor and its address."""
        groups: tuple[Mapping[str, torch.Tensor], ...] = (self.state, self.inputs, self.outputs)
        return {
            name: (id(tensor), tensor.data_ptr())
            for group in groups
            for name, tensor in group.items()
        }

    def reset(self, key: int = 1) -> None:
        """Begins an episode with that noise key."""
        self._call("reset_", lambda: self._policy.reset_(self.state))
        self.state[KEY].fill_(as_signed(key))
        self.state[COUNTER].zero_()
        if self.layout.capacity:
            self.state[ROWS_LENGTH].zero_()
        self.cursor = self._policy.n_action_steps

    def step(
        self, observation: Observation, garbage: torch.Generator | None = None
    ) -> torch.Tensor:
        """One control step.

        Args:
            observation: Port key to value.
            garbage: Fill all that a call may not read with random bytes from it.

        Returns:
            The action on the host, a copy.

        Raises:
            SpecError: There is no room for the rows that the step may append, or the act asks for
                too many replays.
        """
        ports = self._policy.ports()
        most = self._policy.rows_per_plan + self._policy.rows_per_act
        if self.layout.capacity and committed(self.state) + most > self.layout.capacity:
            raise SpecError(
                f"{committed(self.state)} of {self.layout.capacity} rows are in use and a step may"
                f" append {most}; check with fewer steps, or with a larger capacity"
            )
        due = "plan" in self._calls and self.cursor >= self._policy.n_action_steps
        if due:
            self._observe(observation)
            self._fill(garbage, self.outputs.values())
            self._fill_rows(garbage)
            self._call("plan", self._calls["plan"])
            # The planned chunk is in the outputs until it is adopted; scratch is not.
            self._fill(garbage, self._scratch)
            self._fill(garbage, self._planner_inputs)
            self._call("adopt", self._calls["adopt"])
            self.cursor = 0
        for _ in range(self._policy.act_replays):
            self._fill(garbage, self.outputs.values())
            self._fill(garbage, self._planner_inputs)
            self._fill_rows(garbage)
            if self._act_observes:
                self._observe(observation)
            self._call("act", self._calls["act"])
            if self._policy.act_replays == 1 or not self.outputs[ACT_LEFT].item():
                break
        else:
            raise SpecError(
                f"{ACT_LEFT} is {self.outputs[ACT_LEFT].item()} after {self._policy.act_replays}"
                " replays of an act, which are the most that the policy has declared"
            )
        self.cursor += 1
        return self._device.to_host(self.outputs[ports.action.buffer])

    def run(
        self, observations: Sequence[Observation], garbage: torch.Generator | None = None
    ) -> list[Moment]:
        """Steps through observations; the moments after each step."""
        moments = []
        for observation in observations:
            action_A = self.step(observation, garbage)
            moments.append({ACTION: tensor_digest(action_A), **self.digests()})
        return moments

    def digests(self) -> Moment:
        """Name to digest of every state buffer."""
        return digests(self.layout, self.state)

    def save(self) -> Saved:
        """Returns a copy of the present boundary."""
        return Saved(self.fixed.clone(), self.rows[: committed(self.state)].clone(), self.cursor)

    def load(self, saved: Saved) -> None:
        """Returns to a boundary."""
        self.fixed.copy_(saved.fixed)
        self.rows[: len(saved.rows)].copy_(saved.rows)
        self.cursor = saved.cursor

    def _call(self, name: str, call: Callable[[], None]) -> None:
        if self.watch:
            self.watch(name, False)
        # What was written outside a call went to another stream than the call's.
        self._device.synchronize()
        with self._device.bind(Lane.CONTROL), torch.no_grad():
            call()
            self._device.synchronize()
        if self.watch:
            self.watch(name, True)

    def _observe(self, observation: Observation) -> None:
        for port in self._policy.ports().observations:
            self.inputs[port.buffer].copy_(observation[port.key])
        if self._policy.task_inputs():
            seen = {key: _array(value) for key, value in observation.items()}
            for name, value in self._policy.encode_task(TASK, seen).items():
                self.inputs[name].copy_(value)

    def _fill_rows(self, garbage: torch.Generator | None) -> None:
        """Rows that are not committed are scratch."""
        if self.layout.capacity:
            self._fill(garbage, [self.rows[committed(self.state) :]])

    def _fill(self, garbage: torch.Generator | None, tensors: Iterable[torch.Tensor]) -> None:
        if garbage is None:
            return
        for tensor in tensors:
            raw_N = tensor.reshape(-1).view(torch.uint8)
            raw_N.copy_(torch.randint(0, 256, raw_N.shape, dtype=torch.uint8, generator=garbage))


def _array(value: torch.Tensor) -> np.ndarray[Any, Any]:
    return (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()


def part(saved: Saved, slot: Slot | RowSlot) -> torch.Tensor:
    """Returns the bytes of one buffer in a boundary, as a view."""
    section = saved.rows if isinstance(slot, RowSlot) else saved.fixed
    return section[..., slot.offset : slot.offset + slot.size_bytes]
