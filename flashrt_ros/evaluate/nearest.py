"""Which recorded topic somebody may have meant by another name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from flashrt_ros.bag.message import Topic

ALIKE = 0.6
"""Of two names: from here on one may be meant by the other."""


def nearest(name: str, topics: Sequence[Topic], kind: str = "") -> list[Topic]:
    """Topics with messages, those first that are of this type, and of them the most alike."""

    def apart(topic: Topic) -> tuple[bool, float]:
        return topic.type != kind, -_alike(name, topic.name)

    return sorted((topic for topic in topics if topic.count), key=apart)


def did_you_mean(name: str, topics: Sequence[Topic], kind: str = "") -> str:
    """A question for the end of a sentence; empty where nothing is near.

    Args:
        name: Of a topic of the contract.
        topics: Of the recording.
        kind: The type that the contract expects.
    """
    found = nearest(name, topics, kind)[:1]
    if not found or not (found[0].type == kind or _alike(name, found[0].name) >= ALIKE):
        return ""
    return f"; did you mean {found[0].name} (--remap {name}:={found[0].name})?"


def names_of(topics: Sequence[Topic], most: int = 20) -> str:
    """Their names, as far as somebody reads on."""
    names = [topic.name for topic in topics]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"


def _alike(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.strip("/"), other.strip("/")).ratio()
