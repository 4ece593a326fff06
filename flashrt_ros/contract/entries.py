"""Each kind of mapping of the contract file, from its section to its dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any

from flashrt_ros.contract.definitions import require_type
from flashrt_ros.contract.image.entry import read_camera_info, read_image
from flashrt_ros.contract.image.schema import KEYS as IMAGE_KEYS
from flashrt_ros.contract.input_types import INPUT_TYPES, input_field, is_stamped
from flashrt_ros.contract.messages import OUTPUT_TYPES
from flashrt_ros.contract.schema import KEYS, History, Observation, Output, Part, Qos, Start
from flashrt_ros.contract.section import Section, as_number
from flashrt_ros.contract.stop import QOS as STOP_QOS
from flashrt_ros.contract.stop import StopInput, read_stop
from flashrt_ros.contract.task import TaskInput, read_task
from flashrt_ros.errors import ContractError

TOPIC = re.compile(r"(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
COMMAND_QOS = Qos(reliability="reliable")


def _qos(section: Section, default: Qos) -> Qos:
    if not section.has("qos"):
        return default
    qos = section.section("qos", KEYS["qos"])
    return Qos(
        qos.text("reliability", default.reliability, ("best_effort", "reliable")),
        qos.text("durability", default.durability, ("volatile", "transient_local")),
        qos.integer("depth", default.depth, least=1, most=1000),
    )


def _topic(section: Section) -> str:
    topic = section.text("topic")
    if not TOPIC.fullmatch(topic):
        section.fail("topic", "a ROS topic name such as joint_states, ~/x or /arm/x", topic)
    return topic


def _elements(section: Section, count: int) -> tuple[str, ...]:
    elements = section.names("elements", ())
    if elements and len(elements) != count:
        section.fail("elements", f"{count} names, one for each of `names`", list(elements))
    return elements


def _hint(type_name: str, field: str, error: ContractError) -> str:
    near = difflib.get_close_matches(field, list(INPUT_TYPES.get(type_name, ())), 1)
    return f"{error}; did you mean {near[0]!r}?" if near else str(error)


def _part(section: Section, qos: Qos) -> Part:
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
        topic=_topic(section),
        type=type_name,
        field=field,
        names=names,
        elements=_elements(section, len(names)),
        positional=positional,
        names_field=names_field,
        frame_id=frame_id,
        unit=section.text("unit", ""),
        qos=_qos(section, qos),
        path=section.path,
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
    qos = _qos(section, Qos())
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
            info = read_camera_info(about, _topic(about), _qos(about, qos))
        image = read_image(inner, _topic(inner), _qos(inner, qos), info)
    else:
        parts = tuple(_part(part, qos) for part in section.sections("parts", KEYS["part"]))
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
    return read_task(section, _topic(section), _qos(section, COMMAND_QOS))


def read_stop_input(top: Section) -> StopInput | None:
    """The top level's ``stop``; None without one.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    if not top.has("stop"):
        return None
    section = top.section("stop", KEYS["stop"])
    return read_stop(section, _topic(section), _qos(section, STOP_QOS))


def _positive_by_name(section: Section, key: str, names: tuple[str, ...]) -> dict[str, float]:
    """One positive number for all names, or a mapping by name."""
    if isinstance(section.raw(key, "", None), Mapping):
        values = section.by_name(key, names)
    elif section.has(key):
        values = dict.fromkeys(names, section.raw(key, ""))
    else:
        values = {}
    found: dict[str, float] = {}
    for name, value in values.items():
        number = as_number(value)
        if number is None or number <= 0.0:
            section.fail(key, f"a finite number above 0 for {name}", value)
        found[name] = number
    return found


