"""Drives a node's stepper through random sequences, against a model of what may be published.

The model knows nothing of ``Motion``: it reads the requests, the inputs and the clock, and says
for each command whether the documents allow it. A seed that fails is a case to keep.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from contract_examples import MS, contract_dict, joint_state
from control_rig import PERIOD_NS, Rig, plan_ready
from node_policies import Follow, FollowChunks

from flashrt_ros.contract import Command
from flashrt_ros.errors import ErrorCode
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.verbs import Answer, Verb
from flashrt_ros.runtime.policy import Policy

MAX_STEP, MAX_AGE_NS = 0.2, 100 * MS
MISS_LIMIT_S = 0.3
SLACK = 1e-6


class Wild(Follow):
    """Follows, but now and then fails, is slow, far off or not a number; says what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.mishap = ""
        self.during: Any = None

    def act(self, state: Any, inputs: Any, outputs: Any) -> None:
        during, self.during = self.during, None
        if during is not None:
            during()
        super().act(state, inputs, outputs)
        mishap, self.mishap = self.mishap, ""
        if mishap == "raise":
            raise RuntimeError("a mishap")
        if mishap == "nan":
            outputs["action_out"][1] = float("nan")
        if mishap == "far":
            outputs["action_out"].add_(2.0)


class Gated(FollowChunks):
    """Plans when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def plan(self, state: Any, inputs: Any, outputs: Any) -> None:
        if threading.current_thread().name == "planner":
            self.gate.wait()
        super().plan(state, inputs, outputs)


class Driver:
    """One seeded run.

    Attributes:
        asked: The model: reasons to stand still, from the requests alone.
        late: Requests that were received and not yet carried out.
    """

    def __init__(self, seed: int, policy: Policy, on_miss: str, ramp_s: float) -> None:
        self.random = random.Random(seed)
        start = {**contract_dict()["start"], "ramp_s": ramp_s}
        self.rig = Rig(policy, on_miss=on_miss, miss_limit_s=MISS_LIMIT_S, start=start)
        self.ramp_s = ramp_s
        self.on_miss = on_miss
        self.policy = policy
        self.arm = np.array([0.1, 0.2])
        self.asked: set[str] = set()
        self.active = True
        self.since_ns = self.rig.now_ns
        self.heard: list[tuple[int, np.ndarray[Any, Any], bool]] = []
        self.last: np.ndarray[Any, Any] | None = None
        self.last_ns = 0
        self.ticks: list[int] = []
        self.digests: dict[str, str] = {}
        self.pinned: set[str] = set()
        self.late: list[tuple[str, dict[str, Any], Verb]] = []
        self.generation = self.rig.session.generation
        self.names = 0

    # The world

    def hear(self, kind: str) -> None:
        rig = self.rig
        position = self.arm + self.random.uniform(-1e-3, 1e-3)
        if kind == "nan":
            position = position + np.array([float("nan"), 0.0])
        names = ["a", "c"] if kind == "renamed" else ["b", "a"]
        values = position if kind == "renamed" else position[::-1]
        stamp_ns = rig.now_ns - (5 * 10**9 if kind == "jump" else 0)
        message = joint_state(names, values, (0.0, 0.0), stamp_ns=stamp_ns)
        received = rig.inputs.sampler.put("joint_states", message, rig.now_ns)
        if received.time_jump:
            rig.inputs.jump = (rig.now_ns, received.time_jump)
            self.since_ns = max(self.since_ns, rig.now_ns)
        self.heard.append((rig.now_ns, position, kind in ("good", "jump")))

    # The word of the documents

    def allowed(self) -> bool:
        return self.active and not self.asked

    def fresh(self, now_ns: int) -> np.ndarray[Any, Any] | None:
        """The newest message, if it may be acted on."""
        known = [item for item in self.heard if item[0] <= now_ns]
        if not known:
            return None
        received_ns, position, good = known[-1]
        if not good or received_ns < self.since_ns or now_ns - received_ns > MAX_AGE_NS:
            return None
        return position

    def check(self, sent: Sequence[Command], before_ns: int, allowed: bool) -> None:
        """What left during one tick or verb."""
        rig = self.rig
        for command in sent:
            values = command.values
            assert np.isfinite(values).all()
            assert (np.abs(values) <= [3.0, 2.0]).all(), values
            if command.fields["velocity"]:  # the stop message
                if self.last is not None:
                    assert (values == self.last).all(), "a stop repeats the last command"
                self.last = None
                continue
            assert allowed, f"a command left although {self.asked or 'inactive'}"
            if command.repeat:
                assert self.last is not None, "nothing to repeat"
                assert (values == self.last).all()
                assert rig.now_ns - self.last_ns <= MISS_LIMIT_S * 1e9 + 2 * PERIOD_NS
                continue
            assert self.fresh(before_ns) is not None, "a command without fresh input"
            if self.last is not None:
                # After a resume or a jump in time the step counts from the measured position.
                there = self.fresh(rig.now_ns)
                assert there is not None
                near = np.abs(values - there).max() <= MAX_STEP + 2e-3
                assert near or np.abs(values - self.last).max() <= MAX_STEP + SLACK, "a jump"
            else:
                there = self.fresh(rig.now_ns)
                assert there is not None, "a first command without a position"
                assert np.abs(values - there).max() <= MAX_STEP + 2e-3, "a jump at the start"
            self.last, self.last_ns = values, rig.now_ns
            self.arm = np.array(values)

    # Moves

    def tick(self) -> None:
        rig = self.rig
        rig.now_ns += PERIOD_NS if self.random.random() < 0.95 else 7 * PERIOD_NS
        kind = self.random.choices(["good", "", "nan", "renamed", "jump"], [85, 10, 2, 2, 1], k=1)[
            0
        ]
        if kind:
            self.hear(kind)
        if isinstance(self.policy, Wild) and self.random.random() < 0.03:
            self.policy.mishap = self.random.choice(["raise", "nan", "far"])
        if isinstance(self.policy, Wild) and self.random.random() < 0.05:
            self.policy.during = self.random.choice([self.slow, self.pause, self.stop, self.watch])
        before_ns, count = rig.now_ns, len(rig.out.sent)
        if self.fresh(before_ns) is None:
            self.fault_ns = before_ns
        self.overtaken = -1
        steps, digest = len(rig.out.steps), rig.session.state_digest()
        allowed = self.allowed()
        if self.active:
            try:
                rig.stepper.tick(rig.now_ns)
            except Exception as error:
                rig.stepper.fail(error)
        if isinstance(self.policy, Wild):
            self.policy.during, self.policy.mishap = None, ""
        self.check(rig.out.sent[count:], before_ns, allowed)
        assert self.overtaken in (-1, len(rig.out.sent)), "a command after stop or pause"
        if not allowed:
            assert rig.session.state_digest() == digest, "the policy stepped while it stands"
            assert len(rig.out.steps) == steps
        for record in rig.out.steps[steps:]:
            self.provenance(record, before_ns)
        self.heed_own_holds()

    def provenance(self, record: Any, now_ns: int) -> None:
        assert not self.ticks or record.tick > self.ticks[-1], "a tick was used twice"
        self.ticks.append(record.tick)
        if isinstance(self.policy, Gated):
            if record.stamps and record.published and not self.ramp_s:
                seen = self.heard[record.stamps[0].sequence - 1][1]
                wanted = (seen + 0.01 * record.chunk_index).clip([-3.0, -2.0], [3.0, 2.0])
                near = np.abs(record.action - wanted).max() <= 1e-4
                limited = np.abs(record.action - self.before_step).max() >= MAX_STEP - 2e-3
                assert near or limited, "the record names another message than the plan saw"
            if record.stamps and record.chunk_index == 0:
                seen_ns = self.heard[record.stamps[0].sequence - 1][0]
                assert seen_ns > self.fault_ns, "planned before the input failed"
                assert seen_ns >= self.since_ns, "planned before the last verb"
            return
        assert record.stamps[0].sequence == len([item for item in self.heard if item[0] <= now_ns])

    before_step = np.full(2, np.nan)

    def heed_own_holds(self) -> None:
        """A hold of the node's own is for it to say; that it keeps it is for the model to see."""
        standing = self.rig.motion.standing
        if standing.mode is Mode.HOLDING and "asked" not in self.asked:
            words = ("unsafe start", "the policy failed", "non-finite action", "no fresh input")
            if any(word in standing.reason for word in (*words, "more than max_step", "timed")):
                self.asked.add("own")

    # In the middle of a step, from other threads

    def slow(self) -> None:
        self.rig.now_ns += 4 * PERIOD_NS

    def watch(self) -> None:
        self.rig.now_ns += 20 * PERIOD_NS
        self.rig.commander.halt()
        if self.random.random() < 0.5:
            self.arm = self.arm + 1.0
        self.hear("good")

    def stop(self) -> None:
        with self.rig.motion.lock:
            self.rig.commander.halt(all_outputs=True)
            self.rig.motion.stop()
        self.asked.add("stop")
        self.check_overtaken()

    def pause(self) -> None:
        if not self.active:
            return
        with self.rig.motion.lock:
            self.rig.motion.pause()
            self.rig.commander.halt()
        self.asked.add("pause")
        self.check_overtaken()

    overtaken = -1
    fault_ns = 0

    def check_overtaken(self) -> None:
        # What left so far was allowed; from here on nothing but the stop message above.
        self.overtaken = len(self.rig.out.sent)
        self.overtake()

    def clear_stop(self) -> None:
        if self.rig.motion.clear_stop():
            self.asked -= {"stop", "pause"}
            self.asked.add("hold")

    def deactivate(self) -> None:
        with self.rig.motion.lock:
            self.rig.commander.halt(wait=True)
            self.rig.motion.deactivate()
        self.active = False
        self.rig.stepper.resumption.overtaken()

    def activate(self) -> None:
        self.rig.motion.activate(self.rig.now_ns)
        self.active, self.since_ns = True, self.rig.now_ns

    # Requests

    def request(self) -> tuple[str, dict[str, Any]]:
        name = self.random.choice(
            ["resume"] * 6
            + ["snapshot", "restore", "restore", "rollback", "reset_episode", "fork"]
            + ["drop_capsule", "list_capsules"]
        )
        fields: dict[str, Any] = {}
        some = self.random.choice([*self.digests, "no-such"])
        publish = self.random.random() < 0.5
        if name == "snapshot":
            self.names += 1
            fields = {"name": f"c{self.names}", "pin": self.random.random() < 0.1}
        elif name == "restore":
            fields = {"name": some, "publish": publish}
        elif name == "rollback":
            fields = {"steps": self.random.choice([0, 1, 3, 2**64 - 1]), "publish": publish}
        elif name == "reset_episode":
            fields = {"hold": publish}
        elif name == "fork":
            self.names += 1
            fields = {"name": self.random.choice([some, ""]), "names": [f"c{self.names}"]}
        elif name == "drop_capsule":
            fields = {"name": some, "force": True}
        return name, fields

    def receive(self) -> None:
        """A request arrives; it is carried out now, or later, with other words in between."""
        name, fields = self.request()
        if not self.active and name == "resume":
            return
        if len(self.late) < 4:
            verb = self.rig.verb(name, **fields)
            self.late.append((name, fields, verb))
            self.moves_at[id(verb)] = True

    @property
    def moves_at(self) -> dict[int, bool]:
        """Whether no word to stand still came since the request did, by the verb's id."""
        return self.__dict__.setdefault("_moves_at", {})

    def overtake(self) -> None:
        for key in self.moves_at:
            self.moves_at[key] = False

    def carry_out(self) -> None:
        if not self.late:
            return
        name, fields, verb = self.late.pop(0)
        rig = self.rig
        valid = self.moves_at.pop(id(verb))
        count, digest = len(rig.out.sent), rig.session.state_digest()
        held_before = set(self.asked)
        answer = rig.carry_out(verb)
        self.check(rig.out.sent[count:], rig.now_ns, False)
        self.after(name, fields, answer, valid, digest, held_before)
        self.storage()

    def after(
        self,
        name: str,
        fields: dict[str, Any],
        answer: Answer | None,
        valid: bool,
        digest: str,
        held: set[str],
    ) -> None:
        rig = self.rig
        ok = answer is None or answer.code is ErrorCode.NONE
        if name in ("restore", "rollback", "reset_episode") and ok:
            assert rig.session.generation == self.generation + 1
            self.since_ns = rig.now_ns
            publish = fields.get("publish", False)
            if name == "reset_episode":
                publish = not fields["hold"]
            self.asked -= {"own", "hold"}
            if not publish or not valid:
                self.asked.add("hold")
            elif name != "reset_episode":
                self.asked.discard("pause")
                assert valid, "a request to move undid a later word to stand still"
        elif not ok:
            assert rig.session.state_digest() == digest, "a refusal changed the state"
        self.generation = rig.session.generation
        if name == "resume" and answer is None:
            assert valid, "a resume undid a later word to stand still"
            assert "stop" not in held
            self.asked -= {"pause", "hold", "own"}
            self.since_ns = rig.now_ns
        if not ok:
            return
        if name == "snapshot":
            self.digests[fields["name"]] = rig.session.state_digest()
            if fields["pin"]:
                self.pinned.add(fields["name"])
        elif name == "restore":
            assert rig.session.state_digest() == self.digests[fields["name"]]
        elif name == "drop_capsule":
            self.digests.pop(fields["name"], None)
            self.pinned.discard(fields["name"])

    def storage(self) -> None:
        store = self.rig.session.store
        segments = {id(capsule.segment): capsule.segment for capsule in store.list()}
        assert store.bytes_used == sum(s.size_bytes for s in segments.values())
        assert store.bytes_used <= store.bytes_budget
        for capsule in store.list():
            shared = [c for c in store.list() if c.segment is capsule.segment]
            assert capsule.segment.holders == len(shared)
        for name in self.pinned:
            assert name in store, "a pinned capsule is gone"
        for name in list(self.digests):
            if name not in store:
                del self.digests[name]
        steps = [c.host.step for c in store.list() if c.automatic]
        assert len(steps) == len(set(steps)), "one boundary twice in the ring"

    def move(self) -> None:
        what = self.random.choices(
            ["tick", "receive", "carry_out", "stop", "pause", "clear", "off", "on", "push"],
            [70, 12, 12, 1, 1, 2, 1, 2, 1],
            k=1,
        )[0]
        self.before_step = np.full(2, np.nan) if self.last is None else np.array(self.last)
        if self.last is None:
            self.before_step = np.array(self.arm)
        count = len(self.rig.out.sent)
        if what == "tick":
            self.tick()
        elif what == "receive":
            self.receive()
        elif what == "carry_out":
            self.carry_out()
        elif what == "push" and self.last is None:
            self.arm = self.arm.clip(-1.0, 1.0) + self.random.uniform(-0.8, 0.8)
        if what in ("stop", "pause", "clear", "off", "on"):
            if what == "stop":
                self.stop()
            elif what == "pause" and self.active:
                self.pause()
            elif what == "clear":
                self.clear_stop()
            elif what == "off" and self.active:
                self.deactivate()
                self.overtake()
            elif what == "on" and not self.active:
                self.activate()
            self.check(self.rig.out.sent[count:], self.rig.now_ns, False)
        if isinstance(self.policy, Gated) and self.random.random() < 0.7:
            self.policy.gate.set()
            plan_ready(self.rig)
            self.policy.gate.clear()


def drive(seed: int, moves: int, policy: Policy, on_miss: str, ramp_s: float) -> Driver:
    driver = Driver(seed, policy, on_miss, ramp_s)
    try:
        for _ in range(moves):
            driver.move()
    finally:
        if isinstance(policy, Gated):
            policy.gate.set()
        driver.rig.stepper.close()
    return driver


@pytest.mark.parametrize("ramp_s", [0.0, 0.5])
@pytest.mark.parametrize("on_miss", ["hold", "stop"])
@pytest.mark.parametrize("kind", [Wild, Gated])
def test_nothing_leaves_that_may_not(kind: type[Policy], on_miss: str, ramp_s: float) -> None:
    moved = 0
    for seed in range(3):
        moved += len(drive(seed, 600, kind(), on_miss, ramp_s).rig.out.sent)
    assert moved > 100, "the driver must move the arm, or it shows nothing"
