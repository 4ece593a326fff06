"""Checks that compare the bits of whole runs."""

from __future__ import annotations

import torch

from flashrt_ros.policies.walk import changes
from flashrt_ros.runtime.buffers import ROWS_LENGTH
from flashrt_ros.testing.rig import Moment, Rig, difference
from flashrt_ros.testing.subject import Subject


def reset(subject: Subject) -> list[str]:
    """Resets two differently spoilt states, then runs the same episode twice."""
    rig = subject.rig
    after = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        bytes_N = torch.randint(0, 256, rig.fixed.shape, dtype=torch.uint8, generator=generator)
        rig.fixed.copy_(bytes_N)
        # The number of rows is the runtime's to set, and no random one fits.
        if rig.layout.capacity:
            rig.state[ROWS_LENGTH].zero_()
        rig.reset()
        after.append(rig.digests())
    unclear = changes(*after)
    if unclear:
        return [
            f"{name}: its value after a reset depends on its value before; write all of it"
            for name in unclear
        ]
    episode = subject.episode()
    first = rig.run(episode)
    # With other numbers of steps in between, which no period of a hidden counter divides both.
    for extra in (0, 1):
        rig.run(episode[:extra])
        rig.reset()
        differs = difference(first, rig.run(episode))
        if differs:
            return [f"the same episode after another reset differs, {differs}"]
    return []


def plain(subject: Subject) -> list[str]:
    """Shared rig (captured on CUDA) against plain calls over buffers of their own."""
    expected = subject.baseline()
    rig = Rig(subject.policy, subject.device, captured=False)
    rig.reset()
    differs = difference(expected, rig.run(subject.episode()))
    kind = "captured" if subject.captures else "first"
    return [f"plain calls over fresh buffers differ from the {kind} run, {differs}"] * bool(
        differs
    )


def garbage(subject: Subject) -> list[str]:
    """All that a call may not read is random bytes before it.

    That is outputs and scratch; and, where plans run beside, the observations in ``adopt`` and, if
    the policy does not say ``act_observes``, in ``act``: the planner may be writing the next ones.
    """
    expected = subject.baseline()
    problems = []
    for seed in (1, 2):
        subject.rig.reset()
        generator = torch.Generator().manual_seed(seed)
        differs = difference(expected, subject.rig.run(subject.episode(), generator))
        if differs:
            problems.append(
                f"random bytes change the run, {differs}; something is read before it is written, "
                "or not written whole, or an observation is read beside its plan"
            )
    return problems[:1]


def seeds(subject: Subject) -> list[str]:
    """The same episode under two noise keys."""
    first = subject.baseline()
    subject.rig.reset(key=2)
    second = subject.rig.run(subject.episode())
    differs = difference(_without_noise(first), _without_noise(second))
    if subject.declares_noise and not differs:
        return ["layout() names the noise, but another seed gives the same run"]
    return []


def _without_noise(moments: list[Moment]) -> list[Moment]:
    return [
        {name: value for name, value in moment.items() if not name.startswith("noise.")}
        for moment in moments
    ]
