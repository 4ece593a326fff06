"""Every parameter of the node: name, default, range, meaning, and when it may change.

``config/policy_node.yaml`` is the commented list for people; a test holds the two together.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import ParameterException
from rclpy.node import Node
from rclpy.parameter import Parameter

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.plan_timing import AUTOMATIC
from flashrt_ros.ros.qos_overrides import PREFIX
from flashrt_ros.ros.resumption import Options
from flashrt_ros.runtime.session import MAX_PREVIEW_SETS

START = "read once at start"
CONFIGURE = "read at configure"
ANY = "may change at any time"


@dataclass(frozen=True)
class Declaration:
    """One parameter.

    Attributes:
        name: Name.
        default: Default, whose type is the parameter's.
        when: START (read-only), CONFIGURE (refused while configured) or ANY.
        text: Description.
        least: Smallest value of a number.
        most: Largest value of a number.
    """

    name: str
    default: bool | int | float | str
    when: str
    text: str
    least: float = 0
    most: float = 0

    @property
    def expected(self) -> str:
        """What its values are, in words."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, int):
            return f"a whole number from {self.least:.0f} to {self.most:.0f}"
        if isinstance(self.default, float):
            return f"a number with a point from {self.least:g} to {self.most:g}"
        return "a text"

    def descriptor(self) -> ParameterDescriptor:
        """For ``declare_parameter``."""
        descriptor = ParameterDescriptor(
            description=f"{self.text} ({self.when})", read_only=self.when == START
        )
        if isinstance(self.default, float):
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(self.least), to_value=float(self.most))
            ]
        elif isinstance(self.default, int) and not isinstance(self.default, bool):
            descriptor.integer_range = [
                IntegerRange(from_value=int(self.least), to_value=int(self.most), step=1)
            ]
        return descriptor


