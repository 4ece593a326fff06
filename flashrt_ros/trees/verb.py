"""Behaviours that make, take and look at execution states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from flashrt_ros.trees.key import Key
from flashrt_ros.trees.service import TIMEOUT_S, ServiceBehaviour


class Snapshot(ServiceBehaviour):
    """Freezes the live state at the next boundary and names it."""

    verb = "snapshot"

    def __init__(
        self,
        name: str = "",
        *,
        capsule: str | Key = "",
        tier: str | Key = "",
        pin: bool | Key = False,
        replace: bool | Key = False,
        capsule_key: str = "",
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            capsule: Its name; empty: the node makes one.
            tier: ``device`` (or empty), ``host`` or ``disk``.
            pin: Neither evicted nor dropped without force.
            replace: A capsule of this name is replaced.
            capsule_key: Gets the capsule's name.
            response_key: Gets the whole response.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"name": capsule, "tier": tier, "pin": pin, "replace": replace},
            {capsule_key: lambda response: response.capsule.name},
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )


class Restore(ServiceBehaviour):
    """A capsule becomes the live state. The robot is not moved back."""

    verb = "restore"

    def __init__(
        self,
        name: str = "",
        *,
        capsule: str | Key,
        publish: bool | Key = False,
        allow_inexact: bool | Key = False,
        seed: int | Key | None = None,
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            capsule: Its name or id.
            publish: False: hold until ``Resume``. True: commands go out at once if the start is
                safe; if it is not, that shows in ~/status only.
            allow_inexact: Accept a capsule of another exec id.
            seed: New noise key; None: that of the capsule goes on.
            response_key: Gets the whole response.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {
                "name": capsule,
                "publish": publish,
                "allow_inexact": allow_inexact,
                "set_seed": seed is not None,
                "seed": 0 if seed is None else seed,
            },
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )


class Fork(ServiceBehaviour):
    """Makes branches of a capsule or of the live state, each with a noise key of its own."""

    verb = "fork"
    argument_of: Mapping[str, str] = MappingProxyType({"name": "source", "names": "branches"})

    def __init__(
        self,
        name: str = "",
        *,
        source: str | Key = "",
        count: int | Key = 0,
        seeds: Sequence[int] | Key = (),
        branches: Sequence[str] | Key = (),
        branches_key: str = "",
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            source: Name or id of a capsule; empty: the live state.
            count: 0: as many as seeds, or one.
            seeds: Noise keys, one a branch; empty: derived from the source.
            branches: Names, one a branch; empty: the node makes them.
            branches_key: Gets the list of the branches' names.
            response_key: Gets the whole response.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"name": source, "count": count, "seeds": seeds, "names": branches},
            {branches_key: lambda response: [branch.name for branch in response.branches]},
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )


class Rollback(ServiceBehaviour):
    """Returns to an earlier boundary of the live state's own past."""

    verb = "rollback"

    def __init__(
        self,
        name: str = "",
        *,
        steps: int | Key = 0,
        publish: bool | Key = False,
        seed: int | Key | None = None,
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            steps: Control steps back; 0: to the parent capsule.
            publish: As of ``Restore``.
            seed: As of ``Restore``.
            response_key: Gets the whole response.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {
                "steps": steps,
                "publish": publish,
                "set_seed": seed is not None,
                "seed": 0 if seed is None else seed,
            },
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )


class Preview(ServiceBehaviour):
    """What branches would do on the current observation; nothing is commanded."""

    verb = "preview"
    argument_of: Mapping[str, str] = MappingProxyType({"names": "branches"})

    def __init__(
        self,
        name: str = "",
        *,
        branches: Sequence[str] | Key = (),
        chunks_key: str = "",
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            branches: Names or ids of capsules; empty: the live state.
            chunks_key: Gets the list of ``ActionChunk``, one a branch.
            response_key: Gets the whole response.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"names": branches},
            {chunks_key: lambda response: list(response.chunks)},
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )


class ResetEpisode(ServiceBehaviour):
    """Begins a new episode: policy state, queue, inputs, noise and counters together."""

    verb = "reset_episode"

    def __init__(
        self,
        name: str = "",
        *,
        task: str | Key | None = None,
        seed: int | Key | None = None,
        hold: bool | Key = False,
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            task: Task text; None: it stays.
            seed: Noise key; None: the next one of the node's sequence.
            hold: True: hold until ``Resume``; False: go on with observations newer than the reset.
            response_key: Gets the whole response.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {
                "set_task": task is not None,
                "task": "" if task is None else task,
                "set_seed": seed is not None,
                "seed": 0 if seed is None else seed,
                "hold": hold,
            },
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )
