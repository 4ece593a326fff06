"""The same behaviour again, from the state in which it began."""

from __future__ import annotations

from py_trees.behaviour import Behaviour
from py_trees.common import Status
from py_trees.decorators import Decorator

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.trees.script import Script, Steps, seed_from, words_of
from flashrt_ros.trees.service import TIMEOUT_S


class RetryFromCapsule(Script, Decorator):
    """Snapshots, runs the child, and on its FAILURE restores, reseeds and runs it again.

    SUCCESS with the child's; FAILURE when it has failed ``attempts`` times, or if a call fails.
    The capsule is pinned, and dropped in the end. Interrupted, it leaves nothing running and
    restores nothing.

    The world is as the failed attempt left it: a child had better begin by bringing the robot
    back.

    Attributes:
        attempt: The one under way, from 1; 0 before the first.
    """

    def __init__(
        self,
        name: str,
        child: Behaviour,
        *,
        attempts: int = 3,
        publish: bool = False,
        reseed: bool = True,
        seed: int | None = None,
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares it; nothing is asked before the first tick.

        Args:
            name: In the tree.
            child: What is tried.
            attempts: How often, the first one included.
            publish: False: a further attempt begins on hold, and ``Resume`` is up to the child.
                True: commands go out as soon as the capsule is restored, if the start is safe.
            reseed: Each further attempt has a noise key of its own. False: the one of the capsule,
                so that only the world makes a difference.
            seed: The second attempt has ``seed + 1`` and so on; None: keys derived from the
                capsule's id, so that no two episodes have the same.
            policy: Name of the policy node.
            timeout_s: For each call.

        Raises:
            InvalidArgumentError: ``attempts`` is below one, ``seed`` out of range, or the child in
                another tree.
        """
        if attempts < 1:
            raise InvalidArgumentError(f"{name}: attempts: expected at least 1, found {attempts}")
        if seed is not None and not 0 <= seed < 2**64 - attempts:
            raise InvalidArgumentError(f"{name}: seed: expected 0 <= seed < 2**64, found {seed}")
        if child.parent is not None:
            raise InvalidArgumentError(
                f"{name}: expected a child without a parent, found {child.name!r} of "
                f"{child.parent.name!r}: each place in a tree needs a behaviour of its own"
            )
        Decorator.__init__(self, name, child)
        self.begin_script(policy, timeout_s, ("snapshot", "restore"))
        self.attempts, self.publish = attempts, publish
        self.reseed, self.seed = reseed, seed
        self.attempt = 0

    def script(self) -> Steps:
        """See the class."""
        assert self.link is not None
        self.attempt = 0
        capsule = self.link.new_name("attempt")
        self.keep(capsule)
        # What it comes back to must not give way to what the child makes.
        taken = yield from self.ask("snapshot", name=capsule, pin=True)
        while True:
            self.attempt += 1
            self.feedback_message = f"attempt {self.attempt} of {self.attempts}"
            if (yield from self.run(self.decorated)) is Status.SUCCESS:
                yield from self.drop()
                return Status.SUCCESS
            if self.attempt == self.attempts:
                break
            self.feedback_message += f" failed, restoring: {words_of(self.decorated)}"
            seed = self._next_seed(taken.capsule.id)
            yield from self.ask(
                "restore", name=capsule, publish=self.publish, set_seed=self.reseed, seed=seed
            )
        yield from self.drop()
        self.feedback_message = f"{self.attempts} attempts failed, the last: "
        self.feedback_message += words_of(self.decorated)
        return Status.FAILURE

    def _next_seed(self, capsule_id: str) -> int:
        if self.seed is not None:
            return self.seed + self.attempt
        return seed_from(f"{capsule_id} {self.attempt}")
