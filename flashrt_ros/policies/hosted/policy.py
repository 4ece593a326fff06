"""``HostedPolicy``: any object that predicts a chunk, run by this runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.guidance import GuidanceConfig
from flashrt_ros.policies.hosted.description import HostedAction, HostedInput, HostedNoise
from flashrt_ros.policies.hosted.instruction import Instruction
from flashrt_ros.policies.hosted.predictor import HostedPredictor
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser
from flashrt_ros.policies.relative import RelativeActions
from flashrt_ros.policies.splice import Splice


class HostedPolicy(ChunkedPolicy):
    """Runs an object whose chunk is a function of observation and noise alone.

    Queue, history of observations, noise and normalisation are ours and state; the object keeps
    nothing. ``probe``, called when a session is made, refuses one that does and names what it
    keeps. On CUDA the plan is captured if it can be; if not, it is called, and the session's
    ``plain`` names the operation that stood in the way.

    Args:
        hosted: The object; all its weights are in nn.Modules, itself or its attributes.
        inputs: What it reads, in the order of the batch.
        action: What comes out.
        n_action_steps: Rows taken before the next plan; None takes the whole chunk.
        call: Name of its method, or a callable, called with the batch (key to tensor, new at each
            call, batch size 1) and the noise, that returns ``(1, H, A)``.
        noise: How it samples; None for one that does not.
        instruction: How the task text gets into the batch; None where it does not.
        normaliser: Of inputs and action; None where the object does that itself.
        module: Its weights, where they are not found by themselves.
        name: Name of the family, part of the state id.
        settings: JSON values that shape its computation, part of the state id.
        splice: How chunks are joined; None is a queue.
        relative: What makes actions absolute that are relative to the state of the plan.
        guidance: Options of real-time chunking: the object is then called with a ``Prefix`` more,
            ``prefix``, which its sampler gives to ``guide`` or ``guide_clean`` of
            ``policies/guidance.py`` in each step. Not for ensembles.

    Raises:
        InvalidArgumentError: An argument does not fit the object, or another one.
        SpecError: Two inputs would have one buffer.
    """

    def __init__(
        self,
        hosted: object,
        inputs: Sequence[HostedInput],
        action: HostedAction,
        *,
        n_action_steps: int | None = None,
        call: str | Callable[..., torch.Tensor] = "predict_action_chunk",
        noise: HostedNoise | None = None,
        instruction: Instruction | None = None,
        normaliser: CheckpointNormaliser | None = None,
        module: nn.Module | None = None,
        name: str = "object",
        settings: Mapping[str, object] | None = None,
        splice: Splice | None = None,
        relative: RelativeActions | None = None,
        guidance: GuidanceConfig | None = None,
    ) -> None:
        if guidance is not None and splice is not None:
            raise InvalidArgumentError(
                f"hosted policy {name!r}: guidance: expected chunks to be joined by a queue, "
                f"found {type(splice).__name__}"
            )
        predictor = HostedPredictor(
            hosted,
            tuple(inputs),
            action,
            call=call,
            drawn=noise,
            instruction=instruction,
            normaliser=normaliser,
            module=module,
            name=name,
            settings=settings or {},
            guidance=guidance,
            relative=relative,
        )
        super().__init__(predictor, n_action_steps, splice, relative=relative)
