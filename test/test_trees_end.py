"""The end of a tree: what was interrupted has its capsules dropped before the clients are gone.

Pinned: that the last ``shutdown`` waits until the requests to drop them are answered, though no
one spins the node; that it does not wait for ever; and that it says which capsules may be left.
"""

from __future__ import annotations

from typing import Any

import pytest
from py_trees.common import Status
from tree_rig import FakeClient, Leaf, Plant

from flashrt_ros import trees
from flashrt_ros.trees.link import PolicyLink


def branches() -> Plant:
    return Plant(trees.TryBranches("try", [Leaf(f"way {n}", [False]) for n in range(2)]))


def end(tree: Plant) -> tuple[list[str], list[str]]:
    """Capsules that are left where the program ends with its tree, and what was said of them."""
    assert tree.server.capsules, "there is nothing to be dropped"
    tree.root.stop(Status.INVALID)
    tree.close()
    assert tree.pending == 0
    tree.node.mail.clear()  # who goes takes his requests along
    return list(tree.server.capsules), tree.node.warnings


@pytest.mark.parametrize("ticks", range(1, 7))
def test_the_end_waits_for_capsules_to_be_dropped(ticks: int) -> None:
    tree = branches()
    for _ in range(ticks):
        tree.tick()
    assert end(tree) == ([], [])


def test_the_control_which_does_not_wait_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyLink, "_part", lambda self: None)
    tree = branches()
    for _ in range(3):
        tree.tick()
    left, _ = end(tree)
    assert len(left) == 3  # the origin and two branches


def test_interrupted_as_it_drops_it_still_sees_to_it() -> None:
    tree = Plant(trees.TryBranches("try", [Leaf("way", [True])]))
    while not any(
        client.srv_name.endswith("drop_capsule") and client.sent for client in tree.node.clients
    ):
        tree.node.spin()
        tree.root.tick_once()
    assert end(tree) == ([], [])


def test_it_does_not_wait_for_ever_and_names_what_may_be_left() -> None:
    tree = Plant(trees.RetryFromCapsule("retry", Leaf("child", [True], ticks=9)))
    for _ in range(3):
        tree.tick()
    tree.server.silent.add("drop_capsule")
    (capsule,), (words,) = end(tree)
    assert words.endswith(f"nobody has answered the request to drop them: {capsule}")


def test_it_waits_until_the_service_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = branches()
    for _ in range(3):
        tree.tick()
    tree.node.there = False  # a new client does not know the server yet
    take = FakeClient.take_response

    def known_now(client: FakeClient, kind: Any) -> tuple[None, None]:
        tree.node.there = True
        return take(client, kind)

    monkeypatch.setattr(FakeClient, "take_response", known_now)
    assert end(tree) == ([], [])
