"""Branching, trying again, choosing and waiting, against a policy node without ROS.

Pinned: from which state each child begins; what is live and which capsules are left in the end,
whatever ends the tree; that nothing stays under way after an interruption; and that what a user's
score does wrong is a FAILURE in words. The policy node without ROS keeps memory as the real one
does, so that a child that was not run from its branch would show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import py_trees
import pytest
from py_trees.common import Status
from tree_rig import Leaf, Plant, RefusalError

from flashrt_ros import trees
from flashrt_ros.errors import ErrorCode, InvalidArgumentError

pytestmark = pytest.mark.usefixtures("no_link_left")


def refuse(code: ErrorCode, times: int = 1) -> Callable[[Any], None]:
    left = [times]

    def handler(request: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise RefusalError(code, "as ordered")

    return handler


# TryBranches


def three(*outcomes: bool, **options: Any) -> tuple[Plant, list[Leaf]]:
    leaves = [Leaf(f"way {n}", [good]) for n, good in enumerate(outcomes)]
    return Plant(trees.TryBranches("try", leaves, **options)), leaves


def test_each_branch_begins_where_the_fork_was_and_the_first_success_stays() -> None:
    tree, leaves = three(False, True, True)
    tree.server.live = (5, "carrying")
    assert tree.run() is Status.SUCCESS
    # Each found the memory of the fork, not what the leaf before had made of it, and its own key.
    assert [leaf.found for leaf in leaves] == [[(6, "carrying")], [(7, "carrying")], []]
    assert tree.server.live == (7, "way 1")
    assert tree.server.capsules == {}
    assert tree.root.winner == 1
    assert tree.root.feedback_message == "way 1 succeeded"
    assert tree.pending == 0
    tree.close()


def test_without_a_success_the_original_is_back() -> None:
    tree, leaves = three(False, False, seeds=[40, 41])
    tree.server.live = (5, "carrying")
    assert tree.run() is Status.FAILURE
    assert [leaf.found for leaf in leaves] == [[(40, "carrying")], [(41, "carrying")]]
    assert tree.server.live == (5, "carrying")
    assert tree.server.capsules == {}
    words = "way 0: dropped it; way 1: dropped it"
    assert tree.root.feedback_message == f"none succeeded, the original is restored: {words}"
    assert tree.root.winner is None
    tree.close()


@pytest.mark.parametrize("publish", [False, True])
def test_branches_begin_on_hold_unless_told_otherwise(publish: bool) -> None:
    tree, _ = three(False, True, **({"publish": True} if publish else {}))
    assert tree.run() is Status.SUCCESS
    assert [r.publish for r in tree.server.requests("restore")] == [publish, publish]
    assert tree.server.held is not publish
    tree.close()


def test_options_of_branches() -> None:
    tree, _ = three(True, True, source="base", keep_winner=True, winner_key="won")
    tree.server.capsules["base"] = (9, "base")
    assert tree.run() is Status.SUCCESS
    assert py_trees.blackboard.Blackboard.get("/won") == 0
    assert tree.server.requests("fork")[0].name == "base"
    kept = set(tree.server.capsules) - {"base"}
    assert kept == {tree.server.requests("restore")[0].name}
    tree.close()


def test_a_branch_that_is_gone_counts_as_failed() -> None:
    tree, leaves = three(True, True)
    tree.server.refuse["restore"] = refuse(ErrorCode.NOT_FOUND)
    assert tree.run() is Status.SUCCESS
    assert [len(leaf.found) for leaf in leaves] == [0, 1]
    tree.close()


def test_a_refused_fork_is_a_failure_and_leaves_nothing() -> None:
    tree, leaves = three(True, True)
    tree.server.refuse["fork"] = refuse(ErrorCode.NO_MEMORY)
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "try: fork: NO_MEMORY: as ordered"
    tree.node.spin()
    assert tree.server.capsules == {}
    assert leaves[0].found == []
    tree.close()


def test_a_lost_call_ends_it_within_its_timeout() -> None:
    tree, _ = three(True, True, timeout_s=1.0)
    tree.server.silent.add("restore")
    begin_s = tree.node.now_s
    assert tree.run() is Status.FAILURE
    assert tree.node.now_s - begin_s < 1.2
    assert "no answer from /policy/restore within 1 s" in tree.root.feedback_message
    tree.node.spin()
    assert tree.server.capsules == {}
    assert tree.pending == 0
    tree.close()


@pytest.mark.parametrize("ticks", range(1, 9))
def test_interrupted_anywhere_it_leaves_nothing(ticks: int) -> None:
    tree, leaves = three(False, False)
    for _ in range(ticks):
        assert tree.tick() is Status.RUNNING
    tree.root.stop(Status.INVALID)
    assert all(leaf.status is Status.INVALID for leaf in leaves)
    tree.node.spin()
    assert tree.pending == 0
    assert tree.server.capsules == {}
    log = list(tree.server.verbs)
    for _ in range(3):
        tree.node.spin()
    assert tree.server.verbs == log, "something goes on"
    assert tree.run() is Status.FAILURE  # and it can begin anew
    assert tree.server.capsules == {}
    tree.close()


def test_branches_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expected at least one child"):
        trees.TryBranches("try", [])
    with pytest.raises(InvalidArgumentError, match="seeds: expected 2, one a child, found 1"):
        three(True, True, seeds=[1])


def test_seeds_from_the_blackboard_that_are_no_list() -> None:
    writer = py_trees.blackboard.Client(name="writer")
    writer.register_key("seeds", py_trees.common.Access.WRITE)
    writer.set("seeds", 5)
    tree, _ = three(True, seeds=trees.Key("seeds"))
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "try: seeds: expected a list, found 5"
    tree.close()


# RetryFromCapsule


def retry(outcomes: list[bool], **options: Any) -> tuple[Plant, Leaf]:
    leaf = Leaf("pick", outcomes)
    return Plant(trees.RetryFromCapsule("retry", leaf, **options)), leaf


def test_each_attempt_begins_from_the_capsule_with_another_key() -> None:
    tree, leaf = retry([False, False, True])
    tree.server.live = (5, "before")
    assert tree.run() is Status.SUCCESS
    assert [memory for _, memory in leaf.found] == ["before"] * 3
    keys = [key for key, _ in leaf.found]
    assert keys[0] == 5
    assert len(set(keys)) == 3
    assert tree.root.attempt == 3
    assert tree.server.capsules == {}
    assert [r.publish for r in tree.server.requests("restore")] == [False, False]
    tree.close()
    again, other = retry([False, False, True])
    again.server.live = (5, "before")
    assert again.run() is Status.SUCCESS
    assert [key for key, _ in other.found] != keys, "two episodes had the same noise"
    again.close()


def test_keys_may_be_given_or_kept() -> None:
    tree, leaf = retry([False], attempts=3, seed=100)
    assert tree.run() is Status.FAILURE
    assert [key for key, _ in leaf.found] == [0, 101, 102]
    tree.close()
    tree, leaf = retry([False], attempts=2, reseed=False, publish=True)
    assert tree.run() is Status.FAILURE
    assert [key for key, _ in leaf.found] == [0, 0]
    assert tree.server.requests("restore")[0].publish
    tree.close()


def test_after_the_last_attempt_it_says_why() -> None:
    tree, leaf = retry([False], attempts=2)
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "2 attempts failed, the last: pick: dropped it"
    assert len(leaf.found) == 2
    assert tree.server.verbs == ["snapshot", "restore", "drop_capsule"]
    tree.close()


def test_a_first_success_needs_no_restore() -> None:
    tree, _ = retry([True])
    assert tree.run() is Status.SUCCESS
    assert tree.server.verbs == ["snapshot", "drop_capsule"]
    tree.close()


@pytest.mark.parametrize("ticks", range(1, 7))
def test_interrupted_halfway_nothing_runs(ticks: int) -> None:
    tree, leaf = retry([False], attempts=3)
    for _ in range(ticks):
        assert tree.tick() is Status.RUNNING
    tree.root.stop(Status.INVALID)
    assert leaf.status is Status.INVALID
    tree.node.spin()
    assert tree.pending == 0
    assert tree.server.capsules == {}
    tree.close()


def test_a_child_that_raises_leaves_nothing_behind() -> None:
    tree, leaf = retry([True])
    leaf.outcomes = []
    with pytest.raises(ZeroDivisionError):
        tree.run()
    tree.node.spin()
    assert tree.root.status is Status.INVALID
    assert tree.server.capsules == {}
    tree.close()


def test_a_lost_restore_ends_the_retry() -> None:
    tree, leaf = retry([False], timeout_s=1.0)
    tree.server.silent.add("restore")
    assert tree.run() is Status.FAILURE
    assert "no answer from /policy/restore" in tree.root.feedback_message
    assert len(leaf.found) == 1
    tree.close()


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="attempts: expected at least 1, found 0"):
        retry([True], attempts=0)
    with pytest.raises(InvalidArgumentError, match="seed: expected 0 <= seed"):
        retry([True], seed=-1)


# ChooseByPreview


def choose(score: Callable[[Any], float], **options: Any) -> Plant:
    tree = Plant(trees.ChooseByPreview("choose", score, **options))
    tree.server.live = (5, "carrying")
    return tree


def test_the_best_branch_becomes_live() -> None:
    tree = choose(lambda chunk: -abs(trees.rows(chunk)[0, 0] - 8.0), choice_key="choice")
    assert tree.run() is Status.SUCCESS
    assert tree.root.scores == [-2.0, -1.0, 0.0, -1.0]
    assert tree.server.live == (8, "carrying")
    assert tree.server.held
    assert py_trees.blackboard.Blackboard.get("/choice") == 2
    assert tree.server.capsules == {}
    assert tree.root.feedback_message == "branch 3 of 4 (scores -2, -1, -0, -1)"
    tree.close()


def test_rows_have_the_shape_of_the_chunk() -> None:
    seen = []
    tree = choose(lambda chunk: seen.append(trees.rows(chunk)) or 0.0, count=1)  # type: ignore
    assert tree.run() is Status.SUCCESS
    assert seen[0].shape == (2, 1)
    assert seen[0].tolist() == [[6.0], [0.5]]
    tree.close()


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda chunk: math.nan, "score of branch 1: expected a number, found not a number"),
        (lambda chunk: chunk.absent, "found AttributeError: 'ActionChunk' object has no"),
        (lambda chunk: None, "score of branch 1: expected a number, found TypeError"),
        (lambda chunk: -math.inf, "none of 4 branches is acceptable"),
    ],
)
def test_a_bad_score_is_a_failure_and_changes_nothing(score: Any, words: str) -> None:
    tree = choose(score)
    assert tree.run() is Status.FAILURE
    assert words in tree.root.feedback_message
    assert tree.server.live == (5, "carrying")
    assert tree.root.choice is None
    tree.node.spin()
    assert tree.server.capsules == {}
    tree.close()


def test_a_preview_without_a_chunk_a_branch_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = choose(lambda chunk: 0.0)
    monkeypatch.setattr(tree.server, "_preview", lambda request, response: None)
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "choose: preview: expected 4 chunks, found 0"
    tree.close()


def test_a_node_too_busy_for_a_preview_is_asked_again() -> None:
    tree = choose(lambda chunk: 0.0)
    tree.server.refuse["preview"] = refuse(ErrorCode.BUSY, times=3)
    assert tree.run() is Status.SUCCESS
    tree.close()
    tree = choose(lambda chunk: 0.0, timeout_s=1.0)
    tree.server.refuse["preview"] = refuse(ErrorCode.BUSY, times=1000)
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "choose: preview: BUSY: as ordered"
    tree.close()


def test_counts_that_make_no_sense_are_refused() -> None:
    for count in (0, 65):
        with pytest.raises(InvalidArgumentError, match="count: expected 1 to 64"):
            choose(lambda chunk: 0.0, count=count)
