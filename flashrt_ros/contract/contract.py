"""The contract file: from YAML to a checked, typed ``Contract``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.contract.check import check_ports
from flashrt_ros.contract.conversions import INPUT_TYPES
from flashrt_ros.contract.messages import OUTPUT_TYPES
from flashrt_ros.contract.reader import Section, as_number, parse
from flashrt_ros.contract.schema import KEYS, Observation, Output, Part, Qos, Start
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.policy import Ports

VERSION = 1
"""Format that this package writes and the only one so far; an older one would be converted."""

TOPIC = re.compile(r"(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
COMMAND_QOS = Qos(reliability="reliable")


@dataclass(frozen=True)
class Contract:
    """What one robot offers and takes, for one policy.

    Attributes:
        robot: Name of the robot, for reports.
        control_rate_hz: Control steps a second.
        observations: One for each policy port that is fed.
        actions: One for each command topic.
        unused_actions: Elements of the action vector that go nowhere, on purpose.
        start: Check of a first command; None where the file says ``unchecked``.
        on_time_jump: ``hold`` or ``reset``.
        source: File name, for messages.
    """

    robot: str
    control_rate_hz: float
    observations: tuple[Observation, ...]
    actions: tuple[Output, ...]
    unused_actions: tuple[int, ...] = ()
    start: Start | None = None
    on_time_jump: str = "hold"
    source: str = "contract"

    @property
    def period_s(self) -> float:
        """Length of a control step."""
        return 1.0 / self.control_rate_hz

    @classmethod
    def load(cls, path: str | Path) -> Contract:
        """Reads a contract file.

        Raises:
            ContractError: Not readable, no YAML, or a key is missing, unknown or wrong.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ContractError(f"{path}: expected a readable contract file: {error}") from error
        return cls.from_dict(parse(text, str(path)), str(path))

    @classmethod
    def from_dict(cls, value: object, source: str = "contract") -> Contract:
        """Reads what YAML has parsed.

        Raises:
            ContractError: A key is missing, unknown or wrong; names source, key path, expected
                and found.
        """
        top = Section(value, "", source, KEYS["contract"])
        top.integer("version", least=VERSION, most=VERSION)
        rate_hz = top.number("control_rate_hz", above=0.0, most=1000.0)
        observations = tuple(
            _observation(section) for section in top.sections("observations", KEYS["observation"])
        )
        actions = tuple(
            _output(section, 1.0 / rate_hz) for section in top.sections("actions", KEYS["action"])
        )
        unused = top.raw("unused_actions", "", [])
        contract = cls(
            robot=top.text("robot"),
            control_rate_hz=rate_hz,
            observations=observations,
            actions=actions,
            unused_actions=top.indices("unused_actions", len(unused))
            if isinstance(unused, list)
            else top.fail("unused_actions", "a list of element numbers", unused),
            start=_start(top, observations, actions),
            on_time_jump=top.text("on_time_jump", "hold", ("hold", "reset")),
            source=source,
        )
        _check_topics(contract, top)
        return contract

    def check(self, ports: Ports) -> None:
        """Compares the contract with a policy's ports.

        Raises:
            ContractError: Lists everything that does not fit.
        """
        check_ports(self, ports)

    def parts(self) -> tuple[Part, ...]:
        """Every part read, the measured one of ``start`` last."""
        parts = tuple(part for observation in self.observations for part in observation.parts)
        return (*parts, self.start.measured) if self.start else parts

    def topics(self) -> list[tuple[str, str, Qos]]:
        """Every input once: topic, type and QoS of its subscription."""
        found: dict[str, tuple[str, str, Qos]] = {}
        for part in self.parts():
            found.setdefault(part.topic, (part.topic, part.type, part.qos))
        return list(found.values())


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


def _part(section: Section, qos: Qos) -> Part:
    type_name = section.text("type", choices=tuple(INPUT_TYPES))
    fields = INPUT_TYPES[type_name].fields
    field = section.text("field", choices=tuple(fields))
    names = section.names("names")
    positional = section.names("positional", ())
    labels = fields[field].labels
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
        unit=section.text("unit", ""),
        qos=_qos(section, qos),
        path=section.path,
    )


def _observation(section: Section) -> Observation:
    qos = _qos(section, Qos())
    optional = section.flag("optional", False)
    for key in ("fill", "present_flag"):
        if section.has(key) and not optional:
            section.fail(key, "this key only with `optional: true`", section.raw(key, ""))
    return Observation(
        key=section.text("key"),
        parts=tuple(_part(part, qos) for part in section.sections("parts", KEYS["part"])),
        max_age_ms=section.number("max_age_ms", above=0.0),
        optional=optional,
        fill=section.number("fill", 0.0, least=-3.0e38, most=3.0e38),
        present_flag=section.flag("present_flag", False),
        path=section.path,
    )


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


def _output(section: Section, period_s: float) -> Output:
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
        index=section.indices("index", len(names)),
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


def _start(
    top: Section, observations: tuple[Observation, ...], actions: tuple[Output, ...]
) -> Start | None:
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
    measured = _part(section.section("measured", KEYS["part"]), Qos())
    distances = _positive_by_name(section, "max_distance", measured.names)
    if missing := [name for name in measured.names if name not in distances]:
        section.fail("max_distance", f"a distance for {', '.join(missing)}", distances)
    index = section.indices("index", len(measured.names))
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
    ages = [o.max_age_ms for o in observations if measured.topic in o.topics]
    return Start(
        measured=measured,
        index=index,
        max_distance=distances,
        ramp_s=section.number("ramp_s", 0.0, least=0.0, most=60.0),
        max_age_ms=section.number("max_age_ms", min(ages, default=100.0), above=0.0),
    )


def _check_topics(contract: Contract, top: Section) -> None:
    """Refuses what two entries say differently of one topic or one port."""
    seen: dict[str, Part] = {}
    for part in contract.parts():
        first = seen.setdefault(part.topic, part)
        if first.type != part.type:
            raise ContractError(
                f"{contract.source}: {part.path}.type: expected {first.type} as {first.path} has "
                f"it for topic {part.topic!r}, found {part.type}"
            )
        if first.qos != part.qos and part is not (contract.start and contract.start.measured):
            raise ContractError(
                f"{contract.source}: {part.path}.qos: expected the same as {first.path} has for "
                f"topic {part.topic!r} ({first.qos}), found {part.qos}"
            )
    for path, values in (
        ("observations", [observation.key for observation in contract.observations]),
        ("actions", [output.topic for output in contract.actions]),
    ):
        for position, value in enumerate(values):
            if value in values[:position]:
                key = "key" if path == "observations" else "topic"
                top.fail(f"{path}[{position}].{key}", "each one once", value)
