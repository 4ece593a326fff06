"""As much of LeRobot as the adapter calls, with a small network behind the same interface.

pi0 and pi05 of LeRobot 0.4 ask for a transformers that no registry has, and are built only in
their full size; so their adapter is tested against this. SmolVLA itself is in
``test_hosted_oracle.py``.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from language_files import WIDE, A, S
from lerobot_files import FRONT, STATE
from torch import nn


class Sampler(nn.Module):
    """Integrates noise for two steps, from 1 to 0 as LeRobot does, and asks who guides it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.see = nn.Linear(S + 3, 12)
            self.read = nn.Embedding(200, 12)
            self.flow = nn.Linear(12 + WIDE, WIDE)
        self.config = config
        self.rtc_processor: Any = None

    def velocity(self, seen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        given = torch.cat((seen.unsqueeze(1).expand(-1, x.shape[1], -1), x), -1)
        return -torch.as_tensor(self.flow(given))

    def sample(self, seen: torch.Tensor, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        for step in range(2):
            if getattr(getattr(self.config, "rtc_config", None), "enabled", False):
                v = self.rtc_processor.denoise_step(
                    x_t=x,
                    prev_chunk_left_over=kwargs.get("prev_chunk_left_over"),
                    inference_delay=kwargs.get("inference_delay"),
                    time=1.0 - 0.5 * step,
                    original_denoise_step_partial=lambda x: self.velocity(seen, x),
                    execution_horizon=kwargs.get("execution_horizon"),
                )
            else:
                v = self.velocity(seen, x)
            x = x - 0.5 * v
        return x


class FlowPolicy(nn.Module):
    """Reads state, camera and words; samples, cut to the action's size."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.model = Sampler(config)
        self.config = config
        self._action_queue: list[torch.Tensor] = []

    @classmethod
    def from_pretrained(cls, directory: Path, config: Any) -> FlowPolicy:
        if os.environ.get("HF_HUB_OFFLINE") != "1":
            raise ConnectionError("would have downloaded something")
        if config.broken:
            raise OSError("somebody/model is not a local folder\nand more")
        return cls(config)

    def see(self, batch: dict[str, Any]) -> torch.Tensor:
        words = self.model.read(batch["observation.language.tokens"])
        mask = batch["observation.language.attention_mask"]
        assert mask.dtype == torch.bool
        seen = torch.cat((batch[STATE], batch[FRONT].mean((2, 3))), -1)
        return torch.as_tensor(self.model.see(seen) + (words * mask.unsqueeze(-1)).mean(1))

    def predict_action_chunk(self, batch: dict[str, Any], **kwargs: Any) -> torch.Tensor:
        self.eval()
        return self.model.sample(self.see(batch), kwargs.pop("noise"), **kwargs)[:, :, :A]


class _Config(types.SimpleNamespace):
    @classmethod
    def from_pretrained(cls, directory: Path) -> _Config:
        values = json.loads((directory / "config.json").read_text())
        return cls(**{"broken": False, **values})


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stand-in where LeRobot and transformers would be imported from."""
    made = {
        "lerobot": {"__version__": "0.4.4"},
        "transformers": {"__version__": "4.57.6"},
        "lerobot.configs": {},
        "lerobot.configs.policies": {"PreTrainedConfig": _Config},
        "lerobot.policies": {},
        "lerobot.policies.factory": {"get_policy_class": lambda kind: FlowPolicy},
    }
    for name, content in made.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


def remove(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes LeRobot impossible to import."""
    monkeypatch.setitem(sys.modules, "lerobot", None)
