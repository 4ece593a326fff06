"""One tree of an example, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from py_trees.behaviour import Behaviour
from py_trees.composites import Sequence

from flashrt_ros.demo.trees.onlooker import Onlooker
from flashrt_ros.trees import EpisodeReset, Pause

Facts = dict[str, object]
"""JSON values."""

GOAL_M = (0.62, 0.12)
"""Where the block should go."""


@dataclass(frozen=True)
class Episode:
    """What an example plays once.

    Attributes:
        name: A few words.
        root: The tree.
        succeeds: Whether it should, and the block then stands at its goal; or neither.
        facts: Told at its end: what else is worth knowing.
        expected: Those of these facts that must be so.
    """

    name: str
    root: Behaviour
    succeeds: bool
    facts: Callable[[], Facts] = dict
    expected: Facts = field(default_factory=dict)


def begun(name: str, onlooker: Onlooker, seed: int, rest: list[Behaviour]) -> Behaviour:
    """An episode: a new cell, the cue is shown and hidden, and ``rest`` begins with a pause.

    The pause is while the cue is still there, so that the policy has seen everything it must
    remember and has begun nothing: the place for a snapshot.

    Args:
        name: Of the root.
        onlooker: Who shows the cue.
        seed: Noise key of the policy.
        rest: What follows.
    """
    begin = [
        EpisodeReset(homing=onlooker.set_up(), seed=seed),
        onlooker.cue(GOAL_M),
        Pause(),
        onlooker.hide_cue(GOAL_M),
    ]
    return Sequence(name, memory=True, children=[*begin, *rest])
