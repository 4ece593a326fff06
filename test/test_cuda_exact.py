"""The exact arithmetic on a GPU: fewer kernels, other streams, and every bit as torch has it.

Numbers that random ones miss are there on purpose: zeros, subnormal ones, infinities, NaN. The
plans of whole checkpoints are compared with and without all of it; the control is an arithmetic
that is allowed to contract.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import act_files
import diffusion_files
import pytest
import torch
from torch import nn

from flashrt_ros.policies.exact import convolution, pointwise, proof
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.policies.resnet import FrozenBatchNorm, make_resnet
from flashrt_ros.runtime.device import side_by_side
from flashrt_ros.runtime.session import PolicySession

pytestmark = pytest.mark.cuda

STRANGE = (0.0, -0.0, 1e-40, -1e-40, 3.4e38, -3.4e38, torch.inf, -torch.inf, torch.nan, -95.0)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def drawn(*shape: int, seed: int, strange: bool = False) -> torch.Tensor:
    random = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(shape, generator=random, device="cuda")
    if strange:
        x.view(-1)[:: x.numel() // len(STRANGE)][: len(STRANGE)] = x.new_tensor(STRANGE)
    return x


@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize(("adds", "active"), itertools.product((False, True), repeat=2))
@pytest.mark.parametrize("shape", [(1, 64, 240, 320), (1, 512, 15, 20), (3, 10, 7, 9)])
def test_affine(shape: tuple[int, ...], adds: bool, active: bool, strange: bool) -> None:
    from flashrt_ros.policies.exact import pointwise_kernel

    x, residual = (drawn(*shape, seed=n, strange=strange) for n in (1, 2))
    scale, shift = (drawn(shape[1], seed=n) for n in (3, 4))
    given = (x, scale, shift, residual if adds else None)
    found = pointwise_kernel.affine(*given, active=active)
    assert proof.same_bits(found, pointwise._affine(*given, active=active))
    contracted = torch.addcmul(shift.view(-1, 1, 1), x, scale.view(-1, 1, 1))
    if not (adds or active):
        assert not proof.same_bits(found, contracted)


@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize("shape", [(1, 64, 240, 320), (2, 64, 42, 42), (3, 10, 7, 9)])
def test_affine_pool(shape: tuple[int, ...], strange: bool) -> None:
    from flashrt_ros.policies.exact import pointwise_kernel

    x = drawn(*shape, seed=1, strange=strange)
    scale, shift = (drawn(shape[1], seed=n) for n in (2, 3))
    found = pointwise_kernel.affine_pool(x, scale, shift)
    assert proof.same_bits(found, pointwise._affine_pool(x, scale, shift))
    assert bool(found.isnan().any()) == strange
    contracted = torch.addcmul(shift.view(-1, 1, 1), x, scale.view(-1, 1, 1)).relu_()
    assert not proof.same_bits(found, nn.functional.max_pool2d(contracted, 3, 2, 1))


def test_a_network_pools_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "VERDICTS", {})
    net = make_resnet("resnet18", FrozenBatchNorm).eval().cuda()
    image = drawn(1, 3, 96, 128, seed=1)
    found = net(image)
    assert [v for key, v in proof.VERDICTS.items() if key[0] is pointwise._affine_pool] == [True]
    monkeypatch.setattr(proof, "reachable", lambda x: False)
    assert proof.same_bits(found, net(image))
    assert not proof.same_bits(found, net(image * 1.0000001))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize("factors", [0, 1, 2])
@pytest.mark.parametrize(
    ("channels", "length", "groups"),
    [(512, 16, 8), (1024, 8, 8), (2048, 4, 8), (64, 16, 8), (64, 128, 8), (32, 2, 2)],
)
def test_norm_mish(
    channels: int, length: int, groups: int, factors: int, strange: bool, inside: bool
) -> None:
    from flashrt_ros.policies.exact import pointwise_kernel

    # One strange number makes a whole group strange: most groups stay as they are.
    x = drawn(40, channels, length, seed=1, strange=strange)
    residual = drawn(40, channels, length, seed=2, strange=strange)
    if inside:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    bias, weight, shift = (drawn(channels, seed=n) for n in (3, 4, 5))
    # Mish sees large and small numbers of either sign.
    weight *= 30
    film = drawn(40, channels * factors, seed=6) if factors else None
    given = (x, bias, weight, shift, film, None if factors else residual)
    options = {"groups": groups, "epsilon": 1e-5}
    found = pointwise_kernel.norm_mish(*given, **options)
    expected = pointwise._norm_mish(*given, **options)
    assert proof.same_bits(found, expected)
    assert not proof.same_bits(found, expected * 1.0000001)


@pytest.mark.parametrize("inside", [False, True])
def test_a_convolution_leaves_its_bias_to_the_next_kernel(inside: bool) -> None:
    conv = nn.Conv1d(256, 512, 5, padding=2, device="cuda")
    x = drawn(1, 256, 16, seed=1)
    expected = conv(x)
    if inside:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    apart, bias = convolution.convolve(conv, x)
    assert bias is conv.bias
    assert proof.same_bits(apart + bias.view(-1, 1), expected)
    with torch.enable_grad():
        whole, bias = convolution.convolve(conv, x)
    assert bias is None
    assert proof.same_bits(whole, expected)


def test_branches_of_a_captured_graph() -> None:
    x, weight = drawn(300, 512, seed=1), drawn(512, 512, seed=2)
    stream = torch.cuda.Stream()

    def inner(factor: float) -> torch.Tensor:
        one, other = side_by_side.side_by_side(
            x.device, lambda: (x * factor) @ weight, lambda: (x + factor) @ weight
        )
        return one - other

    def work() -> torch.Tensor:
        total = torch.zeros_like(x)
        for turn in range(20):
            calls = [lambda n=n, turn=turn: inner(n + turn) for n in range(3)]
            for part in side_by_side.side_by_side(x.device, *calls):
                total = total * 0.5 + part
        return total

    with torch.enable_grad():
        expected = work()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.equal(work(), expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = work()
        for _ in range(5):
            x.mul_(1.0)
            graph.replay()
            assert torch.equal(out, expected)
        x.add_(1.0)
        graph.replay()
        assert not torch.equal(out, expected)


@pytest.mark.parametrize("family", ["act", "diffusion"])
def test_a_checkpoint_acts_with_the_same_bits_as_without(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family == "act":
        directory = act_files.write_act(tmp_path, **act_files.VARIANTS["everything"])
        inputs = {**act_files.SMALL, **act_files.VARIANTS["everything"]}["input_features"]
        seen = list(itertools.islice(act_files.observations(inputs), 12))
    else:
        settings = diffusion_files.CASES["two cameras"]
        directory = diffusion_files.write(tmp_path, **settings)
        seen = list(diffusion_files.observations(diffusion_files.config(**settings), 12))
    monkeypatch.setattr(proof, "VERDICTS", {})

    def run(seed: int = 3) -> torch.Tensor:
        session = PolicySession(load_policy(directory), device="cuda", seed=seed)
        actions = torch.stack([session.step(row).values for row in seen])
        session.close()
        return actions

    found = run()
    assert any(proof.VERDICTS.values())
    monkeypatch.setattr(proof, "reachable", lambda x: False)
    assert torch.equal(run(), found)
    if family == "diffusion":
        assert not torch.equal(run(4), found)
