"""Behaviours that look after capsules."""

from __future__ import annotations

from flashrt_ros.trees.key import Key
from flashrt_ros.trees.service import TIMEOUT_S, ServiceBehaviour


class ListCapsules(ServiceBehaviour):
    """All capsules, oldest first."""

    verb = "list_capsules"

    def __init__(
        self,
        name: str = "",
        *,
        include_automatic: bool | Key = False,
        capsules_key: str = "",
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            include_automatic: The boundaries of the rollback ring, too.
            capsules_key: Gets the list of ``CapsuleInfo``.
            response_key: Gets the whole response.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"include_automatic": include_automatic},
            {capsules_key: lambda response: list(response.capsules)},
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )


class GetCapsule(ServiceBehaviour):
    """What one capsule is; FAILURE with NOT_FOUND tells that it is gone."""

    verb = "get_capsule"

    def __init__(
        self,
        name: str = "",
        *,
        capsule: str | Key,
        info_key: str = "",
        response_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            capsule: Its name or id.
            info_key: Gets its ``CapsuleInfo``.
            response_key: Gets the whole response, with lineage and metadata.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"name": capsule},
            {info_key: lambda response: response.capsule},
            policy=policy,
            timeout_s=timeout_s,
            response_key=response_key,
        )


class DropCapsule(ServiceBehaviour):
    """Frees a capsule."""

    verb = "drop_capsule"

    def __init__(
        self,
        name: str = "",
        *,
        capsule: str | Key,
        force: bool | Key = False,
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            capsule: Its name or id.
            force: Even if it is pinned.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name, {"name": capsule, "force": force}, policy=policy, timeout_s=timeout_s
        )


class SaveCapsule(ServiceBehaviour):
    """Writes a capsule to a file; SUCCESS when it is on the disk."""

    verb = "save_capsule"

    def __init__(
        self,
        name: str = "",
        *,
        capsule: str | Key,
        file: str | Key = "",
        replace: bool | Key = False,
        path_key: str = "",
        policy: str = "policy",
        timeout_s: float = 10 * TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            capsule: Its name or id.
            file: File name without folders; empty: ``<name>.capsule``.
            replace: A file of this name is replaced.
            path_key: Gets the path.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"name": capsule, "file": file, "replace": replace},
            {path_key: lambda response: response.path},
            policy=policy,
            timeout_s=timeout_s,
        )


class LoadCapsule(ServiceBehaviour):
    """Reads a capsule file; nothing moves until it is restored."""

    verb = "load_capsule"

    def __init__(
        self,
        name: str = "",
        *,
        file: str | Key,
        capsule: str | Key = "",
        allow_inexact: bool | Key = False,
        capsule_key: str = "",
        policy: str = "policy",
        timeout_s: float = 10 * TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            file: File name without folders.
            capsule: Its name from now on; empty: the one in the file.
            allow_inexact: Accept a capsule of another exec id.
            capsule_key: Gets the capsule's name.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"file": file, "name": capsule, "allow_inexact": allow_inexact},
            {capsule_key: lambda response: response.capsule.name},
            policy=policy,
            timeout_s=timeout_s,
        )


class MoveCapsule(ServiceBehaviour):
    """Moves a capsule between device, host memory and disk."""

    verb = "move_capsule"

    def __init__(
        self,
        name: str = "",
        *,
        capsule: str | Key,
        tier: str | Key,
        path_key: str = "",
        policy: str = "policy",
        timeout_s: float = 10 * TIMEOUT_S,
    ) -> None:
        """Prepares the call.

        Args:
            name: In the tree.
            capsule: Its name or id.
            tier: ``device``, ``host`` or ``disk``.
            path_key: Gets the path of the file that has its bytes; empty where there is none.
            policy: Name of the policy node.
            timeout_s: See ``ServiceBehaviour``.
        """
        super().__init__(
            name,
            {"name": capsule, "tier": tier},
            {path_key: lambda response: response.path},
            policy=policy,
            timeout_s=timeout_s,
        )
