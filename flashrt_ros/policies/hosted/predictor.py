"""A hosted object as a chunk predictor over named buffers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from flashrt_ros.errors import InvalidArgumentError, SpecError
from flashrt_ros.policies.chunked import ACTION, ChunkPredictor
from flashrt_ros.policies.diffusion.history import History
from flashrt_ros.policies.hosted.description import (
    SAMPLED,
    HostedAction,
    HostedInput,
    HostedNoise,
    describe,
)
from flashrt_ros.policies.hosted.instruction import MASK, TOKENS, Instruction, Seen
from flashrt_ros.policies.hosted.probe import probe
from flashrt_ros.policies.hosted.sampling import BLOCKS_PER_PLAN, FedSampling
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Port

NOISE = "hosted.noise"


class HostedPredictor(ChunkPredictor):
    """Calls an object for a chunk; see ``HostedPolicy``, whose arguments it takes."""

    plan_kind = PlanKind.BESIDE
    may_run_plain = True

    def __init__(
        self,
        hosted: object,
        inputs: tuple[HostedInput, ...],
        action: HostedAction,
        *,
        call: str | Callable[..., torch.Tensor],
        drawn: HostedNoise | None,
        instruction: Instruction | None,
        normaliser: CheckpointNormaliser | None,
        module: nn.Module | None,
        name: str,
        settings: Mapping[str, object],
    ) -> None:
        self.hosted = hosted
        self.chunk_size = action.chunk_size
        self.task_observes = instruction is not None and instruction.observes
        self._inputs, self._action, self._drawn = inputs, action, drawn
        self._instruction, self._normaliser = instruction, normaliser
        self._name, self._settings = name, dict(settings)
        self._call_name = call if isinstance(call, str) else getattr(call, "__qualname__", "")
        self.called = self._found(call)
        if drawn is not None and drawn.argument != SAMPLED:
            self._check_argument(drawn.argument)
        parts = {"hosted": module if module is not None else self._weights()}
        if normaliser is not None:
            parts["normaliser"] = normaliser
        self._module = nn.ModuleDict(parts).eval()
        deep = {item.steps for item in inputs if item.steps > 1}
        if len(deep) > 1:
            raise InvalidArgumentError(
                f"inputs: expected one number of steps above 1, found {sorted(deep)}"
            )
        self.observes = bool(deep)
        self._history = History(
            max(deep, default=1) - 1,
            {item.buffer: (item.shape, item.dtype) for item in inputs if item.steps > 1},
        )
        buffers = [spec.name for spec in self.layout()]
        if len(set(buffers)) != len(buffers):
            raise SpecError(
                "inputs: expected keys that differ by more than case and punctuation, found "
                f"{[item.key for item in inputs]}"
            )

    @property
    def family(self) -> str:  # type: ignore[override]
        """The name that the user gave."""
        return f"hosted.{self._name}"

    def _found(self, call: str | Callable[..., torch.Tensor]) -> Callable[..., Any]:
        found = getattr(self.hosted, call, None) if isinstance(call, str) else call
        if not callable(found):
            raise InvalidArgumentError(
                f"hosted policy {self._name!r}: call: expected a callable, or the name of a "
                f"method of {type(self.hosted).__name__}, found {call!r}"
            )
        return found

    def _check_argument(self, argument: str) -> None:
        try:
            parameters = inspect.signature(self.called).parameters
        except (TypeError, ValueError):
            return
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if argument not in parameters and not takes_any:
            raise InvalidArgumentError(
                f"hosted policy {self._name!r}: noise: {self._call_name} takes no argument "
                f"{argument!r}, but {list(parameters)}; for an object that draws by itself say "
                f"argument={SAMPLED!r}"
            )

    def _weights(self) -> nn.Module:
        if isinstance(self.hosted, nn.Module):
            return self.hosted
        own = getattr(self.hosted, "__dict__", {})
        found = {name: value for name, value in own.items() if isinstance(value, nn.Module)}
        if not found:
            raise InvalidArgumentError(
                f"hosted policy {self._name!r}: expected an nn.Module, or an object with some as "
                f"attributes, found {type(self.hosted).__name__}; pass module= with all weights "
                "(nn.Module() if there are none)"
            )
        return nn.ModuleDict(found)

    def config(self) -> Mapping[str, object]:
        """All that the user said; weights and statistics are in the module."""
        cls = type(self.hosted)
        return {
            "type": self.family,
            "class": f"{cls.__module__}.{cls.__qualname__}",
            "call": self._call_name,
            "first_row": self._action.first_row,
            **describe(self._inputs, self._drawn),
            "instruction": None if self._instruction is None else self._instruction.to_dict(),
            "normalisation": None if self._normaliser is None else self._normaliser.modes(),
            "settings": self._settings,
        }

    def module(self) -> nn.Module:
        """The object's modules and the normalisation."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """Inputs, history, tokens, noise."""
        drawn: tuple[BufferSpec, ...] = ()
        if self._drawn is not None:
            drawn = noise.NOISE_SPECS
            if self._drawn.argument != SAMPLED:
                scratch = BufferSpec(NOISE, self._drawn.shape, torch.float32, Role.SCRATCH)
                drawn = (*drawn, scratch)
        return (
            *self._history.specs(),
            *drawn,
            *(BufferSpec(i.buffer, i.shape, i.dtype, Role.INPUT, i.unit) for i in self._inputs),
            *(() if self._instruction is None else self._instruction.specs()),
        )

    def observations(self) -> tuple[Port, ...]:
        """A port for each input; the task is none."""
        return tuple(Port(i.key, i.buffer, i.shape, i.names, i.unit) for i in self._inputs)

    def action(self) -> Port:
        """As given."""
        return Port(ACTION, ACTION, (self._action.size,), self._action.names, self._action.unit)

    def task_inputs(self) -> tuple[str, ...]:
        """Tokens and mask, if there is an instruction."""
        return () if self._instruction is None else (TOKENS, MASK)

    def encode_task(self, task: str, observations: Seen) -> Mapping[str, torch.Tensor]:
        """See ``Instruction.encode``."""
        return {} if self._instruction is None else self._instruction.encode(task, observations)

    def probe(self, device: torch.device) -> None:
        """Refuses an object that keeps something; see ``probe``."""
        probe(self, device)

    def reset_(self, state: Buffers) -> None:
        """Forgets the observations."""
        self._history.reset_(state)

    def observe_(self, state: Buffers, inputs: Buffers) -> None:
        """Takes in the observation of a control step."""
        self._history.observe_(state, inputs)

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Calls the object; see ``ChunkPredictor.predict``."""
        first = self._action.first_row
        found = self.call(state, inputs, outputs)
        chunk_HA.copy_(found.reshape(-1, self._action.size)[first : first + self.chunk_size])

    def call(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> torch.Tensor:
        """The object's answer, ``(1, H', A)`` or ``(H', A)``, in its own range.

        Raises:
            SpecError: It is of another shape.
        """
        batch = {item.key: self._seen(item, state, inputs) for item in self._inputs}
        if self._instruction is not None:
            batch[self._instruction.tokens_key] = inputs[TOKENS].unsqueeze(0)
            batch[self._instruction.mask_key] = inputs[MASK].unsqueeze(0)
        given: dict[str, torch.Tensor] = {}
        feeding: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if self._drawn is not None and self._drawn.argument == SAMPLED:
            feeding = FedSampling(state)
        elif self._drawn is not None:
            noise.normal_(outputs[NOISE], state, advance=False)
            given[self._drawn.argument] = outputs[NOISE]
        with feeding:
            found = self.called(batch, **given)
        rows = self._action.first_row + self.chunk_size
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        good = isinstance(shape, tuple) and len(shape) in (2, 3) and shape[:-2] in ((), (1,))
        if not good or shape[-1] != self._action.size or int(shape[-2]) < rows:
            raise SpecError(
                f"hosted policy {self._name!r}: {self._call_name}: expected a chunk of shape "
                f"(1, {rows} or more, {self._action.size}), found {shape}"
            )
        answer: torch.Tensor = found
        return answer

    def _seen(self, item: HostedInput, state: Buffers, inputs: Buffers) -> torch.Tensor:
        value = inputs[item.buffer]
        if item.steps > 1:
            value = self._history.with_present(state, item.buffer, value)
        if self._normaliser is not None and self._normaliser.has(item.key):
            value = self._normaliser.normalise(item.key, value)
        return value.unsqueeze(0)

    def restore(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions in the units of the port."""
        return actions if self._normaliser is None else self._normaliser.restore(actions)

    def adopt_(self, state: Buffers, outputs: Buffers) -> None:
        """Moves the noise on."""
        if self._drawn is not None:
            blocks = BLOCKS_PER_PLAN
            if self._drawn.argument != SAMPLED:
                blocks = noise.blocks_for(outputs[NOISE].numel())
            noise.advance_(state, blocks)
