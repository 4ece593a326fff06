"""Forks a policy at a moment of a source: branches with other seeds, tasks or policies.

All go on from the state that the policy had there, over the observations that were recorded. The
arm of a recording follows none of them, so what they say is where they would begin to differ, and
less the longer they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.evaluate.drive import Driver, DriverStanding
from flashrt_ros.evaluate.evaluator import Evaluator
from flashrt_ros.evaluate.fan import Branch, Fan
from flashrt_ros.evaluate.source import Source, open_source
from flashrt_ros.evaluate.timeline import Moment
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.verbs import MAX_BRANCHES

FORK = "fork"
FOR_S = 2.0
"""How long branches run where nobody says it."""


@dataclass(frozen=True)
class BranchPlan:
    """One branch.

    Attributes:
        policy: Label.
        label: For people, different for each branch.
        number: Of its seed: 0: the noise goes on as it was; others: a key derived from it.
        seed: A noise key of its own in place of that; None: none.
        task: Text from the fork on; None: it stays.
    """

    policy: str
    label: str
    number: int = 0
    seed: int | None = None
    task: str | None = None


@dataclass(frozen=True)
class ForkPlan:
    """What to do.

    Attributes:
        at_s: From the start of the source.
        branches: In the order of the result.
        for_s: How long they run.
        replan: Rows that are left of a chunk are dropped, so that branches differ at once.
    """

    at_s: float
    branches: tuple[BranchPlan, ...]
    for_s: float = FOR_S
    replan: bool = False

    @classmethod
    def of(
        cls,
        at_s: float,
        policies: Sequence[str],
        count: int = 0,
        seeds: Sequence[int] = (),
        tasks: Sequence[str] = (),
        for_s: float = FOR_S,
        replan: bool = False,
    ) -> ForkPlan:
        """Every policy with every task and every seed.

        Args:
            at_s: See the class.
            policies: Labels.
            count: Branches of each policy and task, by derived seeds; 0: as many as ``seeds``.
            seeds: Noise keys in place of derived ones.
            tasks: None: the task stays.
            for_s: See the class.
            replan: See the class.

        Raises:
            InvalidArgumentError: Too many, or none, or a seed out of range.
        """
        keys: list[tuple[int, int | None]]
        if seeds:
            if count not in (0, len(seeds)):
                raise InvalidArgumentError(
                    f"--branches: expected {len(seeds)}, one for each of --branch-seeds, or none, "
                    f"found {count}"
                )
            keys = [(0, noise.check_seed(seed)) for seed in seeds]
        else:
            keys = [(number, None) for number in range(count or 1)]
        choices = tasks or (None,)
        branches = tuple(
            BranchPlan(policy, _label(policies, policy, choices, task, keys, key), *key, task)
            for policy in policies
            for task in choices
            for key in keys
        )
        if len(branches) > MAX_BRANCHES:
            raise InvalidArgumentError(
                f"--branches: expected at most {MAX_BRANCHES} in all, found {len(branches)}"
            )
        if for_s <= 0:
            raise InvalidArgumentError(f"--fork-for: expected a time above 0, found {for_s:g} s")
        return cls(at_s, branches, for_s, replan)


@dataclass(frozen=True)
class _Stem:
    """A policy at the fork."""

    capsule: Capsule
    standing: DriverStanding


def fork(evaluator: Evaluator, path: str, plan: ForkPlan) -> Fan:
    """Leads all policies up to the moment, and runs the branches.

    Args:
        evaluator: Its policies; keyframes are used where there are some.
        path: Of the source.
        plan: What to do.

    Raises:
        InvalidArgumentError: The source ends before, or a policy cannot take a task.
        FlashRTError: The source cannot be read.
    """
    source = open_source(path)
    try:
        drivers, moments = _lead_up(evaluator, source, plan)
        stems = {}
        for driver in drivers:
            driver.session.withdraw_plan()
            capsule = driver.session.snapshot(FORK, replace=True)
            stems[driver.label] = _Stem(capsule, driver.standing)
        return _run(evaluator, source, plan, stems, moments)
    finally:
        source.close()
        for session in evaluator.sessions.values():
            if FORK in session.store:
                session.drop(FORK)


def _lead_up(
    evaluator: Evaluator, source: Source, plan: ForkPlan
) -> tuple[list[Driver], list[Moment]]:
    """Drivers that stand before the fork, and the moments behind it.

    A plan that runs beside is in no capsule: the fork waits for the next boundary without one, so
    that the first branch is the run itself. Whoever plans anew does not need to.
    """
    at_ns = source.start_ns + round(plan.at_s * 1e9)
    for_ns = round(plan.for_s * 1e9)
    waits = not plan.replan and any(branch.task is None for branch in plan.branches)
    drivers, moments = evaluator.enter(source, at_ns)
    found: list[Moment] = []
    end_ns = at_ns + for_ns
    for moment in moments:
        if found or moment.time_ns >= at_ns:
            if moment.time_ns >= end_ns:
                break
            if found or not waits or not any(driver.session.planning for driver in drivers):
                end_ns = end_ns if found else max(end_ns, moment.time_ns + for_ns)
                found.append(moment)
                continue
        for driver in drivers:
            driver.take(moment, keep=False)
    if not found and waits and any(driver.session.planning for driver in drivers):
        raise InvalidArgumentError(
            f"{source.name}: --fork-at: expected a boundary without a plan under way within "
            f"{plan.for_s:g} s, found none; --fork-replan gives it up"
        )
    if not found:
        length_s = (source.end_ns - source.start_ns) / 1e9
        raise InvalidArgumentError(
            f"{source.name}: --fork-at: expected a time within its {length_s:.3f} s, found "
            f"{plan.at_s:g} s"
        )
    return drivers, found


def _run(
    evaluator: Evaluator,
    source: Source,
    plan: ForkPlan,
    stems: dict[str, _Stem],
    moments: Sequence[Moment],
) -> Fan:
    elements = source.elements(evaluator.setting())
    branches, actions = [], []
    recorded_HA = np.stack([moment.recorded_A for moment in moments])
    for branch in plan.branches:
        session, stem = evaluator.sessions[branch.policy], stems[branch.policy]
        key = stem.capsule.key if branch.seed is None else branch.seed
        if branch.seed is None and branch.number:
            key = noise.derive_key(key, branch.number - 1)
        session.restore(stem.capsule, seed=key)
        driver = Driver(
            branch.policy,
            source.name,
            session,
            elements,
            evaluator.contract,
            evaluator.options.pace,
        )
        driver.go_on(stem.standing)
        ours = moments
        if branch.task is not None:
            session.host.task = session.check_task(branch.task)
            # What the recording says of tasks from here on is of another branch.
            ours = [dataclasses.replace(moment, task=branch.task) for moment in moments]
        if plan.replan or branch.task is not None:
            session.host.cursor = session.host.length
        for moment in ours:
            driver.take(moment)
        actions.append(driver.finish().sent_TA)
        branches.append(Branch(branch.label, branch.policy, key, session.host.task))
    first = moments[0]
    return Fan(
        policy=plan.branches[0].policy,
        source=source.name,
        index=first.index,
        time_ns=first.time_ns,
        period_s=elements.period_s,
        names=elements.names,
        units=elements.units,
        branches=tuple(branches),
        actions_BHA=np.stack(actions),
        recorded_HA=recorded_HA,
    )


def _label(
    policies: Sequence[str],
    policy: str,
    tasks: Sequence[str | None],
    task: str | None,
    keys: Sequence[tuple[int, int | None]],
    key: tuple[int, int | None],
) -> str:
    """Says what tells a branch from the others."""
    number, seed = key
    words = [policy] if len(policies) > 1 else []
    if task is not None:
        words.append(f"task {task!r}")
    if seed is not None:
        words.append(f"seed {seed}")
    elif len(keys) > 1:
        words.append(f"branch {number}" if number else "as it was")
    return ", ".join(words) or "as it was"


def join(fans: Sequence[Fan]) -> Fan:
    """One fan of the branches of several, all from the same moment."""
    first = fans[0]
    return dataclasses.replace(
        first,
        branches=tuple(branch for fan in fans for branch in fan.branches),
        actions_BHA=np.concatenate([fan.actions_BHA for fan in fans]),
    )
