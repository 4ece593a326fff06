"""A policy bound to its arena: prepared plans and the crossing of observations and actions.

The engine knows nothing of capsules, episodes or names; the session does.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

import torch

from flashrt_ros.errors import (
    BusyError,
    InternalError,
    InvalidArgumentError,
    NotConfiguredError,
    SpecError,
)
from flashrt_ros.runtime.buffers import (
    BUFFER_NAME,
    ROWS_LENGTH,
    ROWS_SPEC,
    Arena,
    BufferSpec,
    Role,
    StateLayout,
)
from flashrt_ros.runtime.device import Device, Lane
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.host_copy import HostCopy
from flashrt_ros.runtime.inputs import Inputs
from flashrt_ros.runtime.noise import NOISE_SPECS
from flashrt_ros.runtime.observation import Checked
from flashrt_ros.runtime.policy import ACT_LEFT, ActShape, Buffers, PlanKind, Policy, Port

CONSUMED = "plan.consumed"
"""Optional input buffer, ``(1,)`` int64: rows of the planned chunk that time has passed over.

The runtime writes it before ``adopt``: control steps between the observation that the plan saw and
its adoption. A policy without it only ever adopts plans that nothing was taken beside.
"""
DELAY = "plan.delay"
"""Optional input buffer, ``(1,)`` int64: control steps that a plan will probably be late.

