"""A control step with all around it but ROS and threads: lists for topics, a number for time.

Session, contract and sampler are the real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from contract_examples import MS, contract_dict, joint_state
from node_policies import Follow

from flashrt_ros.contract import Command, Contract, Sample, Sampler
from flashrt_ros.contract.task import TaskText
from flashrt_ros.errors import FlashRTError
from flashrt_ros.ros.commander import Commander
from flashrt_ros.ros.handlers import Handlers
from flashrt_ros.ros.motion import Mode, Motion
from flashrt_ros.ros.plan_timing import PlanTiming
from flashrt_ros.ros.planner import Planner
from flashrt_ros.ros.records import (
    ChunkRecord,
    EventRecord,
    StatusRecord,
    StepRecord,
)
from flashrt_ros.ros.resumption import Options
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.storage import Storage
from flashrt_ros.ros.verbs import Answer, Verb, VerbQueue, refusal
from flashrt_ros.runtime.picture import BytePicture
from flashrt_ros.runtime.policy import PlanKind, Policy
from flashrt_ros.runtime.session import PolicySession

PERIOD_NS = 20 * MS


class Lists:
    """An outlet that keeps everything."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.shadows: list[Command] = []
        self.steps: list[StepRecord] = []
        self.chunks: list[ChunkRecord] = []
        self.events: list[EventRecord] = []
        self.statuses: list[StatusRecord] = []
        self.words: list[str] = []
        self.faults = 0

    def stamp_ns(self) -> int:
        return 5

    def send(self, commands: Sequence[Command]) -> None:
        self.sent += commands

    def alive(self) -> None:
        pass

    def shadow(self, commands: Sequence[Command]) -> None:
        self.shadows += commands

    def flush(self, timeout_s: float) -> bool:
        return True

    def step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def chunk(self, record: ChunkRecord) -> None:
        self.chunks.append(record)

    def event(self, record: EventRecord) -> None:
        self.events.append(record)

    def status(self, record: StatusRecord) -> None:
        self.statuses.append(record)

    def fault(self) -> None:
        self.faults += 1

    def log(self, level: str, words: str) -> None:
        self.words.append(f"{level}: {words}")


class Inputs:
    """A source that the test fills, over the real sampler."""

    def __init__(self, contract: Contract) -> None:
        self.sampler = Sampler(contract)
        self.jump: tuple[int, str] | None = None

    def sample(self, now_ns: int, not_before_ns: int) -> Sample:
        return self.sampler.sample(now_ns, not_before_ns)

    def pictures(self, now_ns: int, not_before_ns: int) -> Mapping[str, BytePicture]:
        return self.sampler.pictures_now(now_ns, not_before_ns)

    def take_jump(self) -> tuple[int, str] | None:
        jump, self.jump = self.jump, None
        return jump

    def clear(self) -> None:
        self.sampler.clear()

    def task(self) -> TaskText | None:
        return self.sampler.task()


class Rig:
    """A stepper with everything around it, and a clock."""

    def __init__(
        self,
        policy: Policy | None = None,
        dry_run: bool = False,
        hold: bool = False,
        on_miss: str = "hold",
        miss_limit_s: float = 0.5,
        activate: bool = True,
        capsule_dir: str = "",
        store_bytes: int = 1 << 20,
        host_store_bytes: int = 0,
        plan_ahead: int = 0,
        **changes: Any,
    ) -> None:
        policy = policy or Follow()
        fields = contract_dict(**changes)
        fields["observations"] = fields["observations"][:1]
        fields["actions"][0]["on_miss"] = on_miss
        self.contract = Contract.from_dict(fields)
        self.contract.check(policy.ports())
        self.now_ns = 1000 * PERIOD_NS
        self.out = Lists()
        self.motion = Motion()
        self.inputs = Inputs(self.contract)
        self.commander = Commander(
            self.contract, self.motion, self.out, dry_run, miss_limit_s, lambda: self.now_ns
        )
        self.queue = VerbQueue()
        self.storage = Storage(capsule_dir, self.queue, self.out)
        self.session = PolicySession(
            policy,
            rollback_depth=8,
            store_bytes=store_bytes,
            warm_up=0,
            host_store_bytes=host_store_bytes,
            folder=self.storage.folder,
        )
        self.planner = Planner(self.session) if policy.plan_kind is PlanKind.BESIDE else None
        self.options = Options()
        self.stepper = Stepper(
            self.session,
            self.contract,
            self.inputs,
            self.commander,
            self.motion,
            self.out,
            self.options,
            lambda: self.now_ns,
            self.storage,
            self.planner,
            PlanTiming(policy, self.contract.period_s, plan_ahead),
        )
        self.handlers = Handlers(self.stepper)
        self.motion.configure(hold)
        if activate:
            self.motion.activate(self.now_ns)

    def hear(self, *position: float, stamp_ns: int = 0) -> None:
        """A joint state arrives now."""
        message = joint_state(
            ["a", "b"], position or (0.1, 0.2), (0.0, 0.0), stamp_ns=stamp_ns or self.now_ns
        )
        received = self.inputs.sampler.put("joint_states", message, self.now_ns)
        if received.time_jump:
            self.inputs.jump = (self.now_ns, received.time_jump)

    def tick(self, count: int = 1, hear: bool = True, position: Sequence[float] = ()) -> None:
        """Control periods, each with a fresh joint state before it."""
        for _ in range(count):
            self.now_ns += PERIOD_NS
            if hear:
                self.hear(*position)
            self.stepper.tick(self.now_ns)

    def call(self, service: str, /, **fields: Any) -> tuple[Verb, Answer | None]:
        """A request that is carried out at once."""
        verb = self.verb(service, **fields)
        return verb, self.carry_out(verb)

    def verb(self, service: str, /, **fields: Any) -> Verb:
        """A request as it is received."""
        defaults: dict[str, Any] = {
            "name": "",
            "tier": "",
            "pin": False,
            "replace": False,
            "publish": False,
            "allow_inexact": False,
            "set_seed": False,
            "seed": 0,
            "steps": 0,
            "set_task": False,
            "task": "",
            "hold": False,
            "count": 0,
            "seeds": [],
            "names": [],
            "include_automatic": False,
            "force": False,
            "file": "",
        }
        request = SimpleNamespace(**{**defaults, **fields})
        verb = Verb(
            service,
            lambda handlers, verb: handlers.find(service)(request, verb),
            self.now_ns,
            self.now_ns + 10**10,
        )
        verb.epoch = self.motion.epoch
        return verb

    def carry_out(self, verb: Verb) -> Answer | None:
        """A request's turn comes on the control thread."""
        verb.begin()
        try:
            answer = verb.carry_out(self.handlers)
        except FlashRTError as error:
            answer = refusal(error)
        if answer is not None:
            verb.answer(answer)
        return verb.result

    def ask(self, service: str, /, **fields: Any) -> Answer:
        """A verb that is answered at once."""
        answer = self.call(service, **fields)[1]
        assert answer is not None
        return answer

    @property
    def positions(self) -> list[list[float]]:
        return [command.values.tolist() for command in self.out.sent]

    @property
    def mode(self) -> Mode:
        return self.motion.mode

    @property
    def reason(self) -> str:
        return self.motion.standing.reason


def close(found: Sequence[float], *expected: float) -> bool:
    return bool(np.allclose(found, expected, atol=1e-6))


def plan_ready(rig: Rig) -> None:
    """Waits for the plan under way."""
    assert rig.planner is not None
    while rig.planner.busy:
        threading.Event().wait(0.001)
