"""A contract file to start from, written from the ports of a policy.

What the policy does not say is left empty with a comment, so that ``Contract.load`` refuses the
file and names the place until somebody has filled it in: a guessed joint or rate could move a
robot wrongly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from flashrt_ros.contract.check import FIELD_SUFFIXES
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.runtime.policy import Port, Ports

STATE_TOPIC, COMMAND_TOPIC = "joint_states", "joint_command"
JOINT_STATE = "sensor_msgs/msg/JointState"


def make_template(ports: Ports, rate_hz: float | None = None, title: str = "") -> str:
    """Returns the text of a contract for a policy.

    Once all that is empty has been filled in, it loads and fits the policy: ``max_distance``
    always, the rate and names of joints where they are not known.

    Args:
        ports: Of the policy.
        rate_hz: Control steps a second of the recordings; None where unknown.
        title: What the first comment says the contract is for.

    Raises:
        UnsupportedError: A port is neither a vector nor an image of (1 or 3, height, width).
    """
    rate = "" if rate_hz is None else json.dumps(float(rate_hz))
    lines = [
        f"# {' '.join(title.split()) or 'To start from'}. Every key: docs/contract.md.",
        "# Go through it line by line: topics and types are the usual ones, not your robot's, and",
        "# what is left empty must be filled in before the file loads.",
        "version: 1",
        "robot: my_robot",
        f"control_rate_hz: {rate}".rstrip()
        + "   # of the recordings that the policy learned from",
        "",
        "observations:",
    ]
    for port in ports.observations:
        lines += _image(port) if len(port.shape) == 3 else _vector(port)
    lines += ["", *_action(ports.action), "", *_start(ports.action)]
    return "\n".join(lines) + "\n"


def _image(port: Port) -> list[str]:
    channels, height, width = port.shape
    if channels not in (1, 3):
        raise _unsupported(port)
    camera = port.key.rpartition(".")[2]
    lines = [
        *_head(port),
        "    image:",
        f"      topic: {_word(camera)}/image_raw",
        "      type: sensor_msgs/msg/Image",
        f"      size: [{height}, {width}]   # of the camera's images; others need `steps`",
    ]
    return [*lines, "      color: gray"] if channels == 1 else lines


def _vector(port: Port) -> list[str]:
    if sum(length > 1 for length in port.shape) > 1:
        raise _unsupported(port)
    return [
        *_head(port),
        "    parts:",
        f"      - topic: {STATE_TOPIC}",
        f"        type: {JOINT_STATE}",
        "        field: position   # or velocity, effort",
        *_names(port, "        "),
    ]


def _head(port: Port) -> list[str]:
    return [
        f"  - key: {json.dumps(port.key)}",
        "    max_age_ms: 100   # twice the period of the publisher and a little more",
    ]


def _action(port: Port) -> list[str]:
    return [
        "actions:",
        f"  - topic: {COMMAND_TOPIC}",
        f"    type: {JOINT_STATE}",
        "    field: position   # what an action is: position, velocity or effort",
        *_names(port, "    "),
        "    # limits: {name: [lowest, highest], ...}     # of each joint; without, none hold",
        "    # max_step: 0.1      # largest change from one command to the next",
        "    on_miss: hold        # while a plan is under way: repeat the last command",
    ]


def _start(port: Port) -> list[str]:
    return [
        "start:                   # the first command is compared with where the robot is",
        "  measured:",
        f"    topic: {STATE_TOPIC}",
        f"    type: {JOINT_STATE}",
        "    field: position",
        *_names(port, "    "),
        "  max_distance:          # of each joint, in its unit; farther away: hold",
    ]


def _names(port: Port, indent: str) -> list[str]:
    unit = [f"{indent}unit: {json.dumps(port.unit)}"] if port.unit else []
    if not port.names:
        count = math.prod(port.shape)
        return [f"{indent}names:   # {count} joints in the policy's order, e.g. [a, b]", *unit]
    return [f"{indent}names: {_listed(port.names)}", *unit]


def _listed(names: Sequence[str]) -> str:
    """The robot's names: without the field, which policies like to put behind them."""
    ends = tuple(f".{suffix}" for suffix in FIELD_SUFFIXES["position"])
    bare = [name[: -len(end)] for name in names for end in ends if name.endswith(end)]
    chosen = bare if len(bare) == len(names) else names
    return f"[{', '.join(json.dumps(name) for name in chosen)}]"


def _word(name: str) -> str:
    """A topic name from any text."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return kept if kept[:1].isalpha() else f"camera_{kept}"


def _unsupported(port: Port) -> UnsupportedError:
    return UnsupportedError(
        f"port {port.key!r}: expected a vector or an image of (1 or 3, height, width), found "
        f"shape {port.shape}; no contract can fill it"
    )
