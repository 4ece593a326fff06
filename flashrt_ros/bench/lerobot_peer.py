"""LeRobot itself on the same checkpoint, where it is installed: the peer that others compare with.

Our package never needs it. Everything is imported by name, since nothing here may depend on it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.policies.lerobot.changes import read_changes

_LIBRARIES: list[Any] = []


def installed(name: str = "lerobot") -> bool:
    """Whether LeRobot, or another package, can be imported."""
    return importlib.util.find_spec(name) is not None


def allow_any_torchvision() -> None:
    """Lets torchvision be imported that was built for another torch.

    Its import declares what two compiled operators make of shapes, and fails where they could not
    be loaded. No policy here calls them, so it is enough that they have a schema.
    """
    try:
        importlib.import_module("torchvision")
        return
    except RuntimeError:
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)
    importlib.import_module("torchvision")


@contextlib.contextmanager
def _zeros_on(device: torch.device) -> Iterator[None]:
    """Lets ``torch.zeros`` make its tensors on a device.

    LeRobot makes one on the host and moves it in each call of ACT, which cannot be captured.
    """
    plain = torch.zeros

    def zeros(*arguments: Any, **options: Any) -> torch.Tensor:
        return plain(*arguments, **{**options, "device": device})

    torch.zeros = zeros
    try:
        yield
    finally:
        torch.zeros = plain


class LeRobotPeer:
    """A checkpoint as LeRobot runs it: processor, ``select_action``, processor.

    What ``flashrt_ros.json`` changes is changed for LeRobot, too.

    Args:
        directory: Of the checkpoint.
        device: Where it runs, as torch names it.
    """

    def __init__(self, directory: Path, device: str) -> None:
        allow_any_torchvision()
        factory = importlib.import_module("lerobot.policies.factory")
        configs = importlib.import_module("lerobot.configs.policies")
        config = configs.PreTrainedConfig.from_pretrained(directory)
        config.device = device
        for key, value in read_changes(directory, config.type).items():
            setattr(config, key, value)
        # Else they are fetched only to be overwritten by the checkpoint's.
        config.pretrained_backbone_weights = None
        made = factory.get_policy_class(config.type).from_pretrained(directory, config=config)
        self.policy = made.to(device).eval()
        self._before, self._behind = factory.make_pre_post_processors(
            config,
            pretrained_path=str(directory),
            preprocessor_overrides={"device_processor": {"device": device}},
        )

    def reset(self) -> None:
        """Begins an episode: the next step plans."""
        self.policy.reset()

    def network(self, observation: Mapping[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Returns the call that predicts a chunk from inputs that lie on the device already.

        Args:
            observation: Name to tensor on the host, without a batch; a history is full of it.
        """
        batch = self._before(dict(observation))
        device = next(self.policy.parameters()).device
        if self.policy.config.type != "diffusion":
            predict = self.policy.predict_action_chunk

            def chunk() -> torch.Tensor:
                with _zeros_on(device):
                    return torch.as_tensor(predict(batch))

            return chunk
        config = self.policy.config
        images = list(config.image_features)
        seen = {
            name: value.unsqueeze(1).repeat_interleave(config.n_obs_steps, 1)
            for name, value in batch.items()
            if name in config.input_features and name not in images
        }
        if images:
            cameras = torch.stack([batch[name] for name in images], dim=1)
            seen["observation.images"] = cameras.unsqueeze(1).repeat_interleave(
                config.n_obs_steps, 1
            )
        size = (1, config.horizon, config.action_feature.shape[0])
        noise = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(device)
        return lambda: torch.as_tensor(self.policy.diffusion.generate_actions(seen, noise=noise))

    @torch.no_grad()
    def step(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the action ``(A,)`` of one control step, on the host.

        Args:
            observation: Name to tensor on the host, without a batch.
        """
        action: torch.Tensor = self._behind(
            self.policy.select_action(self._before(dict(observation)))
        )
        return action[0]
