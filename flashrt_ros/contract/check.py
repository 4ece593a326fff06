"""Compares a contract with the ports of a policy, at configure, before anything moves."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from flashrt_ros.contract.image.compressed import require_pillow
from flashrt_ros.contract.image.schema import COMPRESSED, ImagePart
from flashrt_ros.errors import ContractError, UnsupportedError
from flashrt_ros.runtime.buffers import BufferSpec
from flashrt_ros.runtime.policy import Port, Ports
from flashrt_ros.runtime.preview import CHUNK

if TYPE_CHECKING:
    from flashrt_ros.contract.contract import Contract
    from flashrt_ros.contract.schema import Observation

FIELD_SUFFIXES = {"position": ("position", "pos"), "velocity": ("velocity", "vel")}
"""How policies commonly end the name of an element, e.g. ``elbow.pos``."""


def check_ports(contract: Contract, ports: Ports, layout: Sequence[BufferSpec] = ()) -> None:
    """Compares keys, sizes, element names and units, and the action's coverage.

    Args:
        contract: One side.
        ports: The other.
        layout: The policy's buffers; without them dtypes are not compared.

    Raises:
        ContractError: Lists everything that does not fit, one line each.
    """
    faults: list[str] = []
    by_key = {port.key: port for port in ports.observations}
    given = {observation.key for observation in contract.observations}
    for observation in contract.observations:
        if observation.key in by_key:
            port = by_key[observation.key]
            if observation.image is not None:
                dtype = next((s.dtype for s in layout if s.name == port.buffer), None)
                faults += _image_faults(observation, observation.image, port, dtype)
            else:
                faults += _observation_faults(observation, port)
        else:
            near = difflib.get_close_matches(observation.key, list(by_key), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            faults.append(
                f"{observation.path}.key: expected a port of the policy "
                f"({', '.join(by_key)}), found {observation.key!r}{hint}"
            )
    faults += [
        f"observations: expected an entry for the policy's port {port.key!r}, found none"
        for port in ports.observations
        if port.required and port.key not in given
    ]
    faults += _action_faults(contract, ports.action)
    if layout and CHUNK not in {spec.name for spec in layout}:
        faults += [
            f"{output.path}.horizon: expected step, since this policy keeps no chunk of actions "
            "that are taken one after the other, found chunk"
            for output in contract.actions
            if output.is_chunk
        ]
    if faults:
        lines = "".join(f"\n  {_line(contract, fault)}{fault}" for fault in faults)
        raise ContractError(f"{contract.source} does not fit the policy:{lines}")


def _line(contract: Contract, fault: str) -> str:
    """Where in the file it is what a fault begins with, in words; empty where nobody knows."""
    path = fault.split(":")[0].split(" ")[0]
    while path and path not in contract.lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return f"line {contract.lines[path]}: " if path else ""


def cautions(contract: Contract) -> tuple[str, ...]:
    """What the contract allows and a careful reader would ask about; for logs and ``doctor``."""
    found: list[str] = []
    for output in contract.actions:
        for key, names, given in (
            ("limits", output.limit_names, output.limits),
            ("max_step", output.step_names, output.max_step),
        ):
            if missing := [name for name in names if name not in given]:
                found.append(f"{output.path}.{key}: none for {', '.join(missing)}")
        if not output.is_place and output.on_miss == "hold":
            found.append(
                f"{output.path}.on_miss: hold repeats a {output.field} while no action is there"
            )
        for part in (part for o in contract.observations for part in o.parts):
            if set(part.names) == set(output.names) and part.names != output.names:
                found.append(
                    f"{output.path}.names: the same as {part.path}.names in another order "
                    f"({', '.join(output.names)}; {', '.join(part.names)}): is each the policy's?"
                )
    positions = {i for o in contract.actions if o.is_place for i in o.index}
    checked = set(contract.start.index) if contract.start else set()
    if unchecked := sorted(positions - checked):
        found.append(f"start: the first command is not checked for action elements {unchecked}")
    return tuple(found)


def _observation_faults(observation: Observation, port: Port) -> list[str]:
    where = f"{observation.path} ({observation.key})"
    size = math.prod(port.shape)
    if observation.history is not None:
        if port.shape != observation.shape:
            return [
                f"{where}: expected shape {port.shape} for the policy, found {observation.shape} "
                "(steps of the history, elements)"
            ]
    elif sum(length > 1 for length in port.shape) > 1:
        return [f"{where}: expected a vector port, found shape {port.shape} in the policy"]
    elif observation.size != size:
        flag = ", presence flag included" if observation.present_flag else ""
        return [
            f"{where}: expected {size} elements for the policy, found {observation.size}{flag}"
        ]
    faults = []
    position = 0
    for part in observation.parts:
        wanted = port.names[position : position + len(part.names)]
        position += len(part.names)
        faults += _name_faults(f"{part.path}", wanted, part.names, part.elements, part.field)
        faults += _unit_faults(part.path, port.unit, part.unit)
    if observation.present_flag and port.names and not port.names[-1].endswith("present"):
        faults.append(
            f"{where}: expected a last element whose name ends in 'present' for the presence "
            f"flag, found {port.names[-1]!r} in the policy"
        )
    return faults


def _image_faults(
    observation: Observation, image: ImagePart, port: Port, dtype: torch.dtype | None
) -> list[str]:
    where = f"{image.path} ({observation.key})"
    faults = []
    if observation.shape != port.shape:
        channels, height, width = image.shape
        hints: dict[tuple[int, ...], str] = {
            (height, width, channels): "; the policy's port has its channels last, an image port "
            "has them first",
            (channels, width, height): "; height and width are interchanged",
        }
        hint = hints.get(port.shape[-3:], "")
        steps = "steps, " if observation.history is not None else ""
        faults.append(
            f"{where}: expected shape {port.shape} for the policy, found {observation.shape} "
            f"({steps}channels, height, width) as {image.color} after the steps{hint}"
        )
    if dtype is not None:
        floating = dtype.is_floating_point
        if not floating and (dtype != torch.uint8 or image.range != "byte"):
            faults.append(
                f"{image.path}.range: expected byte for the policy's {dtype} buffer (only uint8 "
                f"and floating ones take images), found {image.range}"
            )
    if image.depth is not None and port.unit and port.unit != image.depth.unit:
        faults.append(
            f"{image.path}.depth.unit: expected {port.unit!r} as the policy has it, found "
            f"{image.depth.unit!r}"
        )
    if image.type == COMPRESSED:
        try:
            require_pillow()
        except UnsupportedError as error:
            faults.append(f"{image.path}.type: {error}")
    return faults


def _action_faults(contract: Contract, port: Port) -> list[str]:
    size = math.prod(port.shape)
    faults = []
    covered = set(contract.unused_actions)
    for output in contract.actions:
        covered.update(output.index)
        beyond = [i for i in output.index if i >= size]
        if beyond:
            faults.append(
                f"{output.path}.index: expected elements of the policy's action (0 to {size - 1}),"
                f" found {beyond}"
            )
            continue
        wanted = tuple(port.names[i] for i in output.index) if port.names else ()
        faults += _name_faults(output.path, wanted, output.names, output.elements, output.field)
        faults += _unit_faults(output.path, port.unit, output.unit)
    faults += [
        f"unused_actions: expected elements of the policy's action (0 to {size - 1}), found {i}"
        for i in contract.unused_actions
        if i >= size
    ]
    commanded = {i for output in contract.actions for i in output.index}
    faults += [
        f"unused_actions: expected no element that an output commands, found {i}"
        for i in contract.unused_actions
        if i in commanded
    ]
    if missing := [i for i in range(size) if i not in covered]:
        names = [port.names[i] for i in missing] if port.names else missing
        faults.append(
            f"actions: expected an output for each of the action's {size} elements, found none "
            f"for {names}; list them under `unused_actions` if they go nowhere on purpose"
        )
    return faults


def _unit_faults(path: str, wanted: str, found: str) -> list[str]:
    """Nothing is converted, so that no factor is ever guessed: the units must be the same."""
    if not wanted or wanted == found:
        return []
    words = repr(found) if found else "none"
    return [f"{path}.unit: expected {wanted!r} as the policy has it, found {words}"]


def _name_faults(
    path: str, wanted: Sequence[str], names: Sequence[str], elements: Sequence[str], field: str
) -> list[str]:
    """Compares the policy's names, where it has some, with the contract's.

    ``elements`` must be the policy's names exactly; without it the robot's names are compared,
    with or without the field behind them.
    """
    if not wanted:
        return []
    if elements:
        good = tuple(elements) == tuple(wanted)
    else:
        suffixes = FIELD_SUFFIXES.get(field, (field,))
        good = all(
            want in {name, *(f"{name}.{suffix}" for suffix in suffixes)}
            for want, name in zip(wanted, names, strict=True)
        )
    if good:
        return []
    return [
        f"{path}.{'elements' if elements else 'names'}: expected {list(wanted)} as the policy "
        f"calls its elements, found {list(elements or names)}; where the robot's names differ, "
        "list the policy's under `elements`, in the same order"
    ]
