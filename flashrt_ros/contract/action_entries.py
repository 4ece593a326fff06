"""The entries ``actions`` and ``start`` of the contract file, from sections to dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flashrt_ros.contract.entries import (
    COMMAND_QOS,
    read_elements,
    read_part,
    read_qos,
    read_topic,
)
from flashrt_ros.contract.messages import GRIPPER, OUTPUT_TYPES
from flashrt_ros.contract.pose import FORMS, MEASURED, POSE, POSITION, ROTATION, form_of
from flashrt_ros.contract.schema import KEYS, Observation, Output, Part, Qos, Start
from flashrt_ros.contract.section import Section, as_number


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


def _rotation(section: Section, field: str, names: tuple[str, ...]) -> str:
    """How a pose's rotation is written; empty for anything but a pose."""
    if field != "pose":
        if section.has("rotation"):
            section.fail("rotation", "this key for poses only", section.raw("rotation", ""))
        return ""
    rotation = section.text("rotation", choices=tuple(FORMS))
    if form_of(rotation, names) is None:
        forms = " or ".join(f"[x, y, z, {', '.join(form)}]" for form in FORMS[rotation])
        section.fail("names", f"for {rotation} the names {forms}, in any order", list(names))
    if not section.text("frame_id", ""):
        section.fail("frame_id", "the frame that the pose is in", section.raw("frame_id", "", ""))
    if section.has("max_step") and not isinstance(section.raw("max_step", ""), Mapping):
        section.fail(
            "max_step",
            f"a mapping by name ({', '.join(POSITION)} in metres, {ROTATION} in radians)",
            section.raw("max_step", ""),
        )
    return rotation


def _publishing(section: Section, field: str, period_s: float) -> tuple[float, str]:
    """Rate and kind of interpolation; 0 where commands leave in control steps only."""
    if not section.has("publish_rate_hz"):
        if section.has("interpolation"):
            found = section.raw("interpolation", "")
            section.fail("interpolation", "this key only with `publish_rate_hz`", found)
        return 0.0, "hold"
    place = field in ("position", "pose")
    kinds = ("linear", "hold") if field == "pose" else ("linear", "cubic", "hold")
    return (
        section.number("publish_rate_hz", above=1.0 / period_s, most=1000.0),
        section.text("interpolation", "linear" if place else "hold", kinds),
    )


