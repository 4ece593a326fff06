"""Every tensor of a checkpoint has a place and every place a tensor; else nothing is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.weights import load_into


def net() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    module.register_buffer("table", torch.ones(4), persistent=False)
    return module


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    found = {
        f"model.{k}": torch.randn(v.shape, generator=generator)
        for k, v in net().state_dict().items()
    }
    return {**found, "model.training_only.w": torch.zeros(1)}


def test_weights_are_loaded_in_any_float_that_widens() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = {name: value.to(dtype) for name, value in tensors().items()}
        module = net()
        load_into(module, given, "model.", ("model.training_only.*",))
        for name, value in module.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, given[f"model.{name}"].float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.1.bias"), r"'model.1.bias' of shape \(2,\) is missing"),
        (
            lambda t: t.update({"model.0.bias": torch.zeros(4)}),
            r"expected shape \(3,\), found \(4,\)",
        ),
        (
            lambda t: t.update({"model.0.bias": torch.zeros(3).double()}),
            "float32, found torch.float64",
        ),
        (lambda t: t.update({"model.0.bias": torch.zeros(3).int()}), "found torch.int32"),
        (
            lambda t: t["model.1.weight"][0].fill_(float("nan")),
            "'model.1.weight': expected finite",
        ),
        (lambda t: t.update({"model.2.bias": torch.zeros(3)}), "'model.2.bias' is left over"),
        (lambda t: t.update({"ema.0.bias": torch.zeros(3)}), "'ema.0.bias' is left over"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_loaded(change: Any, words: str) -> None:
    given = tensors()
    change(given)
    module = net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(CheckpointError, match=words):
        load_into(module, given, "model.", ("model.training_only.*",))
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
