"""A policy whose every call is an exported program over named buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import read_tensors
from flashrt_ros.policies.program.archive import read_archive
from flashrt_ros.policies.program.graph import ProgramModule
from flashrt_ros.policies.program.manifest import INITIAL, Manifest, read_manifest
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.noise import COUNTER, KEY
from flashrt_ros.runtime.policy import Buffers, Policy, Ports


class ProgramPolicy(Policy):
    """Runs programs: each takes buffers, and what it returns is written to buffers in place.

    Args:
        manifest: Which buffers, and which program reads and writes which.
        programs: Name of the call to its module.
        initial: State buffer to its value at the start of an episode.
    """

    def __init__(
        self,
        manifest: Manifest,
        programs: Mapping[str, nn.Module],
        initial: Mapping[str, torch.Tensor],
    ) -> None:
        self._manifest = manifest
        self.plan_kind = manifest.plan_kind
        self.chunk_size = manifest.chunk_size
        self.n_action_steps = manifest.n_action_steps
        self.act_observes = manifest.act_observes
        start = nn.Module()
        self._initial = {name: f"value_{i}" for i, name in enumerate(initial)}
        for name, held in self._initial.items():
            start.register_buffer(held, initial[name])
        self._start = start
        self._programs = nn.ModuleDict({f"call_{name}": p for name, p in programs.items()})
        self._module = nn.ModuleDict({"programs": self._programs, "initial": start})
        for parameter in self._module.parameters():
            parameter.requires_grad_(False)

    @property
    def family(self) -> str:  # type: ignore[override]
        """The name of the policy that it was made from, as a program."""
        return f"program.{self._manifest.name}"

    @property
    def rate_hz(self) -> float | None:
        """Control steps a second that it is meant for; None where unknown."""
        return self._manifest.rate_hz

    def config(self) -> Mapping[str, object]:
        """The manifest, and what is computed."""
        digests = {name: str(program.digest) for name, program in self._programs.items()}
        return {**self._manifest.to_dict(), "programs": digests}

    def module(self) -> nn.Module:
        """All programs, and the initial state."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """The manifest's."""
        return self._manifest.buffers

    def ports(self) -> Ports:
        """The manifest's."""
        return self._manifest.ports

    def reset_(self, state: Buffers) -> None:
        """Writes the initial state."""
        for name, held in self._initial.items():
            state[name].copy_(self._start.get_buffer(held))

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Runs the program of that name."""
        self._run("act", {**state, **inputs, **outputs})

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Runs the program of that name."""
        self._run("plan", {**state, **inputs, **outputs})

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Runs the program of that name."""
        self._run("adopt", {**state, **inputs, **outputs})

    def _run(self, name: str, buffers: Buffers) -> None:
        call = self._manifest.calls[name]
        found = self._programs[f"call_{name}"](*[buffers[read] for read in call.reads])
        # Only now: what a program returns may be one of its inputs.
        for target, value in zip(call.writes, found, strict=True):
            buffers[target].copy_(value)


def load(directory: Path, trust: bool = False) -> ProgramPolicy:
    """Reads a directory with ``manifest.json`` and programs.

    Args:
        directory: Where they lie.
        trust: Let torch load what can only be read by unpickling, which can run any code.

    Raises:
        CheckpointError: A file is missing, damaged or contradicts another, or would have to be
            unpickled.
    """
    manifest = read_manifest(directory)
    programs = {
        name: load_program(directory / call.file, len(call.reads), len(call.writes), trust)
        for name, call in manifest.calls.items()
    }
    state = {
        spec.name: spec
        for spec in manifest.buffers
        if spec.role is Role.STATE and spec.name not in (KEY, COUNTER)
    }
    initial = read_tensors(directory / INITIAL) if state else {}
    for name, spec in state.items():
        value = initial.get(name)
        if value is None or tuple(value.shape) != spec.shape or value.dtype != spec.dtype:
            found = "none" if value is None else f"{value.dtype} of {tuple(value.shape)}"
            raise CheckpointError(
                f"{directory / INITIAL}: {name!r}: expected {spec.dtype} of {spec.shape}, found "
                f"{found}"
            )
    return ProgramPolicy(manifest, programs, {name: initial[name] for name in state})


def load_program(path: Path, reads: int, writes: int, trust: bool = False) -> nn.Module:
    """Reads one program.

    Args:
        path: The archive.
        reads: Tensors that it takes.
        writes: Tensors that it returns.
        trust: Let torch load what can only be read by unpickling.

    Raises:
        CheckpointError: As ``load``.
    """
    try:
        made = ProgramModule(read_archive(path))
    except CheckpointError:
        if not trust:
            raise
        return _Trusted(path)
    if (made.inputs, made.outputs) != (reads, writes):
        raise CheckpointError(
            f"{path}: expected {reads} inputs and {writes} outputs as in the manifest, found "
            f"{made.inputs} and {made.outputs}"
        )
    return made


class _Trusted(nn.Module):
    """A program that torch itself has loaded."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            self.program = torch.export.load(path).module()
        except Exception as error:
            raise CheckpointError(f"{path}: torch cannot load it: {error}") from error
        self.digest = hashlib.sha256(str(self.program.code).encode()).hexdigest()

    def train(self, mode: bool = True) -> _Trusted:
        """Nothing: how it computes was settled at the export, and torch refuses the question."""
        return self

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Runs it."""
        found = self.program(*tensors)
        return list(found) if isinstance(found, (tuple, list)) else [found]
