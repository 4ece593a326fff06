"""Pins the residual networks: weight names, sizes and arithmetic, which checkpoints rely on.

The reference is written straight from the paper's table with ``torch.nn.functional`` and the
weights by name, for both kinds of block. Names are torchvision's; the counts are those that
torchvision publishes, less the classifier.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.resnet import (
    STAGES,
    FrozenBatchNorm,
    Norm,
    feature_channels,
    group_norm,
    make_resnet,
)

PARAMETERS = {
    "resnet18": 11_689_512 - 513_000,
    "resnet34": 21_797_672 - 513_000,
    "resnet50": 25_557_032 - 2_049_000,
    "resnet101": 44_549_160 - 2_049_000,
    "resnet152": 60_192_808 - 2_049_000,
}


def made(name: str, norm: Norm, *, dilate_last: bool = False) -> nn.Sequential:
    """A network whose every number matters: no statistic is 0 or 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = make_resnet(name, norm, dilate_last=dilate_last).eval()
        for key, tensor in net.state_dict().items():
            if key.endswith(("running_var", "weight")) and tensor.ndim == 1:
                tensor.uniform_(0.5, 1.5)
            elif key.endswith(("running_mean", "bias")):
                tensor.normal_(0.0, 0.3)
    return net


def reference(name: str, net: nn.Sequential, x: torch.Tensor, norm: str) -> torch.Tensor:
    """The same network, over the weights by name."""
    w = net.state_dict()

    def normed(x: torch.Tensor, key: str) -> torch.Tensor:
        if norm == "group":
            weight, bias = w[f"{key}.weight"], w[f"{key}.bias"]
            return functional.group_norm(x, len(weight) // 16, weight, bias)
        mean, var = w[f"{key}.running_mean"], w[f"{key}.running_var"]
        return functional.batch_norm(x, mean, var, w[f"{key}.weight"], w[f"{key}.bias"])

    def conv(x: torch.Tensor, key: str, stride: int = 1) -> torch.Tensor:
        kernel = w[f"{key}.weight"]
        return functional.conv2d(x, kernel, None, stride, kernel.shape[-1] // 2)

    x = functional.relu(normed(conv(x, "conv1", 2), "bn1"))
    x = functional.max_pool2d(x, 3, 2, 1)
    deep, counts = STAGES[name]
    for stage, count in enumerate(counts, 1):
        for index in range(count):
            key = f"layer{stage}.{index}"
            stride = 2 if stage > 1 and index == 0 else 1
            strides = (1, stride, 1) if deep else (stride, 1)
            y = x
            for number, step in enumerate(strides, 1):
                y = normed(conv(y, f"{key}.conv{number}", step), f"{key}.bn{number}")
                y = functional.relu(y) if number < len(strides) else y
            if f"{key}.downsample.0.weight" in w:
                x = normed(conv(x, f"{key}.downsample.0", stride), f"{key}.downsample.1")
            x = functional.relu(y + x)
    return x


@pytest.mark.parametrize("name", STAGES)
def test_parameters_are_those_of_torchvision(name: str) -> None:
    with torch.device("meta"):
        net = make_resnet(name, nn.BatchNorm2d)
    assert sum(p.numel() for p in net.parameters()) == PARAMETERS[name]
    keys = set(net.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight"} <= keys
    assert {"layer2.0.downsample.0.weight", "layer4.1.bn2.bias"} <= keys
    assert ("layer1.0.downsample.0.weight" in keys) == STAGES[name][0]


@pytest.mark.parametrize(("norm", "make"), [("group", group_norm), ("frozen", FrozenBatchNorm)])
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_maps_are_the_references(name: str, norm: str, make: Norm) -> None:
    net = made(name, make)
    image = torch.rand(2, 3, 70, 45, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = net(image)
        expected = reference(name, net, image, norm)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max())
        # One small weight far from the end is not lost.
        net.state_dict()["layer1.0.bn1.bias"].add_(0.1)
        assert not torch.allclose(net(image), expected, rtol=1e-3)
    assert found.shape == (2, feature_channels(name), 3, 2)


def test_batch_norm_that_is_frozen_gives_the_values_of_one_in_evaluation() -> None:
    frozen, usual = made("resnet18", FrozenBatchNorm), made("resnet18", nn.BatchNorm2d)
    missing, unknown = usual.load_state_dict(frozen.state_dict(), strict=False)
    assert not unknown
    assert all(key.endswith("num_batches_tracked") for key in missing)
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        expected = usual(image)
        torch.testing.assert_close(frozen(image), expected, rtol=1e-4, atol=1e-4)
    assert not list(frozen[1].parameters())


def test_a_dilated_last_stage_keeps_its_resolution() -> None:
    plain, dilated = (made("resnet50", group_norm, dilate_last=d) for d in (False, True))
    with torch.no_grad():
        image = torch.rand(1, 3, 64, 96)
        assert plain(image).shape == (1, 2048, 2, 3)
        assert dilated(image).shape == (1, 2048, 4, 6)
    assert set(plain.state_dict()) == set(dilated.state_dict())
    dilations = [block.conv2.dilation[0] for block in dilated.layer4]
    assert dilations == [1, 2, 2]


def test_without_names_its_parts_are_numbered() -> None:
    with torch.device("meta"):
        named = make_resnet("resnet18", group_norm)
        keys = set(nn.Sequential(*named.children()).state_dict())
    assert {"0.weight", "1.bias", "4.0.conv1.weight", "7.1.bn2.weight"} <= keys
    assert len(keys) == len(named.state_dict())


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected one of .*'resnet18'.*found 'vgg16'"):
        make_resnet("vgg16", group_norm)
    with pytest.raises(InvalidArgumentError, match="'resnet18': its blocks cannot be dilated"):
        make_resnet("resnet18", group_norm, dilate_last=True)
