"""Keep-warm replays leave the execution state as it was, to the bit, and only run while idle.

They run the policy for nothing; a bit of its memory that moved by it would show in no action until
much later, as an episode that is not the one that was recorded.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import puppet
import pytest
from control_rig import Lists, Rig, plan_ready
from node_policies import Follow, FollowChunks
from puppet import Puppet

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.control import Control
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.scheduling import cpu_set, schedule
from flashrt_ros.runtime.policy import Policy

SECOND_NS = 1_000_000_000


def warm(rig: Rig, rounds: int = 3) -> None:
    for _ in range(rounds):
        rig.now_ns += SECOND_NS
        assert rig.stepper.warmth.turn(rig.now_ns)


def rest(policy: Policy, replays: bool) -> tuple[Any, ...]:
    """Some steps, a pause with or without replays, some steps: state, records and positions."""
    rig = Rig(policy)
    rig.options.keep_warm_s = 0.5
    for _ in range(6):
        rig.tick()
        if rig.planner is not None:
            plan_ready(rig)
    rig.motion.pause()
    rig.tick(2)
    before = (rig.session.state_digest(), rig.session.tick, vars(rig.session.host).copy())
    if replays:
        warm(rig)
    else:
        rig.now_ns += 3 * SECOND_NS
    assert before == (rig.session.state_digest(), rig.session.tick, vars(rig.session.host))
    rig.motion.resume(rig.now_ns)
    for _ in range(6):
        rig.tick()
        if rig.planner is not None:
            plan_ready(rig)
    assert rig.mode is Mode.RUNNING
    digest = rig.session.state_digest()
    ring = sorted((c.tick, c.host.step) for c in rig.session.store.list())
    rig.stepper.close()
    return digest, ring, rig.positions, [(s.tick, s.step, s.chunk_id) for s in rig.out.steps]


@pytest.mark.parametrize("make", [Follow, Puppet, FollowChunks, puppet.five])
def test_what_follows_a_warm_rest_is_what_follows_a_cold_one(make: Any) -> None:
    assert rest(make(), replays=True) == rest(make(), replays=False)


def test_control_a_step_that_is_not_taken_back_is_another_continuation() -> None:
    rig, other = Rig(Puppet()), Rig(Puppet())
    for each in (rig, other):
        each.tick(3)
    rig.session.step(rig.stepper.warmth._nothing)
    assert rig.session.state_digest() != other.session.state_digest()


def test_it_waits_for_a_rest_and_is_off_by_default() -> None:
    rig = Rig()
    rig.tick(2)
    assert not rig.stepper.warmth.turn(rig.now_ns + 100 * SECOND_NS)
    rig.options.keep_warm_s = 2.0
    assert not rig.stepper.warmth.turn(rig.now_ns + SECOND_NS)
    assert rig.stepper.warmth.turn(rig.now_ns + 2 * SECOND_NS)
    assert not rig.stepper.warmth.turn(rig.now_ns + 3 * SECOND_NS)


def test_the_control_thread_replays_while_inactive() -> None:
    ran = threading.Event()

    class Seen(Follow):
        family = "seen"

        def act(self, *buffers: Any) -> None:
            if threading.current_thread().name == "control":
                ran.set()
            super().act(*buffers)

    rig = Rig(Seen(), activate=False)
    rig.options.keep_warm_s = 0.01
    control = Control(lambda: rig.stepper, rig.out, 0.02, 1)
    control.start()
    assert ran.wait(30.0)
    assert control.close(30.0)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("3", (3,)), ("0-2,5", (0, 1, 2, 5)), (" 1 , 4-4 ", (1, 4))],
)
def test_cpus_are_read_from_words(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_set(text) == frozenset(cpus)


@pytest.mark.parametrize("text", ["a", "4-", "5-3", "1;2", "-1", "99999"])
def test_what_names_no_cpus_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected CPUs such as 4-7,10, found"):
        cpu_set(text)


def test_what_is_permitted_is_done_and_said_and_what_is_not_is_said() -> None:
    out, found = Lists(), []
    mine = min(os.sched_getaffinity(0))

    def work() -> None:
        schedule(0, frozenset({mine}), out)
        found.append(os.sched_getaffinity(threading.get_native_id()))
        schedule(0, frozenset({4000}), out)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [{mine}]
    assert out.words[0] == f"info: the control thread runs on CPUs {mine}"
    assert out.words[1].startswith("warn: cpu_affinity 4000: ")
    assert "this process may use" in out.words[1]
    assert os.sched_getaffinity(0) != {mine} or len(os.sched_getaffinity(0)) == 1
