"""Random trees, halted, refused and left without answers at random, against a node without ROS.

Whatever happens, once a tree is halted nothing of it may run or be awaited, no capsule of its may
be left, and a tick may not raise. A composite that says that the original is restored must have
restored it. The control is a link that drops no capsules of an interrupted composite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import py_trees
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from tree_rig import Leaf, Plant, RefusalError

from flashrt_ros import trees
from flashrt_ros.errors import ErrorCode
from flashrt_ros.trees.link import PolicyLink, _links

START = (5, "carrying")
outcomes = st.lists(st.booleans(), min_size=1, max_size=3)
composites: st.SearchStrategy[Callable[[Behaviour], Behaviour]] = st.one_of(
    st.builds(
        lambda attempts: (
            lambda child: trees.RetryFromCapsule("retry", child, attempts=attempts, timeout_s=1.0)
        ),
        st.integers(1, 3),
    ),
    st.builds(
        lambda others: (
            lambda child: trees.TryBranches(
                "try", [*(Leaf(f"way {n}", o) for n, o in enumerate(others)), child], timeout_s=1.0
            )
        ),
        st.lists(outcomes, max_size=2),
    ),
    st.just(
        lambda child: py_trees.composites.Sequence(
            "choose and do",
            memory=True,
            children=[trees.ChooseByPreview("choose", lambda chunk: 0.0, timeout_s=1.0), child],
        )
    ),
)
events = st.lists(
    st.one_of(
        st.just(("tick", "")),
        st.just(("tick", "")),
        st.just(("halt", "")),
        st.just(("restart", "")),
        st.tuples(
            st.sampled_from(["silence", "lose", "refuse", "hear"]),
            st.sampled_from(["snapshot", "restore", "fork", "preview"]),
        ),
    ),
    max_size=60,
)


def plant(kinds: list[Callable[[Behaviour], Behaviour]], last: list[bool]) -> Plant:
    root: Behaviour = Leaf("last", last)
    for kind in kinds:
        root = kind(root)
    tree = Plant(root)
    tree.server.live = START
    return tree


def play(tree: Plant, event: str, verb: str) -> None:
    server = tree.server
    if event == "tick":
        tree.tick(0.1)
    elif event == "halt":
        tree.root.stop(Status.INVALID)
        assert_nothing_left(tree)
    elif event == "restart":
        server.restart()
    elif event == "silence":
        server.silent.add(verb)
    elif event == "lose":
        server.lossy.add(verb)
    elif event == "refuse":
        server.refuse[verb] = refuse
    else:
        server.silent.discard(verb)
        server.lossy.discard(verb)
        server.refuse.pop(verb, None)


def refuse(request: Any) -> None:
    raise RefusalError(ErrorCode.NO_MEMORY, "as ordered")


def assert_nothing_left(tree: Plant) -> None:
    tree.node.spin()
    assert all(node.status is not Status.RUNNING for node in tree.root.iterate())
    assert tree.pending == 0
    assert tree.server.capsules == {}
    assert tree.server.pinned == set()


@pytest.fixture(autouse=True)
def _nothing_shared() -> Iterator[None]:
    yield
    _links.clear()


@settings(max_examples=300)
@given(st.lists(composites, min_size=1, max_size=2), outcomes, events)
def test_a_halted_tree_leaves_nothing(
    kinds: list[Callable[[Behaviour], Behaviour]], last: list[bool], played: list[tuple[str, str]]
) -> None:
    tree = plant(kinds, last)
    for event, verb in played:
        play(tree, event, verb)
    tree.root.stop(Status.INVALID)
    assert_nothing_left(tree)
    tree.close()
    assert tree.node.clients == []
    assert tree.node.subscriptions == []


@given(st.lists(outcomes, min_size=1, max_size=4))
def test_branches_end_where_they_say(ways: list[list[bool]]) -> None:
    leaves = [Leaf(f"way {n}", found) for n, found in enumerate(ways)]
    tree = Plant(trees.TryBranches("try", leaves))
    tree.server.live = START
    status = tree.run()
    first = next((n for n, found in enumerate(ways) if found[0]), None)
    assert tree.root.winner == first
    assert all(leaf.found[0][1] == "carrying" for leaf in leaves if leaf.found)
    if first is None:
        assert status is Status.FAILURE
        assert tree.server.live == START
    else:
        assert status is Status.SUCCESS
        assert tree.server.live == (START[0] + 1 + first, f"way {first}")
    assert_nothing_left(tree)
    tree.close()


def test_the_check_finds_a_link_that_forgets_capsules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyLink, "farewell", lambda self, names: None)
    tree = plant([lambda child: trees.RetryFromCapsule("retry", child)], [True])
    tree.tick()
    with pytest.raises(AssertionError, match="attempt"):
        play(tree, "halt", "")
    tree.close()
