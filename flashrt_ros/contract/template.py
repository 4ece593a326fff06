"""A contract file to start from, written from the ports of a policy.

What the policy does not say is left empty with a comment, so that ``Contract.load`` refuses the
file and names the place until somebody has filled it in: a guessed joint or rate could move a
robot wrongly.
"""

from __future__ import annotations

import itertools
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
    lines = _head(port)
    names = port.names
    if not port.required and names and names[-1].endswith("present"):
        lines.append("    present_flag: true   # the last element: 1.0 where fresh, else 0.0")
        names = names[:-1]
    lines.append("    parts:")
    for field, part in _runs(names):
        lines += [
            f"      - topic: {STATE_TOPIC}",
            f"        type: {JOINT_STATE}",
            f"        field: {field}   # position, velocity or effort",
            *_names(part, len(names) or math.prod(port.shape), port.unit, "        "),
        ]
    return lines


def _runs(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Neighbours of one field, by the ends of their names, as the robot calls them.

    Nothing but position without names for those of which some ends say a field and others do not.
    """
    ended = [_field(name) for name in names]
    if all(field == "" for field, _ in ended):
        return [("position", tuple(names))]
    if any(field == "" for field, _ in ended):
        return [("position", ())]
    groups = itertools.groupby(ended, key=lambda pair: pair[0])
    return [(field, tuple(name for _, name in group)) for field, group in groups]


def _field(name: str) -> tuple[str, str]:
    """The field that the end of a name says, and the name without it; empty: none."""
    for field in ("position", "velocity", "effort"):
        for suffix in FIELD_SUFFIXES.get(field, (field,)):
            if name.endswith(f".{suffix}"):
                return field, name[: -len(suffix) - 1]
    return "", name


def _head(port: Port) -> list[str]:
    lines = [
        f"  - key: {json.dumps(port.key)}",
        "    max_age_ms: 100   # twice the period of the publisher and a little more",
    ]
    if not port.required:
        lines.append("    optional: true    # the policy does without it; `fill` stands in")
    return lines


def _action(port: Port) -> list[str]:
    return [
        "actions:",
        f"  - topic: {COMMAND_TOPIC}",
        f"    type: {JOINT_STATE}",
        "    field: position   # what an action is: position, velocity or effort",
        *_positions(port),
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
        *_positions(port),
        "  max_distance:          # of each joint, in its unit; farther away: hold",
    ]


def _positions(port: Port) -> list[str]:
    """Names of an action, where all are of positions; others are left to whoever knows."""
    runs = _runs(port.names)
    names = runs[0][1] if len(runs) == 1 and runs[0][0] == "position" else ()
    return _names(names, math.prod(port.shape), port.unit, "    ")


def _names(names: Sequence[str], count: int, unit: str, indent: str) -> list[str]:
    units = [f"{indent}unit: {json.dumps(unit)}"] if unit else []
    if not names:
        return [f"{indent}names:   # {count} joints in the policy's order, e.g. [a, b]", *units]
    return [f"{indent}names: [{', '.join(json.dumps(name) for name in names)}]", *units]


def _word(name: str) -> str:
    """A topic name from any text."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return kept if kept[:1].isalpha() else f"camera_{kept}"


def _unsupported(port: Port) -> UnsupportedError:
    return UnsupportedError(
        f"port {port.key!r}: expected a vector or an image of (1 or 3, height, width), found "
        f"shape {port.shape}; no contract can fill it"
    )
