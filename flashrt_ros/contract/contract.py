"""The contract file: from YAML to a checked, typed ``Contract``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flashrt_ros.contract.action_entries import read_output, read_start
from flashrt_ros.contract.check import cautions, check_ports
from flashrt_ros.contract.definitions import add_definitions
from flashrt_ros.contract.entries import (
    read_observation,
    read_stop_input,
    read_task_input,
)
from flashrt_ros.contract.frames import INPUTS as FRAME_INPUTS
from flashrt_ros.contract.loops import refuse_loops
from flashrt_ros.contract.schema import KEYS, Input, Observation, Output, Part, Qos, Start
from flashrt_ros.contract.section import Faults, Section, lines_of, parse
from flashrt_ros.contract.stop import StopInput
from flashrt_ros.contract.task import TaskInput
from flashrt_ros.errors import ContractError, reason_of
from flashrt_ros.runtime.buffers import BufferSpec
from flashrt_ros.runtime.policy import Ports

VERSION = 1
"""Format that this package writes and the only one so far; an older one would be converted."""


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
        task: Where the task text comes from; None: from parameter and services alone.
        stop: A topic that ends motion; None: services alone.
        source: File name, for messages.
        document: What YAML had parsed, as JSON with sorted keys: to compare contracts by.
        lines: Line of each key path in the file; empty where it was not read from one.
    """

    robot: str
    control_rate_hz: float
    observations: tuple[Observation, ...]
    actions: tuple[Output, ...]
    unused_actions: tuple[int, ...] = ()
    start: Start | None = None
    on_time_jump: str = "hold"
    task: TaskInput | None = None
    stop: StopInput | None = None
    source: str = "contract"
    document: str = field(default="", compare=False, repr=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

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
            raise ContractError(
                f"{path}: expected a readable contract file: {reason_of(error)}"
            ) from error
        return cls.from_dict(parse(text, str(path)), str(path))

    @classmethod
    def from_dict(cls, value: object, source: str = "contract") -> Contract:
        """Reads what YAML has parsed.

        Raises:
            ContractError: A key is missing, unknown or wrong; names source, key path, expected
                and found.
        """
        top = Section(value, "", source, KEYS["contract"])
        if (version := top.integer("version", least=1)) != VERSION:
            top.fail("version", f"{VERSION}, the only one that this package reads", version)
        if top.has("message_definitions"):
            add_definitions(
                Path(source).parent / path for path in top.names("message_definitions")
            )
        rate_hz = top.number("control_rate_hz", least=0.01, most=1000.0)
        faults = Faults()
        observations = top.sections("observations", KEYS["observation"], read_observation, faults)
        actions = top.sections(
            "actions", KEYS["action"], lambda each: read_output(each, 1.0 / rate_hz), faults
        )
        task, stop = None, None
        with faults:
            task = read_task_input(top)
        with faults:
            stop = read_stop_input(top)
        # How motion begins depends on what is read and commanded.
        faults.settle()
        contract = cls(
            robot=top.text("robot"),
            control_rate_hz=rate_hz,
            observations=tuple(observations),
            actions=tuple(actions),
            unused_actions=top.indices("unused_actions", ()),
            start=read_start(top, tuple(observations), tuple(actions)),
            on_time_jump=top.text("on_time_jump", "hold", ("hold", "reset")),
            task=task,
            stop=stop,
            source=source,
            document=json.dumps(value, sort_keys=True, default=str),
            lines=lines_of(value),
        )
        _check_topics(contract, top)
        refuse_loops(contract)
        return contract

    def check(self, ports: Ports, layout: Sequence[BufferSpec] = ()) -> None:
        """Compares the contract with a policy's ports.

        Args:
            ports: Of the policy.
            layout: Its buffers, whose dtypes are compared with the images' ranges; may be left
                out.

        Raises:
            ContractError: Lists everything that does not fit.
        """
        check_ports(self, ports, layout)

    def cautions(self) -> tuple[str, ...]:
        """Things that are allowed but worth a word: no limits, no step limit, no start check."""
        return cautions(self)

    def inputs(self) -> tuple[Input, ...]:
        """All that is read, the measured part of ``start`` last."""
        found: list[Input] = []
        for observation in self.observations:
            found += observation.sources
            image = observation.image
            if image is not None and image.camera_info is not None:
                found.append(image.camera_info)
        if self.task is not None:
            found.append(self.task)
        measured = (self.start.measured,) if self.start else ()
        if any(isinstance(part, Part) and part.transform for part in (*found, *measured)):
            found += FRAME_INPUTS
        return (*found, *measured)

    def needed_topics(self) -> frozenset[str]:
        """Topics without which there is no step: not those of optional inputs alone."""
        needed = [o for o in self.observations if not o.optional]
        topics = {topic for observation in needed for topic in observation.topics}
        topics |= {o.image.camera_info.topic for o in needed if o.image and o.image.camera_info}
        if self.task is not None and self.task.required:
            topics.add(self.task.topic)
        if self.start is not None:
            topics.add(self.start.measured.topic)
        return frozenset(topics)

    def topics(self) -> list[tuple[str, str, Qos]]:
        """Every input once: topic, type and QoS of its subscription."""
        found: dict[str, tuple[str, str, Qos]] = {}
        for source in self.inputs():
            found.setdefault(source.topic, (source.topic, source.type, source.qos))
        return list(found.values())


def _check_topics(contract: Contract, top: Section) -> None:
    """Refuses what two entries say differently of one topic or one port."""
    seen: dict[str, Input] = {}
    for part in contract.inputs():
        first = seen.setdefault(part.topic, part)
        if first.type != part.type:
            raise ContractError(
                f"{contract.source}: {part.path}.type: expected {first.type} as {first.path} has "
                f"it for topic {part.topic!r}, found {part.type}"
            )
        if first.qos != part.qos:
            raise ContractError(
                f"{contract.source}: {part.path}.qos: expected the same as {first.path} has for "
                f"topic {part.topic!r} ({first.qos}), found {part.qos}"
            )
    if contract.stop is not None:
        others = {*seen, *(output.topic for output in contract.actions)}
        if contract.stop.topic in others:
            top.fail("stop.topic", "a topic of its own", contract.stop.topic)
    for path, values in (
        ("observations", [observation.key for observation in contract.observations]),
        ("actions", [output.topic for output in contract.actions]),
    ):
        for position, value in enumerate(values):
            if value in values[:position]:
                key = "key" if path == "observations" else "topic"
                top.fail(f"{path}[{position}].{key}", "each one once", value)
