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
from flashrt_ros.policies.guidance import GuidanceConfig, Prefix
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
from flashrt_ros.policies.real_time import RealTimeChunking
from flashrt_ros.policies.relative import RelativeActions
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
        guidance: GuidanceConfig | None = None,
        relative: RelativeActions | None = None,
    ) -> None:
        self.hosted = hosted
        self.chunk_size = action.chunk_size
        self.task_observes = instruction is not None and instruction.observes
        self._inputs, self._action, self._drawn = inputs, action, drawn
        self._instruction, self._normaliser = instruction, normaliser
        self._name, self._settings = name, dict(settings)
        self._relative, self._real_time = relative, None
        if guidance is not None:
            if action.first_row:
                raise InvalidArgumentError(
                    f"hosted policy {name!r}: guidance: expected first_row 0, found "
                    f"{action.first_row}: rows before the present one would be drawn to nothing"
                )
            self._real_time = RealTimeChunking(guidance, action.chunk_size, action.size)
        self._call_name = call if isinstance(call, str) else getattr(call, "__qualname__", "")
        self.called = self._found(call)
        if drawn is not None and drawn.argument != SAMPLED:
            self._check_argument("noise", drawn.argument)
        if guidance is not None:
            self._check_argument("guidance", "prefix")
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

    def _check_argument(self, reason: str, argument: str) -> None:
        try:
            parameters = inspect.signature(self.called).parameters
        except (TypeError, ValueError):
            return
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if argument not in parameters and not takes_any:
            hint = f"; for an object that draws by itself say argument={SAMPLED!r}"
            raise InvalidArgumentError(
                f"hosted policy {self._name!r}: {reason}: {self._call_name} takes no argument "
                f"{argument!r}, but {list(parameters)}{hint if reason == 'noise' else ''}"
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
            **({} if self._real_time is None else {"rtc_config": self._real_time.config()}),
        }

    def module(self) -> nn.Module:
        """The object's modules and the normalisation."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """Inputs, history, tokens, noise, the chunk under way where plans are drawn to it."""
        drawn: tuple[BufferSpec, ...] = ()
        if self._drawn is not None:
            drawn = noise.NOISE_SPECS
            if self._drawn.argument != SAMPLED:
                scratch = BufferSpec(NOISE, self._drawn.shape, torch.float32, Role.SCRATCH)
                drawn = (*drawn, scratch)
        return (
            *self._history.specs(),
            *(() if self._real_time is None else self._real_time.specs()),
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
        """Forgets the observations, and the chunk under way."""
        self._history.reset_(state)
        if self._real_time is not None:
            self._real_time.reset_(state)

    def observe_(self, state: Buffers, inputs: Buffers) -> None:
        """Takes in the observation of a control step."""
        self._history.observe_(state, inputs)

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Calls the object; see ``ChunkPredictor.predict``."""
        first = self._action.first_row
        found = self.call(state, inputs, outputs, self._prefix(state, inputs))
        chunk_HA.copy_(found.reshape(-1, self._action.size)[first : first + self.chunk_size])
        if self._real_time is not None:
            self._real_time.keep_(outputs, chunk_HA)

    def _prefix(self, state: Buffers, inputs: Buffers) -> Prefix | None:
        if self._real_time is None:
            return None
        shift_A = None
        if self._relative is not None:
            shift_A = self._relative.drift(state, inputs)
            if self._normaliser is not None:
                shift_A = self._normaliser.action.normalise_difference(shift_A)
        return self._real_time.prefix(state, inputs, shift_A)

    def trial_prefix(self, device: torch.device) -> Prefix | None:
        """Any rows, looked at throughout, for calls that find out what the object does."""
        if self._real_time is None:
            return None
        rows_HA = torch.zeros(self.chunk_size, self._action.size, device=device)
        weights_H = torch.ones(self.chunk_size, device=device)
        return Prefix(rows_HA, weights_H, self._real_time.options.max_guidance_weight)

    def call(
        self, state: Buffers, inputs: Buffers, outputs: Buffers, prefix: Prefix | None
    ) -> torch.Tensor:
        """The object's answer, ``(1, H', A)`` or ``(H', A)``, in its own range.

        Args:
            state: Read only.
            inputs: Read only.
            outputs: Its scratch buffers.
            prefix: What a guided object is drawn to; None for others.

        Raises:
            SpecError: It is of another shape.
        """
        batch = {item.key: self._seen(item, state, inputs) for item in self._inputs}
        if self._instruction is not None:
            batch[self._instruction.tokens_key] = inputs[TOKENS].unsqueeze(0)
            batch[self._instruction.mask_key] = inputs[MASK].unsqueeze(0)
        given: dict[str, torch.Tensor | Prefix] = {} if prefix is None else {"prefix": prefix}
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
        """Moves the noise on; the chunk is the one under way."""
        if self._real_time is not None:
            self._real_time.adopt_(state, outputs)
        if self._drawn is not None:
            blocks = BLOCKS_PER_PLAN
            if self._drawn.argument != SAMPLED:
                blocks = noise.blocks_for(outputs[NOISE].numel())
            noise.advance_(state, blocks)
