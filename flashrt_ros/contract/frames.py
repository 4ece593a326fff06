"""Frames: poses of one brought into another by what /tf and /tf_static say.

A lookup of our own rather than tf2's, since the same code must give the same numbers from a
recording, without rclpy, and say which messages they came from.
"""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.pose import between, compose, inverse
from flashrt_ros.contract.qos import Qos
from flashrt_ros.errors import ContractError

if TYPE_CHECKING:
    from flashrt_ros.contract.message import Message

Values = npt.NDArray[np.float64]

TF = "tf2_msgs/msg/TFMessage"
KEPT_NS = 10_000_000_000
"""Of each moving transform: as much as tf2 keeps. One that is older than the newest by more says
that the newest, or the clock, was wrong."""
MOST = 4096
"""Transforms of one frame that are kept, whatever their stamps say."""
LATE_NS = 200_000_000
"""By which the transform nearest to the pose may be off: they come in turn."""
DEEPEST = 64
"""Frames from one to the root; more is a ring."""
QOS = Qos("reliable", "volatile", 100)


@dataclass(frozen=True)
class FrameInput:
    """A topic of transforms.

    Attributes:
        topic: ``/tf`` or ``/tf_static``.
        type: Full type name.
        qos: As tf2 subscribes.
        path: For messages.
    """

    topic: str
    type: str = TF
    qos: Qos = QOS
    path: str = "transform"

    @property
    def static(self) -> bool:
        """Whether what it says holds at any time."""
        return self.topic == STATIC


MOVING, STATIC = "/tf", "/tf_static"
INPUTS = (FrameInput(MOVING), FrameInput(STATIC, qos=Qos("reliable", "transient_local", 100)))


class FrameReader:
    """Stands for a topic of transforms among the readers of a sampler."""

    def __init__(self, part: FrameInput) -> None:
        """Takes the topic."""
        self.part = part


@dataclass
class _Edge:
    """From a frame to its parent: poses of the frame in the parent, by stamp."""

    parent: str
    static: bool
    stamps_ns: list[int] = field(default_factory=list)
    poses: list[Values] = field(default_factory=list)
    sources: list[tuple[str, Message]] = field(default_factory=list)

    def add(self, stamp_ns: int, pose: Values, source: tuple[str, Message]) -> None:
        if self.static:
            self.stamps_ns, self.poses, self.sources = [stamp_ns], [pose], [source]
            return
        if self.stamps_ns and self.stamps_ns[-1] - stamp_ns > KEPT_NS:
            # Kept, a single stamp from the future would shut out all that come after it.
            self.stamps_ns, self.poses, self.sources = [], [], []
        place = bisect.bisect_right(self.stamps_ns, stamp_ns)
        self.stamps_ns.insert(place, stamp_ns)
        self.poses.insert(place, pose)
        self.sources.insert(place, source)
        oldest_ns = self.stamps_ns[-1] - KEPT_NS
        drop = bisect.bisect_left(self.stamps_ns, oldest_ns)
        drop = max(drop, len(self.stamps_ns) - MOST)
        if drop > 0:
            del self.stamps_ns[:drop], self.poses[:drop], self.sources[:drop]