def _horizon(section: Section, type_name: str, field: str) -> tuple[str, str]:
    """Whether whole chunks are sent, and with which stamp."""
    timed = OUTPUT_TYPES[type_name].timed
    for key in ("time_from_start_s", "horizon", "stamp"):
        if section.has(key) and not timed:
            section.fail(key, f"no such key for {type_name}", section.raw(key, ""))
    horizon = section.text("horizon", "step", ("step", "chunk"))
    if horizon == "step":
        if section.has("stamp"):
            found = section.raw("stamp", "")
            section.fail("stamp", "this key only with `horizon: chunk`", found)
        return horizon, "zero"
    if field != "position":
        hint = "of velocities and efforts a chunk would go on without the node"
        section.fail("horizon", "chunks of positions alone", horizon, hint)
    if section.has("publish_rate_hz"):
        found = section.raw("publish_rate_hz", "")
        section.fail("publish_rate_hz", "no such key beside `horizon: chunk`", found)
    if section.has("qos") and section.section("qos", KEYS["qos"]).has("deadline_ms"):
        hint = "messages come with chunks, not at a steady rate"
        section.fail("qos", "no deadline_ms beside `horizon: chunk`", section.raw("qos", ""), hint)
    return horizon, section.text("stamp", "zero", ("zero", "now"))


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
    if kind.count and len(names) != kind.count:
        section.fail("names", f"{kind.count} name for a {type_name}", list(names))
    rotation = _rotation(section, field, names)
    on_miss = section.text("on_miss", "stop", ("hold", "zeros", "stop"))
    if on_miss == "zeros" and field in ("position", "pose"):
        section.fail(
            "on_miss",
            f"hold or stop for {field}s",
            on_miss,
            "a zero would be a position to go to",
        )
    horizon, stamp = _horizon(section, type_name, field)
    if section.has("max_effort") and type_name != GRIPPER:
        section.fail("max_effort", f"no such key for {type_name}", "max_effort")
    if section.has("frame_id") and not kind.stamped:
        section.fail("frame_id", f"no such key for {type_name}, it has no header", "frame_id")
    publish_rate_hz, interpolation = _publishing(section, field, period_s)
    next_s = 1.0 / publish_rate_hz if publish_rate_hz else period_s
    output = Output(
        topic=read_topic(section),
        type=type_name,
        field=field,
        names=names,
        index=section.indices("index", range(len(names)), len(names)),
        elements=read_elements(section, len(names)),
        unit=section.text("unit", ""),
        on_limit=section.text("on_limit", "clamp", ("clamp", "refuse")),
        on_miss=on_miss,
        rotation=rotation,
        frame_id=section.text("frame_id", ""),
        max_effort=section.number("max_effort", 0.0, least=0.0),
        time_from_start_s=section.number("time_from_start_s", next_s, above=0.0, most=3600.0),
        horizon=horizon,
        stamp=stamp,
        period_s=period_s,
        publish_rate_hz=publish_rate_hz,
        interpolation=interpolation,
        qos=read_qos(section, COMMAND_QOS, period_s),
        path=section.path,
    )
    return dataclasses.replace(
        output,
        limits=_limits(section, output.limit_names),
        max_step=_positive_by_name(section, "max_step", output.step_names),
    )


def _measured_pose(section: Section, measured: Part, places: list[Output]) -> Output | None:
    """The output whose pose ``measured`` is; None where it is one of single positions."""
    poses = [output for output in places if output.is_pose]
    if not poses:
        return None
    if section.has("index"):
        given = section.indices("index", ())
        poses = [output for output in poses if set(given) & set(output.index)]
        if not poses:
            return None
        if set(given) != set(poses[0].index):
            found = list(given)
            section.fail("index", f"all elements of one pose, {list(poses[0].index)}", found)
    if tuple(MEASURED.get(name, "") for name in measured.names) != POSE:
        section.fail(
            "measured.names",
            f"the pose that {poses[0].path} commands: [{', '.join(POSE)}], or their paths "
            "position.x to orientation.w, in this order",
            list(measured.names),
            "`index` says which other elements are checked instead",
        )
    if measured.frame_id != poses[0].frame_id:
        section.fail(
            "measured.frame_id",
            f"{poses[0].frame_id!r}, the frame of the command: nothing is transformed",
            measured.frame_id,
        )
    return poses[0]


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
    positions = [output for output in actions if output.is_place]
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
    measured = read_part(ours, same[0].qos if same else Qos())
    by_index = {i: output for output in actions for i in output.index}
    pose = _measured_pose(section, measured, positions)
    checked = (*POSITION, ROTATION) if pose is not None else measured.names
    distances = _positive_by_name(section, "max_distance", checked)
    if missing := [name for name in checked if name not in distances]:
        section.fail("max_distance", f"a distance for {', '.join(missing)}", distances)
    count = len(measured.names)
    index = section.indices("index", range(count), count) if pose is None else pose.index
    for i, name in zip(index, measured.names, strict=pose is None):
        if pose is not None:
            break
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
    if pose is not None:
        measured = dataclasses.replace(measured, unit="")  # metres and radians
    ages = [o.max_age_ms for o in observations if measured.topic in o.topics]
    return Start(
        measured=measured,
        index=index,
        max_distance=distances,
        pose=pose,
        ramp_s=section.number("ramp_s", 0.0, least=0.0, most=60.0),
        max_age_ms=section.number("max_age_ms", min(ages, default=100.0), above=0.0),
    )