def _limits(section: Section, names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    limits: dict[str, tuple[float, float]] = {}
    for name, pair in section.by_name("limits", names).items():
        numbers = [as_number(value) for value in pair] if isinstance(pair, list) else []
        if len(numbers) != 2 or None in numbers:
            section.fail(f"limits.{name}", "[lowest, highest], two finite numbers", pair)
        low, high = numbers
        assert low is not None
        assert high is not None
        if low > high:
            section.fail(f"limits.{name}", "the lowest value first", pair)
        limits[name] = (low, high)
    return limits


def read_output(section: Section, period_s: float) -> Output:
    """One entry of ``actions``; ``period_s`` is the default of ``time_from_start_s``.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    type_name = section.text("type", choices=tuple(OUTPUT_TYPES))
    kind = OUTPUT_TYPES[type_name]
    field = section.text("field", choices=kind.fields)
    names = section.names("names")
    for name in names:
        if kind.labels and name not in kind.labels:
            section.fail("names", f"names among {', '.join(kind.labels)}", name)
    on_miss = section.text("on_miss", "stop", ("hold", "zeros", "stop"))
    if on_miss == "zeros" and field == "position":
        section.fail(
            "on_miss", "hold or stop for positions", on_miss, "a zero would be a position to go to"
        )
    if section.has("time_from_start_s") and not kind.timed:
        section.fail("time_from_start_s", f"no such key for {type_name}", "time_from_start_s")
    if section.has("frame_id") and not kind.stamped:
        section.fail("frame_id", f"no such key for {type_name}, it has no header", "frame_id")
    return Output(
        topic=_topic(section),
        type=type_name,
        field=field,
        names=names,
        index=section.indices("index", range(len(names)), len(names)),
        elements=_elements(section, len(names)),
        unit=section.text("unit", ""),
        limits=_limits(section, names),
        max_step=_positive_by_name(section, "max_step", names),
        on_limit=section.text("on_limit", "clamp", ("clamp", "refuse")),
        on_miss=on_miss,
        frame_id=section.text("frame_id", ""),
        time_from_start_s=section.number("time_from_start_s", period_s, above=0.0, most=3600.0),
        qos=_qos(section, COMMAND_QOS),
        path=section.path,
    )


def read_start(
    top: Section, observations: tuple[Observation, ...], actions: tuple[Output, ...]
) -> Start | None:
    """The top level's ``start``; None where it says ``unchecked`` or no position is commanded.

    Raises:
        ContractError: A key is missing, unknown or wrong, or does not fit the actions.
    """
    value: Any = top.raw("start", "", None)
    if value == "unchecked":
        return None
    positions = [output for output in actions if output.field == "position"]
    if value is None and not positions:
        return None
    if value is None:
        top.fail(
            "start",
            f"the check of the first command, since {positions[0].path} commands positions",
            None,
            "`start: unchecked` does without one",
        )
    section = top.section("start", KEYS["start"])
    ours = section.section("measured", KEYS["part"])
    same = [p for o in observations for p in o.parts if p.topic == ours.text("topic")]
    measured = _part(ours, same[0].qos if same else Qos())
    distances = _positive_by_name(section, "max_distance", measured.names)
    if missing := [name for name in measured.names if name not in distances]:
        section.fail("max_distance", f"a distance for {', '.join(missing)}", distances)
    count = len(measured.names)
    index = section.indices("index", range(count), count)
    by_index = {i: output for output in actions for i in output.index}
    for i, name in zip(index, measured.names, strict=True):
        if i not in by_index or by_index[i].field != "position":
            found = by_index[i].field if i in by_index else "no output at all"
            section.fail("index", f"for {name} an action element that is a position", found)
        if measured.unit and by_index[i].unit != measured.unit:
            section.fail(
                "measured.unit", f"unit {by_index[i].unit!r} of the command", measured.unit
            )
    if not section.has("index"):
        for output in positions:
            for i, name in zip(output.index, output.names, strict=True):
                if i not in index:
                    section.fail(
                        "measured.names",
                        f"a name for each commanded position, also {name} (action element {i})",
                        list(measured.names),
                        "or say with `index` which elements are checked",
                    )
    # For messages; without a unit of its own the measured part has the command's.
    measured = dataclasses.replace(measured, unit=measured.unit or by_index[index[0]].unit)
    ages = [o.max_age_ms for o in observations if measured.topic in o.topics]
    return Start(
        measured=measured,
        index=index,
        max_distance=distances,
        ramp_s=section.number("ramp_s", 0.0, least=0.0, most=60.0),
        max_age_ms=section.number("max_age_ms", min(ages, default=100.0), above=0.0),
    )
