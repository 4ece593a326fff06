"""What happens around a tree while it runs, against a policy node without ROS.

Pinned: a full store takes no capsule that a composite comes back to; a node that restarts, a tree
that is torn down or set up anew, refusals of every kind and behaviours used in two places end in
words, and leave neither requests nor capsules behind. ``test_btcpp_adverse.py`` does the same with
BehaviorTree.CPP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import py_trees
import pytest
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from tree_rig import FakeNode, Leaf, Plant, RefusalError

from flashrt_ros import trees
from flashrt_ros.errors import ErrorCode, InvalidArgumentError

CODES = [code for code in ErrorCode if code is not ErrorCode.NONE]

pytestmark = pytest.mark.usefixtures("no_link_left")


COMPOSITES: dict[str, Callable[..., Behaviour]] = {
    "retry": lambda *leaves: trees.RetryFromCapsule("retry", leaves[0]),
    "try": lambda *leaves: trees.TryBranches("try", leaves),
}


class Hoarder(Leaf):
    """A leaf that names more capsules than there is room for; fails."""

    def initialise(self) -> None:
        super().initialise()
        for number in range(9):
            self.node.server._make(f"{self.name}-{len(self.found)}-{number}", (0, ""))


def test_a_full_store_takes_no_capsule_that_is_needed() -> None:
    tree = Plant(trees.RetryFromCapsule("retry", Hoarder("hoard", [False, True])))
    tree.server.live, tree.server.room = (5, "before"), 4
    assert tree.run() is Status.SUCCESS, tree.root.feedback_message
    assert [memory for _, memory in tree.root.decorated.found] == ["before"] * 2
    tree.node.spin()
    assert tree.server.pinned == set()
    assert not [name for name in tree.server.capsules if name.startswith("attempt")]
    tree.close()


def test_the_original_of_branches_stays_in_a_full_store() -> None:
    tree = Plant(trees.TryBranches("try", [Hoarder("hoard", [False])], source="base"))
    tree.server.live, tree.server.room = (5, "before"), 4
    tree.server.capsules["base"] = (1, "base")
    assert tree.run() is Status.FAILURE
    assert tree.server.live == (5, "before")
    assert tree.server.pinned == set()
    tree.close()


@pytest.mark.parametrize("kind", COMPOSITES)
def test_a_store_of_pinned_capsules_is_a_failure(kind: str) -> None:
    tree = Plant(COMPOSITES[kind](Leaf("a", [True]), Leaf("b", [True])))
    tree.server.room = 0
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == f"{kind}: snapshot: NO_MEMORY: all are pinned"
    assert [leaf.found for leaf in tree.root.children] == [[]] * len(tree.root.children)
    tree.close()


@pytest.mark.parametrize("kind", COMPOSITES)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("verb", ["snapshot", "restore"])
def test_every_refusal_has_its_end(kind: str, code: ErrorCode, verb: str) -> None:
    tree = Plant(COMPOSITES[kind](Leaf("a", [False, True]), Leaf("b", [False])))
    tree.server.live = (5, "before")

    def refuse(request: Any) -> None:
        raise RefusalError(code, "as ordered")

    tree.server.refuse[verb] = refuse
    assert tree.run() is Status.FAILURE
    assert f"{verb}: {code.name}: as ordered" in tree.root.feedback_message
    tree.node.spin()
    assert tree.server.capsules == {}
    assert tree.pending == 0
    tree.close()


@pytest.mark.parametrize("code", [ErrorCode.TIMEOUT, ErrorCode.BUSY])
def test_what_may_yet_be_done_is_asked_again_with_the_same_id(code: ErrorCode) -> None:
    tree = Plant(trees.Snapshot(capsule="c"))

    def refuse(request: Any) -> None:
        raise RefusalError(code, "not done yet")

    tree.server.refuse["snapshot"] = refuse
    assert tree.run() is Status.FAILURE
    tree.server.refuse.clear()
    assert tree.run() is Status.SUCCESS
    (client,) = tree.node.clients
    assert len({request.request_id for request in client.sent}) == 1
    tree.close()


def test_another_refusal_is_followed_by_a_new_call() -> None:
    tree = Plant(trees.Restore(capsule="c"))
    assert tree.run() is Status.FAILURE
    assert tree.run() is Status.FAILURE
    (client,) = tree.node.clients
    assert len({request.request_id for request in client.sent}) == 2
    tree.close()


def test_a_restore_that_timed_out_in_the_node_ends_branches_at_once() -> None:
    """As one that is not answered: nobody knows which state is live."""
    tree = Plant(COMPOSITES["try"](Leaf("a", [True]), Leaf("b", [True])))

    def refuse(request: Any) -> None:
        raise RefusalError(ErrorCode.TIMEOUT, "the control thread is late")

    tree.server.refuse["restore"] = refuse
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "try: restore: TIMEOUT: the control thread is late"
    tree.close()


@pytest.mark.parametrize("kind", COMPOSITES)
@pytest.mark.parametrize("ticks", range(1, 12))
def test_a_node_that_restarts_in_the_middle(kind: str, ticks: int) -> None:
    tree = Plant(COMPOSITES[kind](Leaf("a", [False]), Leaf("b", [False])))
    for _ in range(ticks):
        if tree.tick() is not Status.RUNNING:
            break
    tree.server.restart()
    if tree.root.status is Status.RUNNING:
        assert tree.run() is Status.FAILURE
        assert tree.root.feedback_message
    assert tree.pending == 0
    assert tree.server.capsules == {}
    tree.server.live = (5, "anew")
    for leaf in tree.root.children:
        leaf.found.clear()
    assert tree.run() is Status.FAILURE  # and it works with the new one
    assert {memory for leaf in tree.root.children for _, memory in leaf.found} == {"anew"}
    tree.close()


@pytest.mark.parametrize("kind", COMPOSITES)
@pytest.mark.parametrize("ticks", range(1, 8))
def test_torn_down_in_the_middle(kind: str, ticks: int) -> None:
    tree = Plant(COMPOSITES[kind](Leaf("a", [False]), Leaf("b", [False])))
    for _ in range(ticks):
        assert tree.tick() is Status.RUNNING
    tree.close()
    assert tree.node.clients == []
    tree.node.spin()
    assert tree.server.capsules == {}, "what was pinned stays for ever"
    assert tree.tick() is Status.FAILURE
    assert "not set up" in tree.root.feedback_message


@pytest.mark.parametrize("kind", COMPOSITES)
def test_ctrl_c_leaves_no_pinned_capsule(kind: str) -> None:
    """Rclpy ends the context first, and then lets the program end its tree."""
    tree = Plant(COMPOSITES[kind](Leaf("a", [False]), Leaf("b", [False])))
    for _ in range(3):
        assert tree.tick() is Status.RUNNING
    assert tree.server.pinned != set()
    tree.node.ended = True
    tree.close()
    tree.node.spin()
    assert tree.server.capsules == {}


def test_nothing_else_is_sent_once_the_context_has_ended() -> None:
    tree = Plant(trees.Resume())
    tree.node.ended = True
    assert tree.tick() is Status.FAILURE
    assert "could not be sent: RuntimeError: the context is invalid" in tree.root.feedback_message
    assert tree.server.log == []
    tree.close()


def test_a_call_torn_down_is_forgotten() -> None:
    tree = Plant(trees.Snapshot())
    assert tree.tick() is Status.RUNNING
    tree.close()
    assert tree.tick() is Status.FAILURE
    assert "not set up" in tree.root.feedback_message


@pytest.mark.parametrize("kind", COMPOSITES)
def test_set_up_anew_while_it_runs(kind: str) -> None:
    tree = Plant(COMPOSITES[kind](Leaf("a", [True]), Leaf("b", [True])))
    for _ in range(3):
        assert tree.tick() is Status.RUNNING
    other = FakeNode()
    py_trees.trees.setup(tree.root, node=other)
    assert tree.node.clients == []
    tree.node.spin()
    assert tree.server.capsules == {}
    tree.node, tree.server = other, other.server
    assert tree.run() is Status.SUCCESS
    tree.close()


def test_a_behaviour_has_one_place() -> None:
    leaf = Leaf("pick", [True])
    trees.RetryFromCapsule("first", leaf)
    with pytest.raises(InvalidArgumentError, match="child without a parent, found 'pick' of 'fir"):
        trees.RetryFromCapsule("second", leaf)
    with pytest.raises(RuntimeError, match="already has parent"):
        trees.TryBranches("third", [leaf])


def test_two_trees_on_one_node_keep_their_capsules_apart() -> None:
    node = FakeNode()
    both = [
        Plant(COMPOSITES["retry"](Leaf("a", [False, True]), Leaf("b", [])), node) for _ in "ab"
    ]
    node.server.live = (5, "before")
    while any(tree.root.status is not Status.SUCCESS for tree in both):
        for tree in both:
            if tree.root.status is not Status.SUCCESS:
                tree.root.tick_once()
        node.spin()
        node.now_s += 0.02
    assert len({request.name for request in node.server.requests("snapshot")}) == 2
    both[0].close()
    assert len(node.clients) == 3
    both[1].close()
    assert node.clients == []
    assert node.server.capsules == {}


@pytest.mark.parametrize("value", [3.5, None, [1], {"a": 1}, object()])
def test_a_source_of_a_wrong_type(value: Any) -> None:
    py_trees.blackboard.Blackboard.storage["/base"] = value
    tree = Plant(trees.TryBranches("try", [Leaf("a", [True])], source=trees.Key("base")))
    done = tree.run()
    assert (done is Status.SUCCESS) is (value is None)  # as none: the live state
    tree.node.spin()
    assert tree.server.capsules == {}
    tree.close()


def test_a_policy_without_chunks() -> None:
    tree = Plant(trees.ChooseByPreview("choose", lambda chunk: 0.0))

    def refuse(request: Any) -> None:
        raise RefusalError(ErrorCode.UNSUPPORTED, "this policy has no chunks")

    tree.server.refuse["preview"] = refuse
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "choose: preview: UNSUPPORTED: this policy has no chunks"
    tree.node.spin()
    assert tree.server.capsules == {}
    tree.close()
