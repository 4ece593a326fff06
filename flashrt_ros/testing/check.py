"""Runs every check on a policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.testing import behaviour, hygiene, identity
from flashrt_ros.testing.progress import Say, silent
from flashrt_ros.testing.report import Report, Result, Status
from flashrt_ros.testing.subject import Subject

Check = Callable[[Subject], list[str]]
"""Returns what is wrong, one sentence each; empty if nothing is."""

CHECKS: tuple[tuple[str, str, Check], ...] = (
    ("specs", "buffers and ports are declared soundly", hygiene.specs),
    ("runs", "an episode runs, and its actions are finite", hygiene.runs),
    ("addresses", "no buffer moves or is bound anew", hygiene.addresses),
    ("inputs", "nothing writes to an input", hygiene.inputs),
    ("plan_kind", "a plan that is declared to run beside leaves the state alone", hygiene.beside),
    ("append_only", "committed rows never change, and their number is told", hygiene.append_only),
    ("attributes", "no Python attribute, closure or global changes", hygiene.attributes),
    ("parameters", "no weight or constant changes", hygiene.parameters),
    ("foreign", "no operation writes to a tensor that is no buffer", hygiene.foreign),
    ("outside", "no clock, entropy or file is read", hygiene.outside),
    ("host", "no operation reads a value back to the host", hygiene.host),
    ("global_rng", "no global generator is moved or read", hygiene.global_rng),
    ("reset", "a reset writes all state, always the same", behaviour.reset),
    ("plain", "captured or over fresh buffers, the bits are the same", behaviour.plain),
    ("garbage", "random bytes where nothing may be read change nothing", behaviour.garbage),
    ("seeds", "a policy that says it draws noise heeds the seed", behaviour.seeds),
    (
        "leave_one_out",
        "buffers that change nothing are found, and listed as inert",
        identity.leave_one_out,
    ),
    ("restore", "snapshot, k steps, restore, k steps are bit-equal", identity.restore),
    ("forks", "forks are independent and equal their own cold runs", identity.forks),
)
"""Name, rule and check, in the order run."""

_NEEDED = ("specs", "runs")
_NEEDED_TO_CAPTURE = (*_NEEDED, "host")
"""Without these nothing more can be run: on CUDA a capture would fail half-way."""


def check_policy(
    policy: Policy,
    device: str = "cpu",
    steps: int | None = None,
    observations: Sequence[Mapping[str, npt.ArrayLike]] | None = None,
    say: Say = silent,
) -> Report:
    """Checks that a policy's execution state is what it declares, and nothing else.

    The policy's module is moved to the device. Global generators are left as they were found.

    Args:
        policy: What is checked.
        device: ``cpu``, ``cuda`` or ``cuda:N``; only CUDA really captures.
        steps: Control steps of an episode. None takes two chunks and a bit, at least 12, and more
            than the ``horizon`` of the policy's configuration, if it has one of that name: what
            happens later than that in an episode is not seen. Buffers that grow limit it to a
            third of their capacity.
        observations: One recorded episode, port key to array-like for each step; None makes
            random ones of about unit size.
        say: Told before each check which one it is, and of how many; at last nothing.

    Returns:
        The report; ``print`` it.

    Raises:
        InvalidArgumentError: The device's name is none.
        UnsupportedError: There is no such device here.
        SpecError: ``observations`` does not fit the policy's ports.
    """
    opened = open_device(device)
    count = _enough(policy) if steps is None else max(4, steps)
    count = min(count, _affordable(policy))
    policy.module().to(opened.torch_device)
    subject = Subject(policy, opened, count, observations)
    results: list[Result] = []
    with torch.random.fork_rng():
        python_rng, numpy_rng = random.getstate(), np.random.get_state()
        try:
            for number, (name, rule, check) in enumerate(CHECKS, 1):
                say(f"{number} of {len(CHECKS)}: {rule}")
                results.append(_run(name, rule, check, subject, results))
                if name == "specs" and not results[-1].problems:
                    # Outside the check: observations that do not fit are the caller's mistake.
                    subject.episode()
        finally:
            say("")
            random.setstate(python_rng)
            np.random.set_state(numpy_rng)
            subject.close()
    family = str(getattr(policy, "family", type(policy).__name__))
    return Report(family, opened.name, count, tuple(results), subject.inert)


def _enough(policy: Policy) -> int:
    horizon = policy.config().get("horizon", 0)
    return max(12, 2 * policy.n_action_steps + 3, horizon + 3 if isinstance(horizon, int) else 0)


def _affordable(policy: Policy) -> int:
    """Steps of an episode, of which the checks run up to three on end, that rows have room for."""
    each = policy.rows_per_plan + policy.rows_per_act
    capacity = max((getattr(spec, "capacity", 0) for spec in policy.layout()), default=0)
    return max(4, (capacity // each - 1) // 3) if each > 0 and capacity else 1 << 30


def _run(name: str, rule: str, check: Check, subject: Subject, before: Sequence[Result]) -> Result:
    needed = _NEEDED_TO_CAPTURE if subject.captures else _NEEDED
    if any(item.name in needed and item.problems for item in before):
        return Result(name, rule, Status.SKIPPED)
    try:
        problems = tuple(check(subject))
    except Exception as error:
        # Whatever a policy raises is a finding about it, not a fault of the suite.
        problems = (f"raised {type(error).__name__}: {error}",)
        subject.forget()
    return Result(name, rule, Status.FAILED if problems else Status.PASSED, problems)
