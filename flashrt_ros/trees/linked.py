"""What all behaviours of a policy have in common: the link, from ``setup`` to ``shutdown``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from py_trees.behaviour import Behaviour
from py_trees.common import Status

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.trees.call import VerbTimes
from flashrt_ros.trees.link import PolicyLink


class Linked(Behaviour):
    """A behaviour that has the link of its policy between ``setup`` and ``shutdown``.

    Attributes:
        policy: Name of the policy node.
        services: Those that it calls.
        kind: Type of its service; None: one of the policy node's.
        link: See ``PolicyLink``; None before ``setup`` and after ``shutdown``.
        times: Of the link, by service; stays after ``shutdown``, until the next ``setup``.
    """

    policy = "policy"
    services: tuple[str, ...] = ()
    kind: Any = None
    link: PolicyLink | None = None
    times: Mapping[str, VerbTimes] = MappingProxyType({})

    def setup(self, **kwargs: Any) -> None:
        """Makes clients, or shares those that are there; called once, before the first tick.

        Args:
            **kwargs: ``node``, the ROS node, as trees of py_trees_ros hand it out.

        Raises:
            InvalidArgumentError: There is no ``node``.
        """
        node = kwargs.get("node")
        if node is None:
            raise InvalidArgumentError(
                f"setup of {self.name!r}: expected node=NODE, a ROS node, found "
                f"{sorted(kwargs) or 'nothing'}; call py_trees.trees.setup(root, node=NODE), or "
                "setup(node=NODE) of the tree"
            )
        self.shutdown()
        self.link = PolicyLink.shared(node, self.policy)
        self.times = self.link.times
        for service in self.services:
            self.link.use(service, self.kind)

    def shutdown(self) -> None:
        """Releases the clients; called once, after the last tick. What runs is interrupted."""
        if self.status is Status.RUNNING:
            self.stop(Status.INVALID)
        link, self.link = self.link, None
        if link is not None:
            link.release()

    def not_set_up(self) -> str:
        """Words for a tick before ``setup``."""
        return (
            f"{self.name}: not set up: call py_trees.trees.setup(root, node=NODE) before the first"
            " tick"
        )
