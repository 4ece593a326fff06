"""The calls of the control nodes, as leaves between nodes of BehaviorTree.CPP (``lower``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashrt_ros.errors import ErrorCode, InvalidArgumentError
from flashrt_ros.trees.btcpp.leaf import Leaf, Steps, call, refused, seeds_of, timeout_of
from flashrt_ros.trees.btcpp.lower import (
    AGAIN,
    BACK,
    BRANCH,
    DROP,
    FAILED,
    FORK,
    KEEP,
    SNAPSHOT,
    WON,
    LeafUse,
)
from flashrt_ros.trees.btcpp.ports import Ports
from flashrt_ros.trees.call import Call
from flashrt_ros.trees.link import PolicyLink
from flashrt_ros.trees.script import seed_from


@dataclass
class Round:
    """Where one control node stands.

    Attributes:
        origin: Name of the capsule to come back to.
        origin_id: Its id.
        branches: Names of the branches.
        kept: Capsules to be dropped.
        attempt: Under way, from 1; of branches as well. 0: none yet.
        broken: It could not come back to the capsule.
        lost: A call was not answered: nobody knows which state is live.
    """

    origin: str = ""
    origin_id: str = ""
    branches: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    attempt: int = 0
    broken: bool = False
    lost: bool = False


class ControlSteps:
    """All steps of all control nodes of one policy."""

    def __init__(self, link: PolicyLink, use_of: Callable[[Ports], LeafUse]) -> None:
        """Prepares them.

        Args:
            link: Of the policy.
            use_of: Gives the use of the leaf that ports belong to.
        """
        self._link, self._use_of = link, use_of
        self._rounds: dict[str, Round] = {}

    def leaves(self) -> Mapping[str, Leaf]:
        """By type, what each step does."""
        return {
            KEEP: self._keep,
            DROP: self._drop,
            SNAPSHOT: self._snapshot,
            AGAIN: self._again,
            FORK: self._fork,
            BRANCH: self._branch,
            WON: self._won,
            BACK: self._back,
        }

    def _key(self, ports: Ports) -> str:
        # Each use of a subtree has control nodes of its own.
        return ports.path.rpartition("/")[0] + "/" + self._use_of(ports).group

    def _standing(self, ports: Ports) -> Round:
        return self._rounds[self._key(ports)]

    def _keep(self, ports: Ports) -> Steps:
        """Runs beside the other steps; halted with them, it has dropped what they keep."""
        standing = self._rounds[self._key(ports)] = Round()
        try:
            while True:
                yield
        finally:
            self._link.farewell(standing.kept)

    def _take(self, ports: Ports, standing: Round, word: str) -> Steps:
        """Names the live state; returns whether that went well."""
        standing.origin = self._link.new_name(word)
        standing.kept.append(standing.origin)
        over = yield from self._ask(ports, standing, "snapshot", name=standing.origin, pin=True)
        if refused(ports, over):
            return False
        standing.origin_id = over.response.capsule.id
        return True

    def _snapshot(self, ports: Ports) -> Steps:
        standing = self._standing(ports)
        if ports.number("num_attempts", "3") == 0:
            raise InvalidArgumentError("num_attempts: expected at least 1, found 0")
        return (yield from self._take(ports, standing, "attempt"))

    def _again(self, ports: Ports) -> Steps:
        standing = self._standing(ports)
        if standing.broken:
            return False
        standing.attempt += 1
        if standing.attempt > 1:
            reseed = ports.truth("reseed", "true")
            over = yield from self._ask(
                ports,
                standing,
                "restore",
                name=standing.origin,
                publish=ports.truth("publish"),
                set_seed=reseed,
                seed=self._seed(ports, standing) if reseed else 0,
            )
            if refused(ports, over):
                standing.broken = True
                return False
        ports.write("attempt", standing.attempt)
        return True

    def _seed(self, ports: Ports, standing: Round) -> int:
        failed = standing.attempt - 1
        first = ports.number("seed", "0")
        return first + failed if first else seed_from(f"{standing.origin_id} {failed}")

    def _fork(self, ports: Ports) -> Steps:
        standing = self._standing(ports)
        if not (yield from self._take(ports, standing, "origin")):
            return False
        count = self._use_of(ports).index
        branches = [f"{standing.origin}.{index}" for index in range(count)]
        standing.kept += branches
        over = yield from self._ask(
            ports,
            standing,
            "fork",
            name=str(ports.read("source")) or standing.origin,
            names=branches,
            seeds=seeds_of(ports),
        )
        if refused(ports, over):
            return False
        standing.branches = branches
        return True

    def _branch(self, ports: Ports) -> Steps:
        standing, index = self._standing(ports), self._use_of(ports).index
        if standing.lost:
            return False
        standing.attempt = index + 1
        standing.broken = not (yield from self._restore(ports, standing.branches[index]))
        return not standing.broken

    def _restore(self, ports: Ports, capsule: str) -> Steps:
        standing, publish = self._standing(ports), ports.truth("publish")
        over = yield from self._ask(ports, standing, "restore", name=capsule, publish=publish)
        return not refused(ports, over)

    def _won(self, ports: Ports) -> bool:
        ports.write("winner", self._use_of(ports).index)
        return True

    def _back(self, ports: Ports) -> Steps:
        standing = self._standing(ports)
        if standing.branches and not standing.lost:
            self._tell(ports, standing, "branch")
            yield from self._restore(ports, standing.origin)
        return True

    def _drop(self, ports: Ports) -> Steps:
        standing = self._standing(ports)
        if self._use_of(ports).index == FAILED:
            self._tell(ports, standing, "attempt")
        names, standing.kept = standing.kept, []
        if standing.lost:  # the time is up: nobody waits for this either
            self._link.farewell(names)
            return True
        calls = [self._link.drop(name, timeout_of(ports)) for name in names]
        try:
            while not all(call.poll() for call in calls):
                yield
        finally:
            self._link.see_off(calls)  # halted: they go on without it
        return True

    def _tell(self, ports: Ports, standing: Round, word: str) -> None:
        """Says that a child failed; of a call that failed it has been said why."""
        if standing.attempt and not standing.broken:
            ports.write("message", f"{word} {standing.attempt} failed")

    def _ask(self, ports: Ports, standing: Round, verb: str, **fields: Any) -> Steps:
        over: Call = yield from call(self._link, verb, fields, timeout_of(ports))
        standing.lost |= over.code is ErrorCode.TIMEOUT
        return over
