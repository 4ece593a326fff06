"""The network of a Diffusion Policy: encoders, denoiser, sampler.

Weight names are LeRobot's, below its ``diffusion.``.

Tensor suffixes: O observations, B batch, H horizon, A action, S state, E environment, D
conditioning, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from flashrt_ros.policies.diffusion.config import DiffusionConfig
from flashrt_ros.policies.diffusion.encoder import RgbEncoder
from flashrt_ros.policies.diffusion.schedule import Schedule
from flashrt_ros.policies.diffusion.unet import Unet
from flashrt_ros.policies.guidance import Prefix


class DiffusionNetwork(nn.Module):
    """Maps normalised observations and noise to normalised actions.

    Args:
        config: Sizes and options.
    """

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.config = config
        self.schedule = Schedule(config.schedule)
        if config.vision is not None:
            if config.use_separate_rgb_encoder_per_camera:
                encoders = [RgbEncoder(config.vision) for _ in range(config.cameras)]
                self.rgb_encoder: nn.Module = nn.ModuleList(encoders)
            else:
                self.rgb_encoder = RgbEncoder(config.vision)
        self.unet = Unet(
            config.unet,
            config.action_size,
            config.observation_width * config.n_obs_steps,
            self.schedule.timesteps,
        )

    def condition(
        self,
        state_OS: torch.Tensor,
        images_OCHW: Sequence[torch.Tensor],
        environment_OE: torch.Tensor | None,
    ) -> torch.Tensor:
        """Encodes the observations, the oldest first.

        Args:
            state_OS: ``(O, S)`` float32.
            images_OCHW: For each camera ``(O, 3, H, W)`` float32, of the encoder's ``kept_size``.
            environment_OE: ``(O, E)`` float32, None without one.

        Returns:
            ``(1, D)`` float32.
        """
        parts = [state_OS]
        if images_OCHW:
            parts += self._features(images_OCHW)
        if environment_OE is not None:
            parts.append(environment_OE)
        return torch.cat(parts, dim=-1).flatten().unsqueeze(0)

    def _features(self, images_OCHW: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if isinstance(self.rgb_encoder, nn.ModuleList):
            pairs = zip(self.rgb_encoder, images_OCHW, strict=True)
            return [encoder(image) for encoder, image in pairs]
        # One pass over all images, by observation and then by camera, which decides the bits.
        batch_BCHW = torch.stack(list(images_OCHW), dim=1).flatten(0, 1)
        return [self.rgb_encoder(batch_BCHW).view(self.config.n_obs_steps, -1)]

    def sample(
        self,
        condition_BD: torch.Tensor,
        noise_NBHA: torch.Tensor,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """Denoises a chunk; all steps are unrolled.

        Args:
            condition_BD: What ``condition`` returned.
            noise_NBHA: ``(schedule.n_draws, 1, H, A)`` float32, standard normal.
            prefix: What it is drawn to; None: nothing.

        Returns:
            ``(1, H, A)`` float32, normalised actions from the oldest observation on.
        """

        def predict(sample_BHA: torch.Tensor, step: int) -> torch.Tensor:
            return torch.as_tensor(self.unet(sample_BHA, step, condition_BD))

        if prefix is None:
            return self.schedule.sample(predict, noise_NBHA)
        return self.schedule.sample(self.schedule.guided(predict, prefix), noise_NBHA)
