"""Random trees of BehaviorTree.CPP, halted by a parent, refused and left unanswered at random.

As ``test_trees_random.py``, of py_trees: whatever happens, once a parent has halted its child no
call of it is awaited and no capsule is left. The control is a link that drops none of those of an
interrupted control node.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from btcpp_rig import Plant
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_rig import RefusalError

from flashrt_ros.errors import ErrorCode
from flashrt_ros.trees.btcpp import Tree
from flashrt_ros.trees.link import PolicyLink

bodies = st.recursive(
    st.just("<Try/>"),
    lambda inner: st.one_of(
        inner.map(lambda x: f'<RetryFromCapsule timeout_ms="500">{x}</RetryFromCapsule>'),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda xs: f'<TryBranches timeout_ms="500">{"".join(xs)}</TryBranches>'
        ),
        inner.map(lambda x: f'<Timeout msec="900">{x}</Timeout>'),
        inner.map(lambda x: f"<Sequence>{x}<Try/></Sequence>"),
    ),
    max_leaves=4,
)
EVENTS = ["tick", "tick", "tick", "halt", "restart", "silence", "refuse", "hear"]
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from(["snapshot", "restore", "fork"])),
    max_size=50,
)


def refuse(request: Any) -> None:
    raise RefusalError(ErrorCode.NO_MEMORY, "as ordered")


def play(plant: Plant, tree: Tree, halts: list[bool], event: str, verb: str) -> None:
    server = plant.server
    if event == "tick":
        plant.tick(tree)
    elif event == "halt":
        halts[0] = True
        assert tree.tick() == "SUCCESS"
        halts[0] = False
        plant.node.spin()
        assert server.capsules == {}
        assert server.pinned == set()
        assert tree.link.pending == 0
    elif event == "restart":
        server.restart()
    elif event == "silence":
        server.silent.add(verb)
    elif event == "refuse":
        server.refuse[verb] = refuse
    else:
        server.silent.discard(verb)
        server.refuse.pop(verb, None)


def play_all(body: str, outcomes: list[bool], played: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plant, halts = Plant(Path(folder)), [False]
        plant.outcomes = outcomes * 200
        plant.factory.leaf("Halt", lambda ports: halts[0])
        with plant.tree(f"<ReactiveFallback><Halt/>{body}</ReactiveFallback>") as tree:
            for event, verb in played:
                play(plant, tree, halts, event, verb)
            play(plant, tree, halts, "halt", "")
    assert plant.node.clients == []


@settings(max_examples=100, deadline=None)
@given(bodies, st.lists(st.booleans(), min_size=1, max_size=3), events)
def test_a_halted_child_leaves_nothing(
    body: str, outcomes: list[bool], played: list[tuple[str, str]]
) -> None:
    play_all(body, outcomes, played)


def test_the_check_finds_a_link_that_forgets_capsules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyLink, "farewell", lambda self, names: None)
    with pytest.raises(AssertionError, match="attempt"):
        play_all("<RetryFromCapsule><Try/></RetryFromCapsule>", [True], [("tick", "")] * 2)
