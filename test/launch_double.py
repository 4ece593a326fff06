"""Stand-ins for the names of ``launch`` and ``launch_ros`` that our launch files use.

launch_ros is not to be had from pip, so without a ROS 2 installation no launch file could be
tried. Here the real files are executed with these stand-ins: arguments are declared and checked,
substitutions resolved, and what launch would start comes out as command lines, to be started by a
test. A name that a launch file uses and that is missing here fails at its import; where the real
launch_ros is installed, nothing of this is used.
"""

import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LaunchContext:
    """The arguments with their values, and the environment of what is started."""

    def __init__(self) -> None:
        self.launch_configurations: dict[str, str] = {}
        self.environment: dict[str, str] = {}


class Substitution:
    def perform(self, context: LaunchContext) -> str:
        raise NotImplementedError


@dataclass
class LaunchConfiguration(Substitution):
    variable_name: str
    default: Any = None

    def perform(self, context: LaunchContext) -> str:
        if self.variable_name in context.launch_configurations:
            return context.launch_configurations[self.variable_name]
        if self.default is None:
            raise LookupError(f"launch configuration {self.variable_name!r} does not exist")
        return text(self.default, context)


@dataclass
class PathJoinSubstitution(Substitution):
    substitutions: Sequence[Any]

    def perform(self, context: LaunchContext) -> str:
        return os.path.join(*(text(part, context) for part in self.substitutions))


def text(value: Any, context: LaunchContext) -> str:
    """What launch makes of a text, a substitution, or a list of them (joined without a space)."""
    if isinstance(value, Substitution):
        return value.perform(context)
    if isinstance(value, list | tuple):
        return "".join(text(part, context) for part in value)
    return str(value)


@dataclass
class IfCondition:
    expression: Any

    def holds(self, context: LaunchContext) -> bool:
        word = text(self.expression, context).strip().lower()
        if word not in ("true", "false", "1", "0"):
            raise ValueError(f"condition {word!r}: expected true, false, 1 or 0")
        return word in ("true", "1")


class UnlessCondition(IfCondition):
    def holds(self, context: LaunchContext) -> bool:
        return not super().holds(context)


@dataclass
class DeclareLaunchArgument:
    name: str
    default_value: Any = None
    description: str = ""
    choices: Sequence[str] | None = None

    def apply(self, context: LaunchContext, given: Mapping[str, str]) -> None:
        if self.name not in given and self.default_value is None:
            raise ValueError(f"launch argument {self.name!r} was not given and has no default")
        value = given.get(self.name)
        value = text(self.default_value, context) if value is None else value
        if self.choices is not None and value not in self.choices:
            raise ValueError(f"{self.name}:={value}: expected one of {list(self.choices)}")
        context.launch_configurations[self.name] = value


@dataclass
class SetEnvironmentVariable:
    name: Any
    value: Any
    condition: IfCondition | None = None


@dataclass
class OpaqueFunction:
    function: Callable[..., Iterable[Any] | None]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    condition: IfCondition | None = None


class ExecuteProcess:
    def __init__(
        self, *, cmd: Sequence[Any], condition: IfCondition | None = None, **ignored: Any
    ) -> None:
        self.cmd = cmd
        self.condition = condition

    def command(self, prefix: Path, context: LaunchContext) -> list[str]:
        return [text(word, context) for word in self.cmd]


@dataclass
class Shutdown:
    reason: str = ""


class Node:
    def __init__(
        self,
        *,
        package: Any,
        executable: Any,
        name: Any = None,
        namespace: Any = None,
        parameters: Sequence[Any] = (),
        remappings: Sequence[tuple[Any, Any]] = (),
        arguments: Sequence[Any] = (),
        condition: IfCondition | None = None,
        output: str = "log",
        emulate_tty: bool = False,
        **ignored: Any,
    ) -> None:
        self.package, self.executable, self.name, self.namespace = (
            package,
            executable,
            name,
            namespace,
        )
        self.parameters, self.remappings, self.arguments = parameters, remappings, arguments
        self.condition = condition

    def command(self, prefix: Path, context: LaunchContext) -> list[str]:
        package, executable = text(self.package, context), text(self.executable, context)
        words = [str(prefix / "lib" / package / executable)]
        words += [text(a, context) for a in self.arguments] + ["--ros-args"]
        if self.name is not None:
            words += ["-r", f"__node:={text(self.name, context)}"]
        namespace = text(self.namespace or "", context).strip("/")
        if namespace:
            words += ["-r", f"__ns:=/{namespace}"]
        for entry in self.parameters:
            if isinstance(entry, Mapping):
                for key, value in entry.items():
                    words += ["-p", f"{text(key, context)}:={yaml_value(value, context)}"]
            else:
                words += ["--params-file", text(entry, context)]
        for old, new in self.remappings:
            words += ["-r", f"{text(old, context)}:={text(new, context)}"]
        return words