DECLARATIONS: Sequence[Declaration] = (
    Declaration(
        "policy",
        "",
        CONFIGURE,
        "Directory of a checkpoint (config.json, model.safetensors), registered name such as "
        "'cue_reach', or 'package.module:factory'; needed",
    ),
    Declaration(
        "trust_policy_files",
        False,
        CONFIGURE,
        "Let torch unpickle programs (.pt2) that cannot be read otherwise, which can run any code",
    ),
    Declaration(
        "contract",
        "",
        CONFIGURE,
        "Contract file of robot and policy: a path, or package://PACKAGE/path in its share "
        "folder; needed",
    ),
    Declaration("device", "cpu", CONFIGURE, "Device of the policy: cpu, cuda or cuda:N"),
    Declaration(
        "numerics",
        "exact",
        CONFIGURE,
        "How the policy calculates: exact, or fast (LeRobot checkpoints on a GPU), which is "
        "refused if its actions stray too far",
    ),
    Declaration(
        "seed", 0, CONFIGURE, "Noise key of episode 0; later episodes derive theirs", 0, 2**63 - 1
    ),
    Declaration("task", "", CONFIGURE, "Task text of the first episode"),
    Declaration(
        "autostart", False, START, "Configure and activate by itself, without a lifecycle manager"
    ),
    Declaration(
        "hold", False, CONFIGURE, "Hold after the first activation until ~/resume is called"
    ),
    Declaration(
        "dry_run",
        False,
        ANY,
        "Shadow mode: do everything but publish commands; what would have left goes to ~/shadow",
    ),
    Declaration(
        "store_bytes",
        64 << 20,
        CONFIGURE,
        "Device memory for all capsules, rollback ring included, allocated at configure",
        1,
        2**40,
    ),
    Declaration(
        "host_store_bytes",
        0,
        CONFIGURE,
        "Pinned host memory for capsules in tier host, allocated at configure; 0: no such tier; "
        "not used where device and host are one memory",
        0,
        2**40,
    ),
    Declaration(
        "rollback_depth", 64, CONFIGURE, "Boundaries that ~/rollback can go back to", 0, 100_000
    ),
    Declaration(
        "rollback_period_steps",
        1,
        ANY,
        "Control steps between two boundaries of the rollback ring",
        1,
        100_000,
    ),
    Declaration(
        "preview_sets",
        1,
        CONFIGURE,
        "Spare states in which ~/preview runs branches, each as large as the live one; 0: none, "
        "and no previews",
        0,
        MAX_PREVIEW_SETS,
    ),
    Declaration(
        "warm_up_replays",
        3,
        CONFIGURE,
        "Calls of each plan before its capture; some 300 on a Jetson until timings settle",
        0,
        10_000,
    ),
    Declaration(
        "plan_ahead",
        AUTOMATIC,
        CONFIGURE,
        "Rows left of a chunk with which the next plan begins beside the control steps; -1: as "
        "many as plans have taken control periods lately, and some more; 0: once it is used up",
        -1,
        100_000,
    ),
    Declaration(
        "torch_threads",
        1,
        CONFIGURE,
        "Threads of torch operators in the control thread and in the planner thread",
        1,
        256,
    ),
    Declaration(
        "realtime_priority",
        0,
        CONFIGURE,
        "SCHED_FIFO priority of the control thread; 0: ordinary scheduling; needs the right to it "
        "(rtprio in /etc/security/limits.conf)",
        0,
        98,
    ),
    Declaration(
        "nvtx",
        False,
        CONFIGURE,
        "Ranges for a profiler around control steps, plans, verbs and decoding",
    ),
    Declaration(
        "tracing",
        False,
        CONFIGURE,
        "The same ranges as callbacks in traces of ros2_tracing (LTTng)",
    ),
    Declaration(
        "cpu_affinity",
        "",
        CONFIGURE,
        "CPUs of the control thread, such as 4-7,10; empty: any",
    ),
    Declaration(
        "keep_warm_s",
        0.0,
        ANY,
        "While no step is taken, replay the policy after so long a rest; its state stays; "
        "0: never",
        0.0,
        60.0,
    ),
    Declaration(
        "capsule_dir",
        "~/.ros/flashrt_ros/capsules",
        CONFIGURE,
        "Folder of capsule files, made when the first one is saved; empty: no files",
    ),
    Declaration(
        "miss_limit_s",
        0.5,
        ANY,
        "How long commands are repeated without a new action (on_miss hold and zeros) before the "
        "stop message ends motion",
        0.0,
        10.0,
    ),
    Declaration(
        "watchdog_periods",
        5,
        CONFIGURE,
        "Control periods without a control step, while the robot moves, after which another "
        "thread does what on_miss says",
        2,
        100_000,
    ),
    Declaration(
        "publish_state_digest",
        False,
        ANY,
        "Put the SHA-256 of the execution state into ~/policy_step",
    ),
    Declaration("publish_chunk", False, ANY, "Publish adopted chunks on ~/action_chunk"),
    Declaration(
        "start_timeout_s",
        1.0,
        ANY,
        "How long ~/resume waits for fresh input before it answers STALE_INPUT and holds again",
        0.0,
        60.0,
    ),
    Declaration(
        "service_timeout_s", 5.0, ANY, "After this a service answers TIMEOUT", 0.01, 600.0
    ),
)


