"""The command ``flashrt_ros``: one table entry a subcommand, each imported only when it is run."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from flashrt_ros import __version__
from flashrt_ros.errors import NotFoundError
from flashrt_ros.exit_code import USAGE, in_words


class CommandModule(Protocol):
    """What the module of a subcommand offers."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes:
        name: As typed.
        summary: One line for ``--help``.
        module: Module with ``add_arguments(parser)`` and ``run(arguments) -> exit code``.
    """

    name: str
    summary: str
    module: str


COMMANDS = (
    Command(
        "doctor",
        "say what this machine, driver, torch and ROS can do, and the cure for what they cannot",
        "flashrt_ros.doctor.command",
    ),
    Command(
        "inspect",
        "print a policy's ports, buffers, the weight of a capsule and what memory it will take",
        "flashrt_ros.inspect_command",
    ),
    Command(
        "export",
        "write a policy as programs (.pt2) that need none of its code",
        "flashrt_ros.export_command",
    ),
    Command("check", "run the conformance suite on a policy", "flashrt_ros.check_command"),
    Command(
        "ablate",
        "leave each buffer out of a restore and say where actions first diverge",
        "flashrt_ros.ablate_command",
    ),
    Command("bench", "measure the published figures on this machine", "flashrt_ros.bench.command"),
    Command(
        "soak",
        "run a node with verbs for minutes or hours and look whether it stays as it was",
        "flashrt_ros.soak_command",
    ),
    Command("demo", "run the demonstration and print its table", "flashrt_ros.demo.run"),
    Command(
        "trees",
        "run a behaviour tree on the simulated arm: pick, branches or watchdog",
        "flashrt_ros.demo.trees.command",
    ),
    Command(
        "capsule",
        "list, show, compare, verify and remove capsule files",
        "flashrt_ros.capsule_command",
    ),
    Command(
        "evaluate",
        "say what policies would have done over recordings, against what was commanded",
        "flashrt_ros.evaluate.command",
    ),
    Command(
        "call",
        "call a service of a policy node, or take it through its lifecycle",
        "flashrt_ros.call_command",
    ),
    Command(
        "status",
        "say what a policy node does now, why, and what it complains of",
        "flashrt_ros.status_command",
    ),
    Command("play", "publish a recording at its recorded times", "flashrt_ros.bag.play_command"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand.

    Args:
        arguments: Words after the program's name; ``sys.argv`` by default.

    Returns:
        0 all well, 1 a check failed or work ended in an error, 2 wrong usage (of the command
        line, or a policy, file or topic that is not there, or an output that is), 3 this machine
        lacks what is needed (a GPU, a Python package), 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    return in_words(lambda: _run(words), "--debug" in words)


def _run(words: Sequence[str]) -> int:
    chosen = next((word for word in words if not word.startswith("-")), None)
    parsed = _parser(chosen).parse_args(words)
    if parsed.command is None:
        _parser(None).print_help()
        return USAGE
    try:
        code: int = parsed.run(parsed)
    except ModuleNotFoundError as error:  # what the work itself imports, such as a simulator
        raise _missing(parsed.command, error) from error
    sys.stdout.flush()
    return code


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Returns the parser; only the chosen subcommand's module is imported for its options."""
    debug = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    debug.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser = argparse.ArgumentParser(
        prog="flashrt_ros",
        description="Runs learned robot policies whose whole execution state can be named.",
        parents=[debug],
    )
    parser.add_argument("--version", action="version", version=f"flashrt_ros {__version__}")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        own = subparsers.add_parser(
            command.name, help=command.summary, description=command.summary, parents=[debug]
        )
        if command.name == chosen:
            module = cast(CommandModule, _import(command))
            module.add_arguments(own)
            own.set_defaults(run=module.run)
    return parser


def _import(command: Command) -> object:
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        raise _missing(command.name, error) from error


def _missing(command: str, error: ModuleNotFoundError) -> NotFoundError:
    return NotFoundError(
        f"`flashrt_ros {command}` needs the Python module {error.name!r}, which is not installed: "
        "the README's 'With pip' names the extras (demo has mujoco and py_trees), and "
        "`flashrt_ros doctor` says what is missing of ROS and torch"
    )


if __name__ == "__main__":
    sys.exit(main())
