"""Finds a policy by the name of its directory, its registered name or its factory.

Another package adds a policy with an entry point in the group ``flashrt_ros.policies``, whose
object is a ``Factory``. Nothing of this package needs to change for that.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from flashrt_ros.errors import (
    CheckpointError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from flashrt_ros.policies.checkpoint import CONFIG, read_config
from flashrt_ros.policies.fast.mode import Numerics, read_numerics
from flashrt_ros.policies.lerobot import families
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint, read_checkpoint
from flashrt_ros.policies.lerobot.json_file import read_object
from flashrt_ros.policies.program.manifest import MANIFEST
from flashrt_ros.runtime.policy import Policy

GROUP = "flashrt_ros.policies"

Factory = Callable[[Path | None], Policy]
"""Makes a policy from the directory of its checkpoint, None where only the name was given.

A factory without parameters, or whose parameter has a default, is called with nothing instead of
None.
"""

BUILT_IN: dict[str, str] = {
    "recurrent": "flashrt_ros.policies.recurrent:make",
    "hold": "flashrt_ros.policies.hold:make",
    "hybrid": "flashrt_ros.policies.hybrid.policy:make",
    "cue_reach": "flashrt_ros.demo.policy:make",
    "hybrid_reach": "flashrt_ros.demo.hybrid_policy:make",
}
"""Our own policies. A table, because a colcon install carries no entry points of ours."""

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def available_policies() -> dict[str, str]:
    """Registered names and the ``module:factory`` behind each, sorted by name."""
    found = {entry.name: entry.value for entry in metadata.entry_points(group=GROUP)}
    return dict(sorted({**found, **BUILT_IN}.items()))


def load_policy(name: str | Path, trust: bool = False, numerics: str = "exact") -> Policy:
    """Makes a policy.

    Args:
        name: A directory with ``config.json``, whose ``type`` is a registered name or a type of
            LeRobot; or one with ``manifest.json`` and programs; or a registered name; or
            ``package.module:factory``.
        trust: Let torch load programs that can only be read by unpickling, which can run any
            code. Nothing else is ever unpickled.
        numerics: ``exact``; or ``fast``, which LeRobot's types have on GPUs: float16 and fused
            operations, refused at configure if its actions stray too far.

    Returns:
        The policy, on the CPU, its weights loaded.

    Raises:
        NotFoundError: No such directory, name, module or factory; lists what exists.
        CheckpointError: The directory is wrong.
        InvalidArgumentError: The factory does not make a policy, or failed to import.
        UnsupportedError: The policy has no fast arithmetic.
    """
    mode = read_numerics(numerics)
    directory = Path(name)
    text = str(name)
    if directory.is_dir():
        if (directory / MANIFEST).is_file():
            _check_exact(mode, text)
            return _load_programs(directory, trust)
        checkpoint = find_checkpoint(directory)
        if checkpoint is not None:
            return families.make(checkpoint, mode)
        _check_exact(mode, text)
        family = read_config(directory)["type"]
        target = available_policies().get(family)
        if target is None:
            raise CheckpointError(
                f"{directory / CONFIG}: type: found {family!r}, expected one of "
                f"{[*available_policies(), *families.FAMILIES]}"
            )
        return _make(target, directory)
    _check_exact(mode, text)
    if _TARGET.fullmatch(text):
        return _make(text, None)
    target = available_policies().get(text)
    if target is None:
        raise NotFoundError(
            f"policy {text!r}: no directory of that path and no registered policy; registered "
            f"are {list(available_policies())}; or name a factory as 'package.module:factory'"
        )
    return _make(target, None)


def _check_exact(mode: Numerics, name: str) -> None:
    if mode is not Numerics.EXACT:
        raise UnsupportedError(
            f"policy {name!r}: numerics: expected 'exact', found {mode.value!r}, which LeRobot "
            f"checkpoints of type {' and '.join(families.FAMILIES)} have"
        )


def find_checkpoint(name: str | Path) -> LeRobotCheckpoint | None:
    """The LeRobot checkpoint that ``load_policy`` would make a policy from; None for others.

    Raises:
        CheckpointError: The directory is wrong.
    """
    directory = Path(name)
    if not directory.is_dir() or (directory / MANIFEST).is_file():
        return None
    config = read_config(directory)
    if config["type"] in available_policies() or not families.is_lerobot(config):
        return None
    return read_checkpoint(directory)


def _load_programs(directory: Path, trust: bool) -> Policy:
    # Imported here: few have programs.
    from flashrt_ros.policies.program import policy, predictor

    value = read_object(directory / MANIFEST)
    if value.get("format") == predictor.FORMAT:
        return predictor.load_predictor(directory, value, trust)
    return policy.load(directory, trust)


def _make(target: str, directory: Path | None) -> Policy:
    module_name, _, attribute = target.partition(":")
    try:
        factory: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise NotFoundError(
                f"policy factory {target!r}: no module {error.name!r} on the Python path; install "
                "it, or put the folder that holds it on PYTHONPATH"
            ) from None
        raise InvalidArgumentError(
            f"policy factory {target!r}: its module imports {error.name!r}, which is not installed"
        ) from error
    for part in attribute.split("."):
        if not hasattr(factory, part):
            raise NotFoundError(f"policy factory {target!r}: {module_name} has no {attribute!r}")
        factory = getattr(factory, part)
    if not callable(factory):
        raise InvalidArgumentError(
            f"policy factory {target!r}: expected a callable, found {type(factory).__name__}"
        )
    policy = _call(factory, target, directory)
    if not isinstance(policy, Policy):
        raise InvalidArgumentError(
            f"policy factory {target!r}: expected a flashrt_ros Policy, "
            f"found {type(policy).__name__}"
        )
    return policy


def _call(factory: Callable[..., object], target: str, directory: Path | None) -> object:
    try:
        first = next(iter(inspect.signature(factory).parameters.values()), None)
    except ValueError:
        return factory(directory)
    if directory is None and (first is None or first.default is not first.empty):
        return factory()
    if first is None:
        raise InvalidArgumentError(
            f"policy factory {target!r}: takes no argument, so it cannot read {directory}; let it "
            "take the directory of its checkpoint"
        )
    return factory(directory)
