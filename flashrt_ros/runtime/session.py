"""One policy in operation: control steps, plans beside them, and the verbs on the live state."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Mapping

import numpy as np

from flashrt_ros.errors import (
    BusyError,
    SpecError,
)
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import StateLayout
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.device import Device, Lane, open_device
from flashrt_ros.runtime.engine import Engine, complete_layout
from flashrt_ros.runtime.fingerprint import exec_fingerprint, state_fingerprint
from flashrt_ros.runtime.forecast import Forecast, make_forecast
from flashrt_ros.runtime.host_pool import HostPool
from flashrt_ros.runtime.live import Tearing
from flashrt_ros.runtime.live_rows import SpareRows
from flashrt_ros.runtime.number import check_int
from flashrt_ros.runtime.picture import BytePicture, picture_ports, wire_bytes
from flashrt_ros.runtime.planning import Planning
from flashrt_ros.runtime.policy import Action, PlanKind, Policy
from flashrt_ros.runtime.pool import SlotPool
from flashrt_ros.runtime.preview import CHUNK
from flashrt_ros.runtime.ring import RollbackRing
from flashrt_ros.runtime.row_pool import RowPool
from flashrt_ros.runtime.store import CapsuleStore

MAX_PREVIEW_SETS = 16
"""Each takes as much memory as the live state."""


class PolicySession(Planning):
    """Runs a policy and makes its execution state a thing that has a name.

    Construction allocates everything, captures every plan and resets into episode 0; no verb and
    no step allocates device memory afterwards. All methods belong to one thread but ``run_plan``,
    and those that copy or look at files: ``read``, ``check_facts``, ``stage``, ``carry_import``,
    ``fetch``, ``carry``, ``give_back``, ``give_back_import`` and ``remove_files``.

    Attributes:
        policy: As given.
        layout: Its buffers, ``noise.*`` included.
        forecast: What this session takes of memory.
    """

    def __init__(
        self,
        policy: Policy,
        device: str = "cpu",
        seed: int = 0,
        store_bytes: int = 64 << 20,
        rollback_depth: int = 64,
        rollback_period_steps: int = 1,
        warm_up: int = 3,
        spare_states: int = 0,
        preview_sets: int = 1,
        host_store_bytes: int = 0,
        folder: CapsuleFolder | None = None,
        pictures: Collection[str] = (),
    ) -> None:
        """Makes a session, ready for its first step.

        Args:
            policy: Its module is moved to the device and put into evaluation mode.
            device: ``cpu``, ``cuda`` or ``cuda:N``.
            seed: Noise key of episode 0; later episodes derive theirs from it.
            store_bytes: Memory for all capsules, rollback ring included.
            rollback_depth: Boundaries that can be rolled back to; 0: none.
            rollback_period_steps: Control steps between these boundaries.
            warm_up: Calls of each plan before its capture; on CUDA at least one is made.
            spare_states: Copies of the state that the caller will allocate besides; they are
                counted in the forecast.
            preview_sets: Spare states of this session, in which ``preview`` runs branches; 0:
                none, and ``preview`` is refused.
            host_store_bytes: Pinned host memory for capsules that are moved there; 0: none. Where
                device and host are one memory none is taken, and there is no host tier.
            folder: For capsules that are moved to disk; None: no disk tier.
            pictures: Keys of the observations that may come as ``BytePicture``: room is made for
                their bytes, where the port is a float32 picture.

        Raises:
            InvalidArgumentError: An argument is out of range.
            SpecError: The policy's declarations contradict each other.
            UnsupportedError: There is no such device here, or it cannot run policies.
            NoMemoryError: ``store_bytes`` does not hold the ring and one capsule more, with all
                the rows that fit into the live state, or the device has not got the memory;
                nothing was allocated or moved.
        """
        seed = noise.check_seed(seed)
        store_bytes = check_int("store_bytes", store_bytes, 1)
        rollback_depth = check_int("rollback_depth", rollback_depth, 0)
        rollback_period_steps = check_int("rollback_period_steps", rollback_period_steps, 1)
        warm_up = check_int("warm_up", warm_up, 0)
        preview_sets = check_int("preview_sets", preview_sets, 0, MAX_PREVIEW_SETS)
        host_store_bytes = check_int("host_store_bytes", host_store_bytes, 0)
        self.policy = policy
        self.layout: StateLayout = complete_layout(policy)
        opened: Device = open_device(device)
        self.forecast: Forecast = make_forecast(
            policy,
            self.layout,
            opened,
            store_bytes,
            rollback_depth,
            spare_states,
            preview_sets,
            host_store_bytes,
            wire_bytes(picture_ports(policy.ports(), self.layout, pictures)),
        )
        self.forecast.check()
        policy.module().to(opened.torch_device).eval()
        policy.probe(opened.torch_device)
        engine = Engine(policy, self.layout, opened, preview_sets, pictures)
        rows_bytes = self.forecast.row_pool_bytes
        pool = SlotPool(opened, self.layout.fixed_bytes, store_bytes - rows_bytes)
        rows = RowPool(opened, self.layout.row_bytes, rows_bytes) if rows_bytes else None
        host = None
        if self.forecast.host_store_bytes:
            host = HostPool(opened, self.forecast.host_store_bytes)
        store = CapsuleStore(pool, store_bytes, rows, host)
        scratch = pool.take()
        engine.prepare(warm_up, scratch.bytes)
        scratch.release()
        if rows is not None:
            with opened.bind(Lane.CONTROL):
                opened.prepare_pieces(
                    engine.arena.rows.view(-1), rows.memory, self.layout.capacity
                )
        opened.prepare_carry()
        self.folder = folder
        self._doomed = []
        self._storage = threading.Lock()
        state = state_fingerprint(policy, self.layout)
        shapes = [shape.name for shape in policy.act_shapes()]
        super().__init__(
            opened,
            engine.arena,
            engine.initial,
            store,
            RollbackRing(store, rollback_depth, rollback_period_steps),
            (
                state,
                exec_fingerprint(state, opened, self.layout.capacity, shapes, policy.numerics),
            ),
            seed,
        )
        self._engine = engine
        self._picture_slots = engine.inputs.slots
        engine.inputs.task = lambda: self.host.task
        key = next(slot for slot in self.layout.state if slot.spec.name == noise.KEY)
        spare = engine.arena.memory.sets
        self._noise_keys = tuple(key.view(each.fixed) for each in spare)
        if rows is not None:
            shape = engine.arena.rows.shape
            self._spare_rows = tuple(
                SpareRows(opened, rows, each.rows.view(shape)) for each in spare
            )
        self.reset_()
        # The first pinned memory of a size takes milliseconds, which a first digest must not.
        self.state_bytes()
        if self._plans_chunk:
            self.device.to_host(self.arena.state[CHUNK])

    @property
    def plain(self) -> str:
        """Why the plan is called rather than captured, one line; empty if it is captured."""
        return self._engine.plain

    def stage_picture(self, picture: BytePicture) -> BytePicture:
        """The same picture, where a step need not copy it; for whoever decodes it, in any thread.

        Args:
            picture: Of an observation that may come as bytes; others stay as they are.

        Returns:
            It keeps a place in pinned memory for as long as it lives; as given where there is
            none, and once the session is closed.
        """
        slots = self._picture_slots
        return picture if slots is None else slots.stage(picture)

    @property
    def foresees(self) -> bool:
        """Whether ``foresee`` has an effect: steps read observations, and pictures cross.

        Raises:
            NotConfiguredError: The session is closed.
        """
        self._check_open()
        return self._engine.act_observes and self._engine.inputs.foresees

    def foresee(self, observations: Mapping[str, object]) -> None:
        """Lets pictures cross that the next ``step`` will see, so that it need not wait for them.

        Nothing else changes, and nothing is lost if the step sees others. Without effect where the
        step reads no observations, and on pictures that are not bytes.

        Args:
            observations: As for ``step``, or some of them.

        Raises:
            SpecError: An observation is unknown or does not fit.
            NotConfiguredError: The session is closed.
        """
        self._check_present()
        if self.foresees:
            with self.device.bind(Lane.CONTROL):
                self._engine.inputs.foresee(observations)

    def check_task(self, task: str) -> str:
        """Returns ``task`` if the policy can take it.

        Raises:
            InvalidArgumentError: It is too long, or the policy cannot encode it.
        """
        task = super().check_task(task)
        if self.policy.task_inputs():
            self.policy.encode_task(task, {})
        return task

    def step(
        self, observations: Mapping[str, object], delay: int = 0, plan_ahead: int | None = None
    ) -> Action:
        """Takes one control step on this thread, with the plan that it may need.

        With a ``delay`` it acts as if plans ran beside and took so many control periods, the same
        way each time: a plan begins once no more than ``plan_ahead`` rows are left, and it is
        adopted when ``delay`` control steps have been taken since, or when no row is left. In the
        latter case a robot would have had to wait; here nothing waits. An argument may change
        from step to step.

        Args:
            observations: ``Port.key`` to an array-like of the port's shape on the host.
            delay: Control steps from the observation of a plan to its adoption.
            plan_ahead: Rows of the chunk with which the next plan begins; None: ``delay``.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: A delay is out of range, or the policy cannot splice.
            SpecError: An observation is unknown, missing, ill-shaped or not finite; nothing has
                changed.
            NoMemoryError: There is no room for the rows that a step may append; nothing has
                changed.
            InternalError: An earlier step failed half-way.
        """
        self._check_whole("step")
        turn = self._turn(delay, plan_ahead)
        checked = self._engine.check(observations)
        if self.layout.capacity:
            self._check_room("step", self.policy.rows_per_act, turn.commits)
        with self.device.bind(Lane.CONTROL):
            # They are no state: where they cannot be written, it stays whole.
            if turn.plans or self._engine.act_observes:
                self._engine.write_inputs(checked)
            with Tearing(self, "a step failed"):
                self._offer_boundary()
                self._take_turn(turn)
                planned = self.policy.rows_per_plan if turn.commits else 0
                return self._take(planned + self.policy.rows_per_act)

    def act(self, observations: Mapping[str, object] | None = None, shape: str = "") -> Action:
        """Takes one control step from the present chunk, or from the observation.

        Args:
            observations: As in ``step``; a policy whose plans run beside acts from its chunk
                alone, and they are not read, unless it says ``act_observes``.
            shape: Name of one of the policy's ``act_shapes``; empty takes its ``act``.

        Raises:
            InvalidArgumentError: The policy has no such shape.
            NotConfiguredError: The session is closed.
            BusyError: The chunk is used up; adopt a plan first.
            SpecError: As in ``step``, or they are needed and not given.
            NoMemoryError: As in ``step``.
            InternalError: An earlier step failed half-way.
        """
        self._check_whole("act")
        rows = self._engine.shape(shape).rows if shape else self.policy.rows_per_act
        if self.plan_due:
            raise BusyError(
                f"act: all {self.host.length} rows of chunk {self.host.chunk} are taken; adopt a"
                " plan first"
            )
        checked = None
        if self._engine.act_observes:
            if observations is None:
                raise SpecError("act: this policy acts on observations, and none were given")
            checked = self._engine.check(observations)
        if self.layout.capacity:
            self._check_room("act", rows, False)
        with self.device.bind(Lane.CONTROL):
            if checked is not None:
                self._engine.write_inputs(checked)
            with Tearing(self, "a step failed"):
                self._offer_boundary()
                return self._take(rows, shape)

    def replay_plan(self) -> None:
        """Replays a plan of ``PlanKind.BESIDE`` on what it saw last, to keep the device awake.

        Its outputs are of no use, and nothing else is written; no plan may be under way.

        Raises:
            NotConfiguredError: The session is closed.
            BusyError: A plan runs.
        """
        self._check_present()
        with self._engine.alone():
            self._engine.run_plan_beside()

    def state_bytes(self) -> bytes:
        """Returns all bytes of the state, padding (zeros) included; for tests.

        Returns:
            The fixed section, then the committed rows.

        Raises:
            NotConfiguredError: The session is closed.
        """
        self._check_present()
        with self.device.bind(Lane.CONTROL):
            fixed = self.device.to_host(self.arena.fixed).numpy().tobytes()
            if not self.host.rows:
                return fixed
            rows_TB = self.device.to_host(self.arena.rows[: self.host.rows])
        return fixed + rows_TB.numpy().tobytes()

    def state_digest(self) -> str:
        """Returns SHA-256, in hex, over name and bytes of every state buffer.

        The host record is not in it, so that equal states of different episodes are equal; nor
        are rows that are not committed.

        Raises:
            NotConfiguredError: The session is closed.
        """
        state = self.state_bytes()
        digest = hashlib.sha256()
        for slot in self.layout.state:
            digest.update(f"{slot.spec.name}\n".encode())
            digest.update(state[slot.offset : slot.offset + slot.size_bytes])
        rows_TB = np.frombuffer(state[self.layout.fixed_bytes :], np.uint8)
        rows_TB = rows_TB.reshape(self.host.rows, self.layout.row_bytes)
        for row in self.layout.rows:
            digest.update(f"{row.spec.name}\n".encode())
            digest.update(rows_TB[:, row.offset : row.offset + row.size_bytes].tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Waits for a plan that runs, then frees all memory. May be repeated.

        Files of capsules stay, but for those that were dropped.

        Every further use raises ``NotConfiguredError``.
        """
        if self._arena is None:
            return
        self._picture_slots = None
        self._engine.close()
        self.store.close()
        self._arena = self._rows = None
        self._noise_keys, self._spare_rows = (), ()
        self._initial = self._initial.new_empty(0)
        self.remove_files()

    def _take(self, rows: int, shape: str = "") -> Action:
        """Acts and commits; the control lane is bound.

        Args:
            rows: Most rows that the act, and the plan before it, may have appended.
            shape: See ``act``.
        """
        host = self.host
        action = Action(
            values=self._engine.act(self._book_boundary, shape),
            step=host.step,
            chunk=host.chunk,
            index=host.cursor,
            generation=self.generation,
            task=host.task,
        )
        if self.layout.capacity:
            self._count_rows(self._engine.rows, rows)
        host.step += 1
        if self.policy.plan_kind is not PlanKind.NONE:
            host.cursor += 1
        self.tick += 1
        self._offered = False
        return action
