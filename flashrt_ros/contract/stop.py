"""The stop input: a topic that ends motion, or without which there is none."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from flashrt_ros.contract.qos import Qos
from flashrt_ros.contract.section import Section

KEYS = ("topic", "type", "mode", "max_age_ms", "qos")
BOOL = "std_msgs/msg/Bool"
QOS = Qos(reliability="reliable", depth=10)
"""A stop that is lost is no stop; ten of them may wait while the node is being configured."""


@dataclass(frozen=True)
class StopInput:
    """Where a stop comes from besides the service.

    Attributes:
        topic: As the contract writes it.
        mode: ``latch``: a message that says true stops like ``~/stop``. ``dead_man``: motion only
            while messages that say true keep coming.
        max_age_ms: Oldest message that permits motion, steady clock, from its reception; 0 where
            messages need not keep coming (``latch`` alone).
        type: Full type name.
        qos: Of the subscription.
        path: Key path in the file, for messages.
    """

    topic: str
    mode: str = "latch"
    max_age_ms: float = 0.0
    type: str = BOOL
    qos: Qos = dataclasses.field(default_factory=lambda: QOS)
    path: str = "stop"

    @property
    def dead_man(self) -> bool:
        """Whether motion needs messages that say true."""
        return self.mode == "dead_man"


def read_stop(section: Section, topic: str, qos: Qos) -> StopInput:
    """Reads the top level's ``stop``.

    Args:
        section: The mapping.
        topic: Its topic, already checked.
        qos: Of its subscription.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    mode = section.text("mode", "latch", ("latch", "dead_man"))
    age_ms = 0.0
    if mode == "dead_man" or section.has("max_age_ms"):
        age_ms = section.number("max_age_ms", above=0.0, most=60_000.0)
    return StopInput(
        topic=topic,
        mode=mode,
        max_age_ms=age_ms,
        type=section.text("type", BOOL, (BOOL,)),
        qos=qos,
        path=section.path,
    )