class Parameters:
    """The parameters of one node.

    Attributes:
        options: Those that may change at any time, as the control thread reads them.
        on_change: Called in the executor with name and value of a parameter that may change at any
            time, once all that were set together are found good.
        locked: True while the node is configured: changes of the others are refused.
    """

    def __init__(self, node: Node) -> None:
        """Declares all of them."""
        self.options = Options()
        self.locked = False
        self.on_change: Callable[[str, Any], None] = lambda name, value: None
        self._node = node
        self._when = {declaration.name: declaration.when for declaration in DECLARATIONS}
        faults = [fault for each in DECLARATIONS if (fault := self._declare(each))]
        if faults:
            raise InvalidArgumentError("\n".join(faults))
        for name, when in self._when.items():
            if when == ANY:
                setattr(self.options, name, self[name])
        node.add_on_set_parameters_callback(self._on_set)
        self._warn_of_unknown()

    def _declare(self, declaration: Declaration) -> str:
        """Declares one, and says in words what is wrong with the value that was given for it."""
        name, default = declaration.name, declaration.default
        try:
            self._node.declare_parameter(name, default, declaration.descriptor())
        except ParameterException:
            given = overrides_of(self._node)[name].value
            hint = ""
            if isinstance(default, float) and type(given) is int:
                hint = f"; write {float(given)}"
            elif isinstance(default, str):
                hint = f'; write it in quotes: "{given}"'
            return f"parameter {name!r}: expected {declaration.expected}, found {given!r}{hint}"
        return ""

    def _warn_of_unknown(self) -> None:
        """ROS ignores a misspelt parameter in silence; a limit that was meant is then not set."""
        for name in overrides_of(self._node):
            # Of topics that are known only at configure.
            if not self._node.has_parameter(name) and not name.startswith(PREFIX):
                near = difflib.get_close_matches(name, list(self._when), 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                self._node.get_logger().warning(
                    f"parameter {name!r} is none of this node's and has no effect{hint}"
                )

    def __getitem__(self, name: str) -> Any:
        """Value of a parameter."""
        return self._node.get_parameter(name).value

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            if parameter.name.startswith(PREFIX) and self._node.has_parameter(parameter.name):
                reason = f"{parameter.name} is given at start: publishers and subscriptions stand"
                return SetParametersResult(successful=False, reason=reason)
            if self._when.get(parameter.name) == CONFIGURE and self.locked:
                reason = (
                    f"{parameter.name} is read at configure: expected an unconfigured node; "
                    "deactivate and clean up first"
                )
                return SetParametersResult(successful=False, reason=reason)
        for parameter in parameters:
            if self._when.get(parameter.name) == ANY:
                setattr(self.options, parameter.name, parameter.value)
                self.on_change(parameter.name, parameter.value)
        return SetParametersResult(successful=True)

    def changeable(self) -> dict[str, str]:
        """Those that may change at any time, in words, for diagnostics."""
        return {name: str(self[name]) for name, when in self._when.items() if when == ANY}

    def needed(self, name: str) -> str:
        """A string that must not be empty.

        Raises:
            InvalidArgumentError: It is.
        """
        value = str(self[name])
        if not value:
            raise InvalidArgumentError(
                f"parameter {name!r}: expected a value, found none; set it in a parameter file or "
                f"with --ros-args -p {name}:=..."
            )
        return value


def overrides_of(node: Node) -> Mapping[str, Parameter]:
    """Parameters that the node was given at start, by name."""
    # rclpy does not tell by public means what it was given.
    given: Mapping[str, Parameter] = getattr(node, "_parameter_overrides", {})
    return given


def contract_path(text: str) -> Path:
    """Resolves ``package://PACKAGE/rest`` to the share folder of a package; a path stays one.

    Raises:
        InvalidArgumentError: No such package or file.
    """
    scheme = "package://"
    if not text.startswith(scheme):
        path = Path(text).expanduser()
    else:
        package, _, rest = text.removeprefix(scheme).partition("/")
        path = share_folder(package) / rest
    if not path.is_file():
        raise InvalidArgumentError(
            f"parameter 'contract': expected a file, found none at {path.absolute()}"
        )
    return path


def share_folder(package: str) -> Path:
    """Share folder of a package: by the ament index, else of the Python environment.

    Raises:
        InvalidArgumentError: There is none.
    """
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    for prefix in filter(None, prefixes):
        if (folder := Path(prefix) / "share" / package).is_dir():
            return folder
    raise InvalidArgumentError(
        f"package {package!r}: expected its share folder below one of {prefixes}, found none; "
        "source its workspace"
    )