The runtime writes it before ``plan``: what is expected to be in ``plan.consumed`` later. For plans
that keep to what will be executed meanwhile.
"""


def complete_layout(policy: Policy) -> StateLayout:
    """Returns the policy's layout with ``noise.*`` added, and ``rows.length`` where rows grow.

    Raises:
        SpecError: Buffers, ports, rows or chunk sizes contradict each other.
    """
    specs = policy.layout()
    declared = {spec.name: spec for spec in specs}
    own: tuple[BufferSpec, ...] = NOISE_SPECS
    if ROWS_LENGTH in declared or any(spec.capacity for spec in specs):
        own = (*NOISE_SPECS, ROWS_SPEC)
    for spec in own:
        if declared.get(spec.name, spec) != spec:
            raise SpecError(
                f"buffer {spec.name!r} belongs to the runtime: expected {spec}, found"
                f" {declared[spec.name]}; leave it out of layout()"
            )
    layout = StateLayout((*specs, *(spec for spec in own if spec.name not in declared)))
    _check_rows(layout, policy)
    _check_acts(layout, policy)
    ports = policy.ports()
    for port in ports.observations:
        _check_port(layout, port, Role.INPUT)
    for name in policy.task_inputs():
        if layout.find(name).role is not Role.INPUT:
            raise SpecError(f"buffer {name!r} of the task: expected role input, found another")
    _check_port(layout, ports.action, Role.OUTPUT)
    keys = [port.key for port in (*ports.observations, ports.action)]
    for key in keys:
        if keys.count(key) > 1:
            raise SpecError(f"port {key!r} is declared twice; keys must be unique")
    if not 1 <= policy.n_action_steps <= policy.chunk_size:
        raise SpecError(
            f"policy {policy.family!r}: expected 1 <= n_action_steps <= chunk_size, found"
            f" {policy.n_action_steps} and {policy.chunk_size}"
        )
    return layout


def _check_rows(layout: StateLayout, policy: Policy) -> None:
    per_plan, per_act = policy.rows_per_plan, policy.rows_per_act
    together = per_plan + per_act
    if per_plan and policy.plan_kind is PlanKind.NONE:
        raise SpecError(
            f"policy {policy.family!r}: expected rows_per_plan 0, since it never plans, found"
            f" {per_plan}"
        )
    if min(per_plan, per_act) < 0 or bool(together) != bool(layout.capacity):
        raise SpecError(
            f"policy {policy.family!r}: expected rows_per_plan or rows_per_act above 0 if a buffer"
            f" has a capacity, and only then; found {per_plan} and {per_act} with a capacity of"
            f" {layout.capacity}"
        )
    if together > layout.capacity:
        raise SpecError(
            f"policy {policy.family!r}: one control step appends up to {together} rows, but its"
            f" buffers have a capacity of {layout.capacity}"
        )


def _check_acts(layout: StateLayout, policy: Policy) -> None:
    shapes = policy.act_shapes()
    names = [shape.name for shape in shapes]
    for shape in shapes:
        if not BUFFER_NAME.fullmatch(shape.name) or names.count(shape.name) > 1:
            raise SpecError(
                f"policy {policy.family!r}: expected act shapes with different names of dotted"
                f" lower-case words, found {names}"
            )
        if not 0 <= shape.rows <= layout.capacity:
            raise SpecError(
                f"act shape {shape.name!r}: expected 0 to {layout.capacity} rows, which is the"
                f" capacity, found {shape.rows}"
            )
    if policy.act_replays < 1:
        raise SpecError(
            f"policy {policy.family!r}: expected act_replays of at least 1, found"
            f" {policy.act_replays}"
        )
    if policy.act_replays > 1:
        left = layout.find(ACT_LEFT)
        if left != BufferSpec(ACT_LEFT, (1,), torch.int64, Role.OUTPUT, left.unit):
            raise SpecError(
                f"policy {policy.family!r}: with act_replays above 1 expected an output"
                f" {ACT_LEFT!r} of shape (1,) and int64, found {left}"
            )


def _check_port(layout: StateLayout, port: Port, role: Role) -> None:
    spec = layout.find(port.buffer)
    if spec.role is not role or spec.shape != port.shape:
        raise SpecError(
            f"port {port.key!r}: expected buffer {port.buffer!r} of role {role.value} and shape"
            f" {port.shape}, found role {spec.role.value} and shape {spec.shape}"
        )


class Engine:
    """Runs one policy on one device.

    A plan that runs beside the control thread reads a copy of the state that was taken when it
    began. So its chunk depends on that boundary alone, not on how far the control thread got
    meanwhile, and a plan that writes state in spite of its word changes nothing. Where acts read
    observations, too, it reads a copy of the inputs as well.

    Attributes:
        arena: All buffers.
        initial: ``(fixed_bytes,)`` uint8: the state that ``reset_`` makes, noise zero.
        beside: Whether plans run beside the control thread.
        act_observes: Whether acts read observations.
        inputs: Takes observations and the task.
    """

    def __init__(
        self,
        policy: Policy,
        layout: StateLayout,
        device: Device,
        spare_sets: int = 0,
        pictures: Collection[str] = (),
    ) -> None:
        self.policy = policy
        self.arena = Arena(layout, device, spare_sets)
        self.initial = device.allocate(layout.fixed_bytes)
        self.beside = policy.plan_kind is PlanKind.BESIDE
        self.act_observes = policy.act_observes or not self.beside
        self._device = device
        self.inputs = Inputs(policy, self.arena, device, pictures)
        self._plan_state = self.arena.state
        self._plan_section = self.arena.fixed
        if self.beside:
            # Rows are not copied: committed ones never change while the plan stands, and after a
            # restore its chunk is thrown away.
            self._plan_section = device.allocate(layout.fixed_bytes)
            fixed = {s.spec.name: s.view(self._plan_section) for s in layout.state}
            self._plan_state = {**self.arena.state, **fixed}
        self._plan_inputs = self.arena.inputs
        self._plan_input_section = self.arena.input_section
        if self.beside and self.act_observes:
            self._plan_input_section = device.allocate(layout.input_bytes)
            self._plan_inputs = {
                s.spec.name: s.view(self._plan_input_section) for s in layout.inputs
            }
        action = policy.ports().action.buffer
        self._action = HostCopy(self.arena.outputs[action], device)
        self._rows = HostCopy(self.arena.state[ROWS_LENGTH], device) if layout.capacity else None
        self._left = None
        if policy.act_replays > 1:
            self._left = HostCopy(self.arena.outputs[ACT_LEFT], device)
        # One plan at a time: a stale one may still run when the next begins.
        self._planning = threading.RLock()
        self._closed = False
        lane = Lane.PLANNER if self.beside else Lane.CONTROL
        make = functools.partial(GraphPlan, device=device, module=policy.module())
        self._plan = make("plan", self._call_plan, lane=lane, may_run_plain=policy.may_run_plain)
        self._adopt = make("adopt", self._call_adopt)
        self._act = make("act", self._call_act)
        self._shapes = {shape.name: shape for shape in policy.act_shapes()}
        self._shape_plans = {
            name: make(name, functools.partial(self._call_shape, name)) for name in self._shapes
        }

    def _call_plan(self) -> None:
        self.policy.plan(self._plan_state, self._plan_inputs, self.arena.outputs)

    def _call_adopt(self) -> None:
        self.policy.adopt(self.arena.state, self.arena.inputs, self.arena.outputs)

    def _call_act(self) -> None:
        self._call_and_cross(self.policy.act)

    def _call_shape(self, name: str) -> None:
        self._call_and_cross(self._shapes[name].act)

    def _call_and_cross(self, act: Callable[[Buffers, Buffers, Buffers], None]) -> None:
        """Calls ``act`` with what crosses before and after it: one replay does all of it."""
        arena = self.arena
        if self.inputs.act_fetches:
            self._device.copy_(arena.input_section, arena.mirror)
        act(arena.state, arena.inputs, arena.outputs)
        for copy in (self._action, self._rows, self._left):
            if copy is not None:
                copy.cross()

    @torch.no_grad()
    def prepare(self, warm_up: int, scratch: torch.Tensor) -> None:
        """Makes the initial state, warms every plan up and captures it.

        Every call of the warm-up starts from a state that the policy knows, not from what the call
        before has left. Afterwards the state is the initial one, inputs and outputs are zero.

        Args:
            warm_up: Calls of each plan before its capture.
            scratch: ``(fixed_bytes,)`` uint8 on the device, written.
        """
        device, arena = self._device, self.arena
        with device.bind(Lane.CONTROL):
            self.policy.reset_(arena.state)
            if self.read_rows():
                raise SpecError(
                    f"policy {self.policy.family!r}: reset_ left {self.read_rows()} in"
                    f" {ROWS_LENGTH!r}; an episode begins without rows, so append them in a plan"
                )
            device.copy_(self.initial, arena.fixed)
            device.copy_(scratch, self.initial)
            device.synchronize()
        if self.policy.plan_kind is not PlanKind.NONE:
            self._plan.prepare(warm_up, lambda: device.copy_(self._plan_section, self.initial))
            self._adopt.prepare(warm_up, lambda: device.copy_(arena.fixed, self.initial))
            with device.bind(Lane.CONTROL):
                device.copy_(arena.fixed, self.initial)
                self._adopt.replay()
                device.copy_(scratch, arena.fixed)
                device.synchronize()
        self.inputs.prepare(warm_up)
        for plan in (self._act, *self._shape_plans.values()):
            plan.prepare(warm_up, lambda: device.copy_(arena.fixed, scratch))
        for plan in (self._plan, self._adopt, self._act, *self._shape_plans.values()):
            plan.check()
        with device.bind(Lane.CONTROL):
            device.copy_(arena.fixed, self.initial)
            arena.input_section.zero_()
            arena.output_section.zero_()
            arena.rows.zero_()
            device.synchronize()

    def check(self, observations: Mapping[str, object]) -> Checked:
        """Returns checked observations; see ``ObservationWriter.check``."""
        return self.inputs.writer.check(observations)

    def write_inputs(self, checked: Checked) -> None:
        """Writes all observations into the input section, see ``Inputs.write``."""
        self.inputs.write(checked)

    @property
    def plain(self) -> str:
        """Why the plan is called rather than captured; empty if it is captured."""
        return self._plan.plain

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within, no plan runs beside.

        Raises:
            BusyError: One does, wanted or not.
        """
        if not self._planning.acquire(blocking=False):
            raise BusyError("a plan that runs beside is under way; expected none; try again later")
        try:
            yield
        finally:
            self._planning.release()

    def begin_plan(self, delay: int = 0) -> None:
        """Takes the copies that a plan beside reads, and marks where it may start.

        Args:
            delay: Written to ``plan.delay`` where the policy declares it.
        """
        self.inputs.write_number(DELAY, delay)
        self._device.copy_(self._plan_section, self.arena.fixed)
        if self._plan_input_section is not self.arena.input_section:
            self._device.copy_(self._plan_input_section, self.arena.input_section)
        # What crosses now must stand where it is until this plan has it.
        self.inputs.crossing = True
        self._device.mark(Lane.CONTROL)

    def run_plan_beside(self) -> None:
        """Replays the plan on the planner lane and waits for it; from any one thread at a time."""
        with self._planning, self._device.bind(Lane.PLANNER):
            if self._closed:
                raise NotConfiguredError("the session was closed before the plan ran")
            self._device.follow(Lane.CONTROL)
            self._plan.replay()
            self._device.synchronize()

    def run_plan(self) -> None:
        """Replays the plan on the control lane, in order with what follows."""
        with self._planning:
            self._plan.replay()

    def adopt(self, consumed: int) -> None:
        """Commits the planned chunk.

        Args:
            consumed: Written to ``plan.consumed`` where the policy declares it.
        """
        self.inputs.write_number(CONSUMED, consumed)
        self._adopt.replay()

    def shape(self, name: str) -> ActShape:
        """Returns an act shape of the policy.

        Raises:
            InvalidArgumentError: It has none of that name.
        """
        if name not in self._shapes:
            raise InvalidArgumentError(
                f"act shape {name!r}: policy {self.policy.family!r} has"
                f" {', '.join(self._shapes) or 'none'}"
            )
        return self._shapes[name]

    def act(self, meanwhile: Callable[[], None], shape: str = "") -> torch.Tensor:
        """Takes one control step and waits for it.

        Args:
            meanwhile: Called once all is enqueued, before the wait.
            shape: Name of an act shape; empty: the plain act, replayed as often as it asks for.

        Returns:
            ``(A,)`` float32 on the host, a copy.

        Raises:
            InternalError: The act asks for more replays than its policy has declared.
        """
        plan = self._shape_plans[shape] if shape else self._act
        self.inputs.crossing = True
        left = 0
        for replay in range(1 if shape else self.policy.act_replays):
            plan.replay()
            if replay == 0:
                meanwhile()
                values, fill = self._action.blank()
            self._device.synchronize()
            left = 0 if shape or self._left is None else self._left.number
            if not left:
                break
        if left:
            raise InternalError(
                f"policy {self.policy.family!r}: expected {ACT_LEFT!r} to be 0 after"
                f" {self.policy.act_replays} replays of an act, found {left}"
            )
        self.inputs.crossing = False
        fill()
        return values

    @property
    def rows(self) -> int:
        """Committed rows after the last ``act`` or ``read_rows``; 0 where there are none."""
        return 0 if self._rows is None else self._rows.number

    def read_rows(self) -> int:
        """Waits for the device and returns the committed rows, which ``act`` reads anyway."""
        if self._rows is not None:
            self._rows.cross()
            self._device.synchronize()
        return self.rows

    def close(self) -> None:
        """Waits for what runs and lets go of all memory."""
        with self._planning:
            self._closed = True
            for lane in Lane:
                with self._device.bind(lane):
                    self._device.synchronize()
            memory = self.arena.memory
            # The plans hold the engine and the engine the plans: only this frees them at once.
            del self._plan, self._adopt, self._act, self.arena, self.initial
            del self._plan_state, self._plan_section, self._action, self.inputs
            del self._plan_inputs, self._plan_input_section
            del self._rows, self._left, self._shape_plans
            memory.close()