class Frames:
    """The tree of frames; any thread may use it."""

    def __init__(self) -> None:
        """Begins without any."""
        self._edges: dict[str, _Edge] = {}
        self._refused: dict[str, str] = {}
        self._lock = threading.Lock()

    def take(self, message: Any, entry: Message, topic: FrameInput) -> None:
        """Takes a message in; a transform that is none is kept in words.

        Args:
            message: A TFMessage of rosbags or rclpy.
            entry: How it was received.
            topic: Where.
        """
        with self._lock:
            for transform in message.transforms:
                self._take(transform, (topic.topic, entry), topic.static)

    def _take(self, transform: Any, source: tuple[str, Message], static: bool) -> None:
        parent, child = bare(transform.header.frame_id), bare(transform.child_frame_id)
        moved, turned = transform.transform.translation, transform.transform.rotation
        pose = np.array(
            [moved.x, moved.y, moved.z, turned.x, turned.y, turned.z, turned.w], dtype=np.float64
        )
        length = float(np.linalg.norm(pose[3:]))
        if parent == child or not np.isfinite(pose).all() or not abs(length - 1.0) < 0.01:
            self._refused[child] = (
                f"expected a finite translation and a unit quaternion from another frame, found "
                f"{parent!r} to {child!r} with {pose.tolist()}"
            )
            if (known := self._edges.get(child)) is not None and known.static and static:
                del self._edges[child]  # what it said no longer holds
            return
        self._refused.pop(child, None)
        pose[3:] /= length
        stamp = transform.header.stamp
        edge = self._edges.get(child)
        if edge is None or edge.parent != parent or edge.static != static:
            edge = self._edges[child] = _Edge(parent, static)
        edge.add(int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec), pose, source)

    def clear(self) -> None:
        """Forgets what moves; what is static stays."""
        with self._lock:
            self._edges = {child: edge for child, edge in self._edges.items() if edge.static}

    def forget(self) -> None:
        """Forgets all."""
        with self._lock:
            self._edges.clear()
            self._refused.clear()

    def lookup(
        self, target: str, source: str, stamp_ns: int
    ) -> tuple[Values, list[tuple[str, Message]]]:
        """The pose of one frame in another.

        Args:
            target: Frame to go to.
            source: Frame to come from.
            stamp_ns: When, on the clock of the header stamps.

        Returns:
            Seven numbers, see ``pose.POSE``, and the messages behind them with their topics.

        Raises:
            ContractError: There is no way, or no transform near enough to the moment.
        """
        with self._lock:
            up, down = self._ancestors(bare(source)), self._ancestors(bare(target))
            common = next((frame for frame in up if frame in down), None)
            if common is None:
                known = ", ".join(
                    sorted({*self._edges, *(e.parent for e in self._edges.values())})
                )
                refused = "".join(f"; {self._refused[f]}" for f in up if f in self._refused)
                raise ContractError(
                    f"expected transforms from {source!r} to {target!r} on {MOVING} or {STATIC}, "
                    f"found none that lead there (frames known: {known or 'none'}){refused}"
                )
            used: list[tuple[str, Message]] = []
            legs = []
            for frames in (up, down):
                leg = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
                for frame in frames[: frames.index(common)]:
                    pose, sources = _at(self._edges[frame], frame, stamp_ns)
                    leg = compose(pose, leg)
                    used += sources
                legs.append(leg)
            return compose(inverse(legs[1]), legs[0]), used

    def _ancestors(self, frame: str) -> list[str]:
        found = [frame]
        while (edge := self._edges.get(found[-1])) is not None and len(found) < DEEPEST:
            found.append(edge.parent)
        return found


def _at(edge: _Edge, frame: str, stamp_ns: int) -> tuple[Values, list[tuple[str, Message]]]:
    """The pose of a frame in its parent at a moment, between the two stamps around it."""
    if edge.static:
        return edge.poses[0], edge.sources[:]
    words = f"transform from {frame!r} to {edge.parent!r}"
    if not stamp_ns:
        raise ContractError(f"{words}: it moves, and the pose has no header stamp to say when")
    late_ns, early_ns = stamp_ns - edge.stamps_ns[-1], edge.stamps_ns[0] - stamp_ns
    if late_ns > LATE_NS:
        raise ContractError(
            f"{words}: expected one at most {LATE_NS / 1e6:.0f} ms older than the pose, found the "
            f"newest {late_ns / 1e6:.0f} ms older"
        )
    if early_ns > 0:
        raise ContractError(
            f"{words}: expected one as old as the pose, found the oldest {early_ns / 1e6:.0f} ms "
            "newer"
        )
    after = bisect.bisect_left(edge.stamps_ns, stamp_ns)
    if late_ns >= 0 or edge.stamps_ns[after] == stamp_ns:
        place = min(after, len(edge.poses) - 1)
        return edge.poses[place], [edge.sources[place]]
    before = after - 1
    begin_ns, end_ns = edge.stamps_ns[before], edge.stamps_ns[after]
    if min(stamp_ns - begin_ns, end_ns - stamp_ns) > LATE_NS:
        raise ContractError(
            f"{words}: expected one at most {LATE_NS / 1e6:.0f} ms from the pose, found none "
            f"between {(stamp_ns - begin_ns) / 1e6:.0f} ms older and "
            f"{(end_ns - stamp_ns) / 1e6:.0f} ms newer"
        )
    share = (stamp_ns - begin_ns) / (end_ns - begin_ns)
    pose = between(edge.poses[before], edge.poses[after], share)
    return pose, edge.sources[before : after + 1]


def bare(frame: str) -> str:
    """As tf2 has it: a slash in front of tf's days means nothing."""
    return frame.lstrip("/")
