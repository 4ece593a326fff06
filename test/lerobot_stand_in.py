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


class FlowPolicy(nn.Module):
    """Reads state, camera and words; integrates noise for two steps, cut to the action's size."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.see = nn.Linear(S + 3, 12)
            self.read = nn.Embedding(200, 12)
            self.flow = nn.Linear(12 + WIDE, WIDE)
        self.config = config
        self._action_queue: list[torch.Tensor] = []

    @classmethod
    def from_pretrained(cls, directory: Path, config: Any) -> FlowPolicy:
        if os.environ.get("HF_HUB_OFFLINE") != "1":
            raise ConnectionError("would have downloaded something")
        if config.broken:
            raise OSError("somebody/model is not a local folder\nand more")
        return cls(config)

    def predict_action_chunk(self, batch: dict[str, Any], **kwargs: Any) -> torch.Tensor:
        self.eval()
        words = self.read(batch["observation.language.tokens"])
        mask = batch["observation.language.attention_mask"]
        assert mask.dtype == torch.bool
        seen = torch.cat((batch[STATE], batch[FRONT].mean((2, 3))), -1)
        seen = self.see(seen) + (words * mask.unsqueeze(-1)).mean(1)
        x: torch.Tensor = kwargs["noise"]
        for _ in range(2):
            given = torch.cat((seen.unsqueeze(1).expand(-1, x.shape[1], -1), x), -1)
            x = x + 0.5 * self.flow(given)
        return x[:, :, :A]


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
