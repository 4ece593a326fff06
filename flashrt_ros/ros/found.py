"""The policy nodes of a graph: for clients that look for one, and for words if it is not there."""

from __future__ import annotations

from typing import Any

from rclpy.node import NodeNameNonExistentError

MARK = "flashrt_ros/srv/Snapshot"
"""Type of a service that policy nodes alone have."""


def policy_nodes(node: Any) -> list[str]:
    """Full names of the policy nodes that a node sees.

    By what each node offers: the list of all services has those, too, that somebody only calls.
    """
    found: set[str] = set()
    for name, space in node.get_node_names_and_namespaces():
        try:
            services = node.get_service_names_and_types_by_node(name, space)
        except NodeNameNonExistentError:
            continue  # it has just ended
        found.update(full.rpartition("/")[0] for full, types in services if MARK in types)
    return sorted(found)


def policy_nodes_in_words(node: Any) -> str:
    """The same, for the end of a sentence."""
    found = policy_nodes(node)
    return f"policy nodes here: {', '.join(found)}" if found else "no policy node is here"
