"""The contract's vocabulary: frozen dataclasses, and the keys of each mapping in the file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from flashrt_ros.contract.frames import FrameInput
from flashrt_ros.contract.image.schema import CameraInfo, ImagePart
from flashrt_ros.contract.pose import POSITION, ROTATION
from flashrt_ros.contract.qos import KEYS as QOS_KEYS
from flashrt_ros.contract.qos import Qos
from flashrt_ros.contract.stop import KEYS as STOP_KEYS
from flashrt_ros.contract.task import KEYS as TASK_KEYS
from flashrt_ros.contract.task import TaskInput

__all__ = [
    "KEYS",
    "History",
    "ImagePart",
    "Input",
    "Observation",
    "Output",
    "Part",
    "Qos",
    "Source",
    "Start",
]

KEYS: Mapping[str, tuple[str, ...]] = {
    "contract": (
        "version",
        "robot",
        "message_definitions",
        "control_rate_hz",
        "on_time_jump",
        "observations",
        "actions",
        "unused_actions",
        "start",
        "stop",
        "task",
    ),
    "stop": STOP_KEYS,
    "task": TASK_KEYS,
    "observation": (
        "key",
        "max_age_ms",
        "optional",
        "fill",
        "present_flag",
        "qos",
        "parts",
        "image",
        "history",
    ),
    "history": ("steps", "period_ms", "before"),
    "part": (
        "topic",
        "type",
        "field",
        "names",
        "elements",
        "positional",
        "names_field",
        "frame_id",
        "transform",
        "unit",
        "qos",
    ),
    "action": (
        "topic",
        "type",
        "field",
        "names",
        "elements",
        "index",
        "unit",
        "limits",
        "max_step",
        "on_limit",
        "on_miss",
        "rotation",
        "frame_id",
        "max_effort",
        "time_from_start_s",
        "horizon",
        "stamp",
        "publish_rate_hz",
        "interpolation",
        "qos",
    ),
    "start": ("measured", "index", "max_distance", "ramp_s", "max_age_ms"),
    "qos": QOS_KEYS,
}
"""Every key that a contract file may hold, by the kind of mapping it stands in."""


@dataclass(frozen=True)
class Part:
    """Some elements of an observation, all from one field of one topic.

    Attributes:
        topic: As the contract writes it; the node resolves it.
        type: Full type name such as ``sensor_msgs/msg/JointState``.
        field: Field of the message, see ``input_types``.
        names: Names in the message, in the order of the policy's elements.
        elements: The policy's own names for them; empty where it uses the same.
        positional: Names by position for messages that carry none; empty: such are refused.
        names_field: Path of the texts that name the elements of ``field``; empty: as the type
            has it.
        frame_id: That the header must have; empty: any.
        transform: What comes in another frame is brought into this one.
        unit: Unit of all of them; empty where none is given.
        qos: Of the subscription.
        path: Key path in the file, for messages.
    """

    topic: str
    type: str
    field: str
    names: tuple[str, ...]
    elements: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    names_field: str = ""
    frame_id: str = ""
    unit: str = ""
    qos: Qos = dataclasses.field(default_factory=Qos)
    path: str = ""
    transform: bool = False

    def __hash__(self) -> int:
        """Of what tells parts apart; that of all fields would be worked out for each message."""
        return hash((self.path, self.topic, self.field))


Source = Part | ImagePart
"""What an observation is read from: one topic each."""
Input = Part | ImagePart | CameraInfo | TaskInput | FrameInput
"""Whatever is subscribed to."""


@dataclass(frozen=True)
class History:
    """Several moments of one observation.

    Attributes:
        steps: Moments, the newest message included.
        period_ms: Between them, by header stamps.
        before: While there are not enough messages: ``repeat`` the oldest, or ``wait``.
    """

    steps: int
    period_ms: float
    before: str

    @property
    def span_ms(self) -> float:
        """From the oldest moment to the newest."""
        return (self.steps - 1) * self.period_ms


@dataclass(frozen=True)
class Observation:
    """One policy port, filled from one or several topics.

    Attributes:
        key: Policy port.
        parts: Concatenated in this order; empty for an image.
        max_age_ms: Steady clock, from reception to the control step.
        optional: Without a fresh message ``fill`` stands in for every element.
        fill: See ``optional``.
        present_flag: One more element at the end: 1.0 where fresh, else 0.0.
        image: A camera image, in place of ``parts``.
        history: Several moments, oldest first, in a leading dimension; None: the newest alone.
        path: Key path in the file, for messages.
    """

    key: str
    parts: tuple[Part, ...]
    max_age_ms: float
    optional: bool = False
    fill: float = 0.0
    present_flag: bool = False
    image: ImagePart | None = None
    history: History | None = None
    path: str = ""

    @property
    def sources(self) -> tuple[Source, ...]:
        """All that it is read from: the image, or the parts."""
        return self.parts if self.image is None else (self.image,)

    @property
    def size(self) -> int:
        """Elements, presence flag included."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(C, H, W)`` of an image, or ``(elements,)``, behind the steps of a history."""
        steps = () if self.history is None else (self.history.steps,)
        return (*steps, *self.moment_shape)

    @property
    def moment_shape(self) -> tuple[int, ...]:
        """Of one moment."""
        if self.image is not None:
            return self.image.shape
        return (sum(len(part.names) for part in self.parts) + self.present_flag,)

    @property
    def topics(self) -> tuple[str, ...]:
        """Different topics of the sources, in order."""
        return tuple(dict.fromkeys(source.topic for source in self.sources))


