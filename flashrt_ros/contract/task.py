"""The task text from a topic: what the robot is asked to do, as a person or a planner says it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from flashrt_ros.contract.definitions import require_type
from flashrt_ros.contract.field_path import follow
from flashrt_ros.contract.qos import Qos
from flashrt_ros.contract.section import Section
from flashrt_ros.errors import ContractError, InvalidArgumentError
from flashrt_ros.runtime.verbs import check_task

KEYS = ("topic", "type", "field", "required", "on_change", "qos")
STRING = "std_msgs/msg/String"


@dataclass(frozen=True)
class TaskInput:
    """Where the task comes from.

    Attributes:
        topic: As the contract writes it.
        type: Full type name.
        field: Path of the text.
        required: No step before a text has come.
        on_change: ``replan``: what is left of the present chunk is dropped; ``finish``: it is
            taken first.
        qos: Of the subscription.
        path: Key path in the file, for messages.
    """

    topic: str
    type: str = STRING
    field: str = "data"
    required: bool = False
    on_change: str = "replan"
    qos: Qos = dataclasses.field(default_factory=Qos)
    path: str = ""


@dataclass(frozen=True)
class TaskText:
    """A text that was received.

    Attributes:
        text: What it says.
        sequence: Counts the messages of the topic, so that the same text said again is another.
    """

    text: str
    sequence: int


def read_task(section: Section, topic: str, qos: Qos) -> TaskInput:
    """Reads the top level's ``task``.

    Args:
        section: The mapping.
        topic: Its topic, already checked.
        qos: Of its subscription.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    type_name = section.text("type", STRING)
    field = section.text("field", "data")
    try:
        require_type(type_name)
        target = follow(type_name, field)
    except ContractError as error:
        section.fail("field", f"a text in {type_name}", field, str(error))
    if target.kind != "number" or not target.text:
        section.fail("field", f"a text in {type_name}", field)
    return TaskInput(
        topic=topic,
        type=type_name,
        field=field,
        required=section.flag("required", False),
        on_change=section.text("on_change", "replan", ("replan", "finish")),
        qos=qos,
        path=section.path,
    )


class TaskReader:
    """Reads the text of one message."""

    def __init__(self, part: TaskInput) -> None:
        """Follows the path."""
        self.part = part
        self._get = follow(part.type, part.field).get

    def __call__(self, message: Any) -> str:
        """The text.

        Raises:
            ContractError: It is too long, or not there.
        """
        try:
            return check_task(str(self._get(message)))
        except (ContractError, InvalidArgumentError, AttributeError) as error:
            raise ContractError(f"topic {self.part.topic!r} ({self.part.type}): {error}") from None
