"""Real-time chunking inside LeRobot's samplers: the place of its ``RTCProcessor``.

``huggingface/lerobot:src/lerobot/policies/rtc/modeling_rtc.py`` guides SmolVLA, pi0 and pi05 by a
chunk of varying length and a delay on the host, and takes the denoiser's Jacobian for the
identity. Their samplers ask an object for each velocity and pass on what they were given, in
releases 0.4 and 0.6 alike. Here that object is this one, which keeps nothing: rows and weights
come with each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from flashrt_ros.errors import UnsupportedError
from flashrt_ros.policies.guidance import Prefix, guide


class FlowGuide:
    """What LeRobot's flow samplers call for each velocity.

    Args:
        most: Upper limit of the weight of a correction.
    """

    def __init__(self, most: float) -> None:
        self._most = most

    def denoise_step(
        self,
        x_t: torch.Tensor,
        prev_chunk_left_over: torch.Tensor,
        inference_delay: torch.Tensor,
        time: float,
        original_denoise_step_partial: Callable[[torch.Tensor], torch.Tensor],
        execution_horizon: object = None,
    ) -> torch.Tensor:
        """The guided velocity; the names are LeRobot's.

        Args:
            x_t: Sample ``(1, H, W)``, W the width that actions are padded to.
            prev_chunk_left_over: Rows of the prefix ``(H, A)``; the padding is drawn to 0, which
                it was in training.
            inference_delay: Weights of the rows ``(H,)``.
            time: From 1, all noise, to 0.
            original_denoise_step_partial: The network: a sample to ``noise - clean``.
            execution_horizon: Not used; it is in the weights.
        """
        missing = x_t.shape[-1] - prev_chunk_left_over.shape[-1]
        rows = functional.pad(prev_chunk_left_over, (0, missing)).unsqueeze(0)
        prefix = Prefix(rows, inference_delay, self._most)
        return -guide(x_t, 1 - time, lambda x: -original_denoise_step_partial(x), prefix)

    def is_debug_enabled(self) -> bool:
        """LeRobot's record of each step would be state that no capsule has."""
        return False


class GuidedCall:
    """Calls a policy of LeRobot with a prefix.

    Args:
        policy: Its sampler will ask a ``FlowGuide`` from now on.
        most: Upper limit of the weight of a correction.

    Raises:
        UnsupportedError: Its sampler has no place for one, or its answers are not in the range of
            the sampler.
    """

    def __init__(self, policy: Any, most: float) -> None:
        config: Any = policy.config
        model: Any = getattr(policy, "model", None)
        if not hasattr(model, "rtc_processor") or not hasattr(config, "rtc_config"):
            raise UnsupportedError(
                f"rtc_config: expected a sampler of LeRobot that can be guided, found none in "
                f"{type(policy).__name__} of this release; switch it off"
            )
        if getattr(config, "adapt_to_pi_aloha", False):
            raise UnsupportedError(
                "rtc_config: expected adapt_to_pi_aloha to be off, since it changes a chunk "
                "behind the sampler, which then cannot be drawn to it; switch one of them off"
            )
        # Gradients are those of the sample alone.
        policy.requires_grad_(False)
        config.rtc_config = SimpleNamespace(enabled=True)
        model.rtc_processor = FlowGuide(most)
        self._policy = policy

    def __call__(
        self, batch: Mapping[str, torch.Tensor], *, prefix: Prefix, **given: torch.Tensor
    ) -> torch.Tensor:
        """A chunk ``(1, H, A)``; see ``HostedPolicy``."""
        answer: torch.Tensor = self._policy.predict_action_chunk(
            batch,
            prev_chunk_left_over=prefix.rows,
            inference_delay=prefix.weights_H,
            **given,
        )
        return answer
