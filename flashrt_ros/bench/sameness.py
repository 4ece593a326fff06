"""Restore, then 200 steps: every byte of state and of every action equal, and what must differ.

At each of 100 random cut points the session is snapshotted, runs on, is restored and runs again
over the same observations. The controls are the same comparison made wrong: without the restore,
and with one buffer left out of it (that buffer keeps its value from another episode). A buffer
that then changes neither an action nor another buffer at any cut is inert, and named.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.policies import SAMENESS, observations
from flashrt_ros.bench.report import Count, Result
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

CUTS, STEPS, LATEST_CUT = 100, 200, 150
Observations = list[dict[str, np.ndarray]]


@dataclass
class Trace:
    """What one run left behind.

    Attributes:
        actions: Bytes of each action.
        states: Bytes of the state after each step.
    """

    actions: list[bytes] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)


def run(options: Options) -> Result:
    """Compares every kind of policy at every cut."""
    result = Result("sameness", "restore, then the same steps again, byte for byte")
    cuts, steps = (3, 12) if options.quick else (CUTS, STEPS)
    for name, make in SAMENESS.items():
        _compare(result, options, name, make, cuts, steps)
    result.notes.append(f"{cuts} random cut points, {steps} steps after each; seeds are fixed.")
    return result


def _compare(
    result: Result,
    options: Options,
    name: str,
    make: Callable[[], Policy],
    cuts: int,
    steps: int,
) -> None:
    session = PolicySession(make(), options.device, rollback_depth=1, warm_up=options.warm())
    stream = observations(LATEST_CUT + steps)
    other = _other_episode(session)
    buffers = [slot.spec.name for slot in session.layout.state]
    equal, unrestored = 0, 0
    left_out = dict.fromkeys(buffers, 0)
    draw = random.Random(0)
    for _ in range(cuts):
        cut = draw.randrange(LATEST_CUT)
        session.reset_(seed=7)
        for index in range(cut):
            session.step(stream[index])
        session.snapshot("cut", replace=True)
        after = stream[cut : cut + steps]
        first = _run(session, after)
        unrestored += _differs(session, first, after, None)
        session.restore("cut")
        equal += not _differs(session, first, after, None)
        for buffer in buffers:
            session.restore("cut")
            with session.device.bind(Lane.CONTROL):
                session.arena.state[buffer].copy_(other[buffer])
            left_out[buffer] += _differs(session, first, after, buffer)
    session.close()
    result.counts.append(Count(f"{name}: equal after restore", equal, cuts, "all"))
    result.counts.append(Count(f"{name}: control, no restore, differs", unrestored, cuts, "all"))
    for buffer, count in left_out.items():
        inert = "" if count else "inert"
        result.counts.append(
            Count(f"{name}: control, {buffer} left out, differs", count, cuts, inert or ">= 1")
        )


def _other_episode(session: PolicySession) -> dict[str, torch.Tensor]:
    """Returns the state of an episode with other observations, seed and length."""
    session.reset_(seed=1234)
    for observation in observations(37, seed=9):
        session.step(observation)
    return {name: tensor.clone() for name, tensor in session.arena.state.items()}


def _run(session: PolicySession, after: Observations) -> Trace:
    trace = Trace()
    for observation in after:
        trace.actions.append(session.step(observation).values.numpy().tobytes())
        trace.states.append(session.state_bytes())
    return trace


def _differs(
    session: PolicySession, first: Trace, after: Observations, ignored: str | None
) -> bool:
    """Runs again and compares after every step; ends at the first difference.

    Args:
        session: At the boundary to run from.
        first: What to compare with.
        after: The observations of ``first``.
        ignored: Buffer whose own bytes do not count.
    """
    slot = next((s for s in session.layout.state if s.spec.name == ignored), None)
    for observation, action, state in zip(after, first.actions, first.states, strict=True):
        if session.step(observation).values.numpy().tobytes() != action:
            return True
        now = session.state_bytes()
        if slot is not None:
            start, end = slot.offset, slot.offset + slot.size_bytes
            now, state = now[:start] + now[end:], state[:start] + state[end:]
        if now != state:
            return True
    return False
