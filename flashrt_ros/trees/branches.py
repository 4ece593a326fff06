"""Several ways to go on from one state, tried one after another."""

from __future__ import annotations

from collections.abc import Sequence

from py_trees.behaviour import Behaviour
from py_trees.common import Status
from py_trees.composites import Composite

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.trees.key import Key
from flashrt_ros.trees.script import CallError, Script, Steps, words_of
from flashrt_ros.trees.service import TIMEOUT_S


class TryBranches(Script, Composite):
    """Runs each child from the same execution state, until one is a SUCCESS.

    The live state is snapshotted and forked, one branch a child, each with its own noise key.
    Before child ``i`` begins, branch ``i`` is restored; the world is as the child before left it,
    so that each child had better begin by bringing the robot back. The first SUCCESS ends it with
    SUCCESS: the live state goes on from there, all branches are dropped. If no child succeeds the
    original state is restored, and it is a FAILURE. A restore that is refused counts as a FAILURE
    of its child. One that is not answered is a FAILURE of the whole at once, since nobody knows
    which state is live. Then, and when it is interrupted, nothing is restored.

    Attributes:
        winner: Index of the child that succeeded; None without one.
    """

    def __init__(
        self,
        name: str,
        children: Sequence[Behaviour],
        *,
        source: str | Key = "",
        seeds: Sequence[int] | Key = (),
        publish: bool = False,
        keep_winner: bool = False,
        winner_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the branches; nothing is asked before the first tick.

        Args:
            name: In the tree.
            children: The ways to try, in this order.
            source: Capsule to branch from; empty: the live state.
            seeds: Noise keys, one a child; empty: derived from the source.
            publish: False: each child begins on hold, and ``Resume`` is up to it. True: commands
                go out as soon as a branch is restored, if the start is safe.
            keep_winner: The capsule from which the winner started stays.
            winner_key: Gets ``winner``.
            policy: Name of the policy node.
            timeout_s: For each call.

        Raises:
            InvalidArgumentError: There is no child, or not one seed a child.
        """
        Composite.__init__(self, name, children)
        if not children:
            raise InvalidArgumentError(f"{name}: expected at least one child, found none")
        if not isinstance(seeds, Key) and len(seeds) not in (0, len(children)):
            raise InvalidArgumentError(
                f"{name}: seeds: expected {len(children)}, one a child, found {len(seeds)}"
            )
        self.begin_script(policy, timeout_s, ("snapshot", "fork", "restore"))
        self.source, self.seeds, self.publish = source, seeds, publish
        self.keep_winner, self.winner_key = keep_winner, winner_key
        self.winner: int | None = None
        self._board.reads(source)
        self._board.reads(seeds)
        self._board.writes(winner_key)

    def script(self) -> Steps:
        """See the class."""
        assert self.link is not None
        self.winner, self.current_child = None, None
        origin = self.link.new_name("origin")
        branches = [f"{origin}.{index}" for index in range(len(self.children))]
        source = self._board.value("source", self.source) or origin
        seeds = self._board.values("seeds", self.seeds)
        self.keep(origin, *branches)
        # Branches of one fork share their storage, which does not give way; the origin is alone
        # where they are of another capsule.
        yield from self.ask("snapshot", name=origin, pin=True)
        yield from self.ask("fork", name=source, names=branches, seeds=seeds)
        failed = []
        for index, child in enumerate(self.children):
            self.current_child = None
            self.feedback_message = f"{child.name}: restoring its branch"
            try:
                yield from self.ask("restore", name=branches[index], publish=self.publish)
            except CallError as error:
                if error.lost:
                    raise
                failed.append(f"{child.name}: {error}")
                continue
            self.current_child = child
            self.feedback_message = f"branch {index + 1} of {len(branches)}: {child.name}"
            if (yield from self.run(child)) is Status.SUCCESS:
                self.winner = index
                self._board.write(self.winner_key, index)
                yield from self.drop(branches[index] if self.keep_winner else "")
                self.feedback_message = f"{child.name} succeeded"
                return Status.SUCCESS
            failed.append(words_of(child))
        words = "; ".join(failed)
        self.feedback_message = f"none succeeded, restoring the original: {words}"
        yield from self.ask("restore", name=origin, publish=self.publish)
        yield from self.drop()
        self.feedback_message = f"none succeeded, the original is restored: {words}"
        return Status.FAILURE
