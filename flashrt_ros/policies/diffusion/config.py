"""All that shapes a Diffusion Policy besides its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.diffusion.encoder import VisionConfig
from flashrt_ros.policies.diffusion.schedule import ScheduleConfig
from flashrt_ros.policies.diffusion.unet import UnetConfig


@dataclass(frozen=True)
class DiffusionConfig:
    """Sizes and options; the names are LeRobot's where it has them.

    Attributes:
        state_size: Elements of the robot's state.
        environment_size: Elements of the environment's state; 0 for none.
        cameras: Images that are read.
        action_size: A.
        n_obs_steps: Observations that a plan reads, the present one included.
        horizon: Rows that are denoised; the first belongs to the oldest of those observations.
        n_action_steps: Rows that are taken before the next plan.
        use_separate_rgb_encoder_per_camera: Each camera has an encoder of its own.
        unet: The denoiser.
        schedule: The sampler.
        vision: The image encoder; None without cameras.

    Raises:
        InvalidArgumentError: They contradict each other; names the option.
    """

    state_size: int
    environment_size: int
    cameras: int
    action_size: int
    n_obs_steps: int
    horizon: int
    n_action_steps: int
    use_separate_rgb_encoder_per_camera: bool
    unet: UnetConfig
    schedule: ScheduleConfig
    vision: VisionConfig | None = None

    def __post_init__(self) -> None:
        if not self.cameras and not self.environment_size:
            raise InvalidArgumentError(
                "observations: expected an image or the environment's state, found neither"
            )
        if bool(self.cameras) != (self.vision is not None):
            raise InvalidArgumentError(
                f"vision: expected options if there are cameras, and only then; found "
                f"{self.cameras} cameras"
            )
        factor = 2 ** len(self.unet.down_dims)
        if self.horizon < 1 or self.horizon % factor:
            raise InvalidArgumentError(
                f"horizon: expected a multiple of {factor}, since there are "
                f"{len(self.unet.down_dims)} down_dims, found {self.horizon}"
            )
        if not 1 <= self.n_obs_steps <= self.horizon:
            raise InvalidArgumentError(
                f"n_obs_steps: expected 1 to horizon ({self.horizon}), found {self.n_obs_steps}"
            )
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise InvalidArgumentError(
                f"n_action_steps: expected 1 to {self.chunk_size} (horizon - n_obs_steps + 1), "
                f"found {self.n_action_steps}"
            )

    @property
    def chunk_size(self) -> int:
        """Rows from the present observation on."""
        return self.horizon - self.n_obs_steps + 1

    @property
    def observation_width(self) -> int:
        """Width of the conditioning by one observation."""
        image = self.vision.feature_dim if self.vision is not None else 0
        return self.state_size + self.cameras * image + self.environment_size

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""

        def plain(value: object) -> object:
            if isinstance(value, Mapping):
                return {key: plain(item) for key, item in value.items()}
            return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value

        return {key: plain(value) for key, value in dataclasses.asdict(self).items()}
