"""What comes in, by the contract file: from sections to dataclasses."""

from __future__ import annotations

import difflib
import re

from flashrt_ros.contract.definitions import require_type
from flashrt_ros.contract.framed import TRANSFORMABLE
from flashrt_ros.contract.image.entry import read_camera_info, read_image
from flashrt_ros.contract.image.schema import KEYS as IMAGE_KEYS
from flashrt_ros.contract.input_types import INPUT_TYPES, input_field, is_stamped
from flashrt_ros.contract.qos import COMMAND_KEYS, PROFILES
from flashrt_ros.contract.schema import KEYS, History, Observation, Part, Qos
from flashrt_ros.contract.section import Section
from flashrt_ros.contract.stop import QOS as STOP_QOS
from flashrt_ros.contract.stop import StopInput, read_stop
from flashrt_ros.contract.task import TaskInput, read_task
from flashrt_ros.errors import ContractError

TOPIC = re.compile(r"(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
COMMAND_QOS = Qos(reliability="reliable")


def read_qos(section: Section, default: Qos, period_s: float = 0.0) -> Qos:
    """The ``qos`` of a topic; ``period_s``: of commands, 0 for what comes in."""
    if not section.has("qos"):
        return default
    qos = section.section("qos", KEYS["qos"])
    if qos.has("profile"):
        default = PROFILES[qos.text("profile", choices=tuple(PROFILES))]
    for key in COMMAND_KEYS:
        if qos.has(key) and not period_s:
            qos.fail(key, "no such key for what comes in: max_age_ms watches it", qos.raw(key, ""))
    # A promise that the control rate breaks in every period helps nobody.
    least_ms = 2e3 * period_s
    lease = {"least": least_ms} if qos.has("lease_ms") or qos.has("liveliness") else {}
    return Qos(
        qos.text("reliability", default.reliability, ("best_effort", "reliable")),
        qos.text("durability", default.durability, ("volatile", "transient_local")),
        qos.integer("depth", default.depth, least=1, most=1000),
        qos.number("deadline_ms", least=least_ms, most=60e3) if qos.has("deadline_ms") else 0.0,
        qos.text("liveliness", default.liveliness, ("automatic", "manual_by_topic")),
        qos.number("lease_ms", most=60e3, **lease) if lease else 0.0,
    )


def read_topic(section: Section) -> str:
    """The ``topic`` of an entry."""
    topic = section.text("topic")
    if not TOPIC.fullmatch(topic):
        section.fail("topic", "a ROS topic name such as joint_states, ~/x or /arm/x", topic)
    return topic


def read_elements(section: Section, count: int) -> tuple[str, ...]:
    """The policy's own names for ``count`` elements; empty where it uses the robot's."""
    elements = section.names("elements", ())
    if elements and len(elements) != count:
        section.fail("elements", f"{count} names, one for each of `names`", list(elements))
    return elements


def _hint(type_name: str, field: str, error: ContractError) -> str:
    near = difflib.get_close_matches(field, list(INPUT_TYPES.get(type_name, ())), 1)
    return f"{error}; did you mean {near[0]!r}?" if near else str(error)


def read_part(section: Section, qos: Qos) -> Part:
    """One entry of ``parts``, or ``start.measured``; ``qos`` where it gives none.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    type_name = section.text("type", expected="a message type such as sensor_msgs/msg/Imu")
    try:
        require_type(type_name)
    except ContractError as error:
        section.fail("type", "a message type whose definition is known", type_name, str(error))
    field = section.text("field", expected="a field, or a path such as pose.pose.position")
    names_field = section.text("names_field", "")
    try:
        reading = input_field(type_name, field, names_field)
    except ContractError as error:
        section.fail("field", f"numbers of a {type_name}", field, _hint(type_name, field, error))
    names = section.names("names")
    positional = section.names("positional", ())
    frame_id = section.text("frame_id", "")
    if frame_id and not is_stamped(type_name):
        section.fail("frame_id", f"no such key for {type_name}, it has no header", frame_id)
    transform = section.flag("transform", False)
    if transform and (type_name, field) not in TRANSFORMABLE:
        ways = ", ".join(f"{field} of {kind}" for kind, field in TRANSFORMABLE)
        section.fail("transform", f"this key for {ways}", True)
    if transform and not frame_id:
        section.fail("frame_id", "the frame to transform to", frame_id)
    labels = reading.labels
    if reading.length and len(positional or names) != reading.length:
        section.fail(
            "positional" if positional else "names",
            f"{reading.length} names, one for each number in {field}"
            + ("" if positional else "; or all of them in `positional`"),
            list(positional or names),
        )
    if positional and labels:
        section.fail("positional", f"no such key for {type_name}, it has names", list(positional))
    for name in names:
        if (known := labels or positional) and name not in known:
            section.fail("names", f"names among {', '.join(known)}", name)
    return Part(
        topic=read_topic(section),
        type=type_name,
        field=field,
        names=names,
        elements=read_elements(section, len(names)),
        positional=positional,
        names_field=names_field,
        frame_id=frame_id,
        unit=section.text("unit", ""),
        qos=read_qos(section, qos),
        path=section.path,
        transform=transform,
    )


def _history(section: Section) -> History | None:
    if not section.has("history"):
        return None
    if section.has("present_flag"):
        section.fail("present_flag", "no such key beside `history`", "present_flag")
    history = section.section("history", KEYS["history"])
    return History(
        steps=history.integer("steps", least=2, most=1000),
        period_ms=history.number("period_ms", above=0.0, most=60_000.0),
        before=history.text("before", choices=("repeat", "wait")),
    )


def read_observation(section: Section) -> Observation:
    """One entry of ``observations``.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    qos = read_qos(section, Qos())
    optional = section.flag("optional", False)
    for key in ("fill", "present_flag"):
        if section.has(key) and not optional:
            section.fail(key, "this key only with `optional: true`", section.raw(key, ""))
    parts: tuple[Part, ...] = ()
    image = None
    if section.has("image"):
        for key in ("parts", "present_flag"):
            if section.has(key):
                section.fail(key, "no such key beside `image`", section.raw(key, ""))
        inner = section.section("image", IMAGE_KEYS["image"])
        info = None
        if inner.has("camera_info"):
            about = inner.section("camera_info", IMAGE_KEYS["camera_info"])
            info = read_camera_info(about, read_topic(about), read_qos(about, qos))
        image = read_image(inner, read_topic(inner), read_qos(inner, qos), info)
    else:
        parts = tuple(section.sections("parts", KEYS["part"], lambda part: read_part(part, qos)))
    return Observation(
        key=section.text("key"),
        parts=parts,
        image=image,
        max_age_ms=section.number("max_age_ms", above=0.0),
        optional=optional,
        fill=section.number("fill", 0.0, least=-3.0e38, most=3.0e38),
        present_flag=section.flag("present_flag", False),
        history=_history(section),
        path=section.path,
    )


def read_task_input(top: Section) -> TaskInput | None:
    """The top level's ``task``; None without one.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    if not top.has("task"):
        return None
    section = top.section("task", KEYS["task"])
    return read_task(section, read_topic(section), read_qos(section, COMMAND_QOS))


def read_stop_input(top: Section) -> StopInput | None:
    """The top level's ``stop``; None without one.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    if not top.has("stop"):
        return None
    section = top.section("stop", KEYS["stop"])
    return read_stop(section, read_topic(section), read_qos(section, STOP_QOS))