@dataclass(frozen=True)
class Output:
    """Some elements of the action, all in one command topic.

    Attributes:
        topic: As the contract writes it.
        type: Full type name such as ``trajectory_msgs/msg/JointTrajectory``.
        field: ``position``, ``velocity``, ``effort``, ``twist`` or ``pose``.
        names: Names in the message, one for each index.
        index: Elements of the action vector.
        elements: The policy's own names for them; empty where it uses the same.
        unit: Unit of all of them; empty where none is given.
        limits: Lowest and highest value by name, both allowed.
        max_step: Largest change from one command to the next, by name.
        on_limit: ``clamp`` or ``refuse``.
        on_miss: ``hold``, ``zeros`` or ``stop``.
        rotation: How the policy writes the rotation of a pose, see ``pose.FORMS``.
        frame_id: Of the message's header.
        max_effort: Of a GripperCommand.
        time_from_start_s: Of a JointTrajectory's first point.
        horizon: ``step``: one point in each control step; ``chunk``: all rows of a chunk at once.
        stamp: Of the message with a chunk: ``zero`` or ``now``.
        period_s: Of the control loop: between the points of a chunk.
        publish_rate_hz: At which it is published between control steps; 0: in control steps only.
        interpolation: ``linear``, ``cubic`` or ``hold``.
        qos: Of the publisher.
        path: Key path in the file, for messages.
    """

    topic: str
    type: str
    field: str
    names: tuple[str, ...]
    index: tuple[int, ...]
    elements: tuple[str, ...] = ()
    unit: str = ""
    limits: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict, hash=False)
    max_step: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    on_limit: str = "clamp"
    on_miss: str = "stop"
    rotation: str = ""
    frame_id: str = ""
    max_effort: float = 0.0
    time_from_start_s: float = 0.0
    horizon: str = "step"
    stamp: str = "zero"
    period_s: float = 0.0
    publish_rate_hz: float = 0.0
    interpolation: str = "hold"
    qos: Qos = dataclasses.field(default_factory=lambda: Qos(reliability="reliable"))
    path: str = ""

    @property
    def is_pose(self) -> bool:
        """Whether its values are the seven numbers of ``pose.POSE`` rather than the elements."""
        return self.field == "pose"

    @property
    def is_place(self) -> bool:
        """Whether its values are where to be: a zero would be a command to go somewhere."""
        return self.field in ("position", "pose")

    @property
    def is_chunk(self) -> bool:
        """Whether whole chunks are sent, and nothing while one is followed."""
        return self.horizon == "chunk"

    @property
    def limit_names(self) -> tuple[str, ...]:
        """What ``limits`` may name."""
        return POSITION if self.is_pose else self.names

    @property
    def step_names(self) -> tuple[str, ...]:
        """What ``max_step`` may name."""
        return (*POSITION, ROTATION) if self.is_pose else self.names


@dataclass(frozen=True)
class Start:
    """The check of a first command against the measured position.

    Attributes:
        measured: Where the positions are read; ``measured.names[i]`` is what action element
            ``index[i]`` moves.
        index: Elements of the action vector.
        max_distance: Largest allowed distance, by measured name, in ``measured.unit``.
        pose: The output whose pose is measured, in place of single positions; None: none.
        ramp_s: Time over which a first command farther away is approached; 0: it is refused.
        max_age_ms: Oldest measurement that counts, steady clock.
    """

    measured: Part
    index: tuple[int, ...]
    max_distance: Mapping[str, float] = dataclasses.field(hash=False)
    pose: Output | None = None
    ramp_s: float = 0.0
    max_age_ms: float = 100.0