def yaml_value(value: Any, context: LaunchContext) -> str:
    """A parameter's value, of the type that it has in Python; a substitution is YAML itself."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return f"'{value}'"
    return text(value, context)


class LifecycleNode(Node):
    def __init__(self, *, name: Any, namespace: Any, **more: Any) -> None:
        super().__init__(name=name, namespace=namespace, **more)


@dataclass
class OnStateTransition:
    """Holds entities that come once a node has reached a state."""

    entities: Sequence[Any]
    target_lifecycle_node: LifecycleNode
    goal_state: str


@dataclass
class RegisterEventHandler:
    event_handler: OnStateTransition
    condition: IfCondition | None = None


@dataclass
class LaunchDescription:
    entities: list[Any] = field(default_factory=list)

    def add_action(self, action: Any) -> None:
        self.entities.append(action)


@dataclass
class Launched:
    """What a launch file would start.

    Attributes:
        commands: Command lines in order.
        environment: Variables set by the file.
        arguments: Declared arguments with their values.
        later: State of a node, and the command lines that wait for it.
    """

    commands: list[list[str]]
    environment: dict[str, str]
    arguments: dict[str, str]
    later: dict[str, list[list[str]]] = field(default_factory=dict)


def available() -> bool:
    """Whether the real launch_ros is installed."""
    return importlib.util.find_spec("launch_ros") is not None


def evaluate(path: Path, prefix: Path, **arguments: str) -> Launched:
    """Executes a launch file as ``ros2 launch FILE name:=value ...`` would.

    Args:
        path: Launch file.
        prefix: Installation whose ``lib/PACKAGE`` holds the executables.
        **arguments: Launch arguments.
    """
    modules = {
        "launch": {"LaunchContext": LaunchContext, "LaunchDescription": LaunchDescription},
        "launch.actions": {
            "DeclareLaunchArgument": DeclareLaunchArgument,
            "ExecuteProcess": ExecuteProcess,
            "OpaqueFunction": OpaqueFunction,
            "RegisterEventHandler": RegisterEventHandler,
            "Shutdown": Shutdown,
            "SetEnvironmentVariable": SetEnvironmentVariable,
        },
        "launch.conditions": {"IfCondition": IfCondition, "UnlessCondition": UnlessCondition},
        "launch.substitutions": {
            "LaunchConfiguration": LaunchConfiguration,
            "PathJoinSubstitution": PathJoinSubstitution,
        },
        "launch_ros": {},
        "launch_ros.actions": {"LifecycleNode": LifecycleNode, "Node": Node},
        "launch_ros.event_handlers": {"OnStateTransition": OnStateTransition},
    }
    saved = {name: sys.modules.get(name) for name in modules}
    for name, names in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(names)
        sys.modules[name] = module
    try:
        spec = importlib.util.spec_from_file_location("launch_file", path)
        assert spec is not None
        assert spec.loader is not None
        file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(file)
        return _run(file.generate_launch_description(), prefix, arguments)
    finally:
        for name, module_or_none in saved.items():
            if module_or_none is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_or_none


def _run(description: LaunchDescription, prefix: Path, given: dict[str, str]) -> Launched:
    context = LaunchContext()
    commands: list[list[str]] = []
    later: dict[str, list[list[str]]] = {}
    waiting = list(description.entities)
    while waiting:
        entity = waiting.pop(0)
        condition = getattr(entity, "condition", None)
        if condition is not None and not condition.holds(context):
            continue
        if isinstance(entity, DeclareLaunchArgument):
            entity.apply(context, given)
        elif isinstance(entity, OpaqueFunction):
            made = entity.function(context, *entity.args, **entity.kwargs)
            waiting[:0] = made or []
        elif isinstance(entity, SetEnvironmentVariable):
            context.environment[text(entity.name, context)] = text(entity.value, context)
        elif isinstance(entity, RegisterEventHandler):
            handler = entity.event_handler
            lines = [each.command(prefix, context) for each in handler.entities]
            later[handler.goal_state] = lines
        elif isinstance(entity, Node | ExecuteProcess):
            commands.append(entity.command(prefix, context))
        else:
            raise TypeError(f"no stand-in for {entity!r}")
    unknown = sorted(set(given) - set(context.launch_configurations))
    if unknown:
        raise ValueError(f"launch arguments {unknown} are not declared")
    return Launched(commands, context.environment, dict(context.launch_configurations), later)
