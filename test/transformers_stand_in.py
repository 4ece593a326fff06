"""As much of transformers as benchmarks of hybrids call, computed by our own pass for training.

It keeps no state: its caches hold tokens, and each call runs all of them. Which of two functions
it takes at each call is recorded, as the real one takes a kernel or torch.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.bench.transformers_peer import CONFIGURATION, FUNCTIONS, MODELING
from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.parallel import hidden_values

CHUNK = 64
CALLS: list[str] = []


class Cache:
    def __init__(self, config: object = None, max_cache_len: int = 0) -> None:
        self.tokens: list[int] = []


class Model(nn.Module):
    """Weights under the published names; ``lm_head`` is there whether it is tied or not."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        values = dict(vars(config))
        rope = values.pop("rope_parameters")
        for name in ("num_hidden_layers", "max_position_embeddings"):
            del values[name]
        rotary_dim = int(rope["partial_rotary_factor"] * values["head_dim"])
        values |= {"rope_theta": rope["rope_theta"], "rotary_dim": rotary_dim}
        hybrid = HybridModel(
            ModelConfig(**{**values, "layer_types": tuple(values["layer_types"])})
        )
        self.model = hybrid.model
        self.lm_head = nn.Linear(values["hidden_size"], values["vocab_size"], bias=False)
        self._hybrid = [hybrid]  # not a part of its own: it shares the trunk

    def forward(
        self,
        input_ids: torch.Tensor,
        use_cache: bool = False,
        past_key_values: Cache | None = None,
        logits_to_keep: int = 0,
    ) -> SimpleNamespace:
        cache = past_key_values or Cache()
        cache.tokens += input_ids[0].tolist()
        modeling: Any = sys.modules[MODELING]
        modeling.torch_chunk_gated_delta_rule()
        (hybrid,) = self._hybrid
        count = len(cache.tokens)
        embedded_TBD = hybrid.embed(torch.tensor(cache.tokens)).unsqueeze(1)
        embedded_TBD = functional.pad(embedded_TBD, (0, 0, 0, 0, 0, -count % CHUNK))
        hidden_TD = hidden_values(hybrid, embedded_TBD, CHUNK)[:count, 0]
        logits_TV = self.lm_head(hidden_TD[-(logits_to_keep or input_ids.shape[1]) :])
        return SimpleNamespace(logits=logits_TV.unsqueeze(0), past_key_values=cache)


def _choice(name: str, kernel: bool) -> Callable[[], None]:
    def plain() -> None:
        CALLS.append("torch")

    def implementation() -> None:
        CALLS.append("kernel")

    plain.__name__ = plain.__qualname__ = name
    implementation.__module__ = "fla.ops" if kernel else MODELING

    @functools.wraps(plain)
    def wrapped() -> None:
        implementation()

    return wrapped


def install(monkeypatch: pytest.MonkeyPatch, model: type[nn.Module] = Model) -> types.ModuleType:
    """Puts it in the place of transformers; returns its module of functions."""
    CALLS.clear()
    top = types.ModuleType("transformers")
    top.__spec__ = ModuleSpec("transformers", None)
    top.__dict__.update(__version__="5.17.0", StaticCache=Cache)
    modeling = types.ModuleType(MODELING)
    modeling.__dict__["Qwen3_5ForCausalLM"] = model
    for name in FUNCTIONS:
        modeling.__dict__[name] = _choice(name, kernel="delta_rule" in name)
    configuration = types.ModuleType(CONFIGURATION)
    configuration.__dict__["Qwen3_5TextConfig"] = SimpleNamespace
    for module in (top, modeling, configuration):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return modeling


def remove(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes transformers absent, whether it is installed or not."""
    monkeypatch.setitem(sys.modules, "transformers", None)
