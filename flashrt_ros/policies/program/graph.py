"""Runs the graph of an archive, operator by operator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.program.archive import Archive
from flashrt_ros.policies.program.operators import DEVICE, Tensor, arguments, operator, skips
from flashrt_ros.runtime.strict_json import shown


@dataclass(frozen=True)
class _Node:
    """One operator.

    Attributes:
        function: What is called.
        positional: Its arguments, tensors by their name.
        keywords: The same.
        results: Names of what it returns, None for what nobody reads.
        several: Whether it returns a tuple or list.
        done: Names that nobody reads after it.
    """

    function: Callable[..., Any]
    positional: Sequence[Any]
    keywords: Mapping[str, Any]
    results: tuple[str | None, ...]
    several: bool
    done: list[str]


class ProgramModule(nn.Module):
    """A program as a module: tensors in, a list of tensors out.

    Args:
        archive: Of which every operator must be one that programs may call.

    Attributes:
        inputs: How many tensors it takes.
        outputs: How many it returns.
        digest: SHA-256, in hex, of what is computed, weights left out.

    Raises:
        CheckpointError: The graph is ill-shaped, or does something that is not run here.
    """

    def __init__(self, archive: Archive) -> None:
        super().__init__()
        self._path = archive.path
        self._held: list[tuple[str, str]] = []
        try:
            graph = archive.program["graph_module"]["graph"]
            signature = archive.program["graph_module"]["signature"]
            self._inputs = self._read_inputs(archive, signature["input_specs"])
            self._outputs = self._read_outputs(signature["output_specs"])
            self._nodes = self._read_nodes(graph["nodes"])
            self.digest = _digest(graph["nodes"], signature)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"{archive.path}: expected a program, found a fault: {error!r}"
            ) from None
        self.inputs, self.outputs = len(self._inputs), len(self._outputs)
        self._check()

    def _read_inputs(self, archive: Archive, specs: Any) -> list[str]:
        inputs = []
        for spec in specs:
            kind, value = next(iter(spec.items()))
            if kind == "user_input":
                inputs.append(str(value["arg"]["as_tensor"]["name"]))
                continue
            if kind not in ("parameter", "buffer", "tensor_constant"):
                raise CheckpointError(f"{archive.path}: input of kind {kind!r} is not read here")
            key = value[f"{kind}_name"]
            found = archive.weights.get(key, archive.constants.get(key))
            if found is None:
                raise CheckpointError(f"{archive.path}: {kind} {shown(key)} is missing")
            held = f"tensor_{len(self._held)}"
            self.register_buffer(held, found)
            self._held.append((str(value["arg"]["name"]), held))
        return inputs

    def _read_outputs(self, specs: Any) -> list[str]:
        outputs = []
        for spec in specs:
            kind, value = next(iter(spec.items()))
            if kind != "user_output":
                raise CheckpointError(
                    f"{self._path}: output of kind {kind!r}: expected a program that returns what "
                    "it changes and writes to none of its inputs, weights or buffers"
                )
            outputs.append(str(value["arg"]["as_tensor"]["name"]))
        return outputs

    def _read_nodes(self, values: Any) -> list[_Node]:
        nodes: list[_Node] = []
        last: dict[str, int] = {}
        for value in values:
            target = value["target"]
            where = f"{self._path}: node {len(nodes)}"
            if isinstance(target, str) and skips(target):
                continue
            function = operator(where, target)
            positional, keywords = arguments(f"{where} ({target})", function, value["inputs"])
            for name in _names([positional, list(keywords.values())]):
                last[name] = len(nodes)
            results, several = _results(where, value["outputs"])
            nodes.append(_Node(function, positional, keywords, results, several, []))
        for name, index in last.items():
            if name not in self._outputs:
                nodes[index].done.append(name)
        return nodes

    def _check(self) -> None:
        known = {name for name, _ in self._held} | set(self._inputs)
        for index, node in enumerate(self._nodes):
            unknown = set(_names([node.positional, list(node.keywords.values())])) - known
            if unknown:
                raise CheckpointError(
                    f"{self._path}: node {index}: {sorted(unknown)} are used before they are made"
                )
            known |= {name for name in node.results if name is not None}
        if set(self._outputs) - known:
            raise CheckpointError(f"{self._path}: outputs are never made")

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Runs the graph.

        Args:
            tensors: ``inputs`` of them, read only.

        Returns:
            ``outputs`` of them; an input may be among them.
        """
        values: dict[str, Any] = {name: self.get_buffer(held) for name, held in self._held}
        values.update(zip(self._inputs, tensors, strict=True))
        device = tensors[0].device if tensors else torch.device("cpu")
        for node in self._nodes:
            found = node.function(
                *[_filled(value, values, device) for value in node.positional],
                **{key: _filled(value, values, device) for key, value in node.keywords.items()},
            )
            parts = found if node.several else (found,)
            for name, part in zip(node.results, parts, strict=False):
                if name is not None:
                    values[name] = part
            for name in node.done:
                values.pop(name, None)
        return [values[name] for name in self._outputs]


def _digest(nodes: Any, signature: Any) -> str:
    computed = [[node["target"], node["inputs"], node["outputs"]] for node in nodes]
    text = json.dumps([computed, signature], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _filled(value: Any, values: Mapping[str, Any], device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return values[value.name]
    if isinstance(value, list):
        return [_filled(one, values, device) for one in value]
    return device if value is DEVICE else value


def _names(value: Any) -> list[str]:
    if isinstance(value, Tensor):
        return [value.name]
    if isinstance(value, (list, tuple)):
        return [name for one in value for name in _names(one)]
    return []


def _results(where: str, values: Any) -> tuple[tuple[str | None, ...], bool]:
    if len(values) == 1 and "as_tensors" in values[0]:
        return tuple(str(one["name"]) for one in values[0]["as_tensors"]), True
    names = []
    for value in values:
        kind, one = next(iter(value.items()))
        if kind not in ("as_tensor", "as_none", "as_optional_tensor"):
            raise CheckpointError(f"{where}: result of kind {kind!r} is not read here")
        names.append(str(one["name"]) if kind == "as_tensor" else None)
    return tuple(names), len(names) > 1
