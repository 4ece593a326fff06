"""Pins what makes the exact arithmetic cheaper on a GPU, as far as a CPU shows it.

The chains are what torch's modules do, bit for bit; on CUDA a kernel takes a chain's place only
where it has given the same bits, which is seen here with kernels that do and that do not; what is
calculated once follows the weights until it is settled. Triton's interpreter runs the kernels' own
code in a process of its own: whether their bits are torch's only a GPU can say (test_cuda_exact).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from flashrt_ros.policies.exact import convolution, pointwise, proof
from flashrt_ros.policies.exact.once import Once, settle_
from flashrt_ros.runtime.derived import derived_names
from flashrt_ros.runtime.device.side_by_side import side_by_side
from flashrt_ros.runtime.noise import triton_found

Chain = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_affine_is_a_chain_of_single_operators(active: bool, adds: bool) -> None:
    x, residual = torch.randn(2, 2, 5, 6, 7).unbind(0)
    scale, shift = torch.randn(2, 5)
    expected = x * scale.view(1, 5, 1, 1) + shift.view(1, 5, 1, 1)
    expected = expected + residual if adds else expected
    expected = torch.relu(expected) if active else expected
    found = pointwise.affine(x, scale, shift, residual if adds else None, active=active)
    assert proof.same_bits(found, expected)
    assert not proof.same_bits(found, torch.nextafter(expected, torch.tensor(9.0)))


@pytest.mark.parametrize("shape", [(2, 5, 7, 6), (1, 3, 8, 9), (1, 1, 1, 1)])
def test_affine_pool_is_a_chain_of_single_operators(shape: tuple[int, ...]) -> None:
    x, scale, shift = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    active = torch.relu(x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1))
    expected = nn.MaxPool2d(3, 2, 1)(active)
    found = pointwise.affine_pool(x, scale, shift)
    assert proof.same_bits(found, expected)
    assert not proof.same_bits(found, torch.nextafter(expected, torch.tensor(9.0)))


@pytest.mark.parametrize("factors", [0, 1, 2])
@pytest.mark.parametrize("adds", [False, True])
def test_norm_mish_is_what_the_modules_do(factors: int, adds: bool) -> None:
    conv, norm = nn.Conv1d(4, 16, 3, padding=1), nn.GroupNorm(4, 16)
    norm.weight.normal_()
    norm.bias.normal_()
    x, residual = torch.randn(2, 4, 8), torch.randn(2, 16, 8)
    film = torch.randn(2, 16 * factors) if factors else None
    expected = nn.functional.mish(norm(conv(x)))
    if film is not None:
        *scale, shift = film.unsqueeze(-1).split(16, dim=1)
        expected = (scale[0] * expected if scale else expected) + shift
    expected = expected + residual if adds else expected
    seen, bias = convolution.convolve(conv, x)
    assert bias is None  # on a CPU it is part of the convolution, with bits of its own
    found = pointwise.norm_mish(seen, bias, norm, film, residual if adds else None)
    assert proof.same_bits(found, expected)


def broken(*args: Any, **options: Any) -> torch.Tensor:
    raise RuntimeError("cannot be compiled here")


def almost(*args: Any, **options: Any) -> torch.Tensor:
    out = pointwise._affine(*args, **options)
    out.view(-1)[-1] = torch.nextafter(out.view(-1)[-1], torch.tensor(torch.inf))
    return out


@pytest.mark.parametrize(
    ("kernel", "taken"), [(pointwise._affine, True), (almost, False), (broken, False)]
)
def test_a_kernel_is_taken_only_if_every_bit_is_the_chains(
    kernel: Chain, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*args: Any, **options: Any) -> torch.Tensor:
        calls.append(args)
        return kernel(*args, **options)

    module = ModuleType("pointwise_kernel")
    module.affine = counted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashrt_ros.policies.exact.pointwise_kernel", module)
    monkeypatch.setattr("flashrt_ros.policies.exact.pointwise_kernel", module, raising=False)
    monkeypatch.setattr(proof, "VERDICTS", {})
    monkeypatch.setattr(proof, "reachable", lambda x: True)
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    x, scale, shift = torch.randn(1, 3, 4, 4), torch.randn(3), torch.randn(3)
    expected = pointwise._affine(x, scale, shift, None, active=True)

    def run() -> None:
        found = pointwise.affine(x, scale, shift, active=True)
        assert proof.same_bits(found, expected)

    run()
    assert not calls
    assert not proof.VERDICTS  # within a capture nothing can be found out
    capturing[0] = False
    run()
    assert list(proof.VERDICTS.values()) == [taken]
    compared = len(calls) - taken
    run()
    assert len(calls) == compared + 2 * taken
    # Tensors of another shape are another question.
    pointwise.affine(x[..., :2].contiguous(), scale, shift, active=True)
    assert len(proof.VERDICTS) == 2


def test_a_convolution_has_its_bits_whichever_way_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conv, x = nn.Conv1d(8, 16, 5, padding=2), torch.randn(1, 8, 12)
    weight, expected = conv.weight.clone(), conv(x)
    monkeypatch.setattr(proof, "reachable", lambda x: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=bool))
    for ways in (convolution.WAYS, ()):
        monkeypatch.setattr(proof, "VERDICTS", {})
        monkeypatch.setattr(convolution, "WAYS", ways)
        seen, bias = convolution.convolve(conv, x)
        assert len(proof.VERDICTS) >= bool(ways)
        whole = seen if bias is None else seen + bias.view(-1, 1)
        assert proof.same_bits(whole, expected)
    # Weights that were laid out anew are the same, and so is what anyone else makes of them.
    convolution._lay_out_(conv)
    assert not conv.weight.is_contiguous()
    assert torch.equal(conv.weight, weight)
    assert proof.same_bits(convolution.convolve(conv, x)[0], expected)
    inside = convolution._channels_inside(conv, x)
    torch.testing.assert_close(inside + conv.bias.view(-1, 1), expected)
    assert inside.transpose(1, 2).is_contiguous()


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.twice = Once(lambda: (2 * self.weight,))


def test_what_is_calculated_once_follows_the_weights_until_it_is_settled() -> None:
    module = nn.Sequential(Doubled())
    part = module[0]
    part.weight += 1
    assert part.twice.get()[0].tolist() == [4, 4]
    settle_(module)
    part.weight += 1
    assert part.twice.get()[0].tolist() == [4, 4]
    settle_(module)
    assert part.twice.get()[0].tolist() == [6, 6]
    # It is nothing that a checkpoint or a fingerprint knows of.
    assert set(module.state_dict()) == {"0.weight"}
    assert derived_names(module) == ("0.twice.",)


def test_without_a_gpu_calls_are_made_in_turn() -> None:
    made: list[int] = []
    found = side_by_side(torch.device("cpu"), *(lambda n=n: made.append(n) or n for n in range(4)))
    assert found == made == [0, 1, 2, 3]


@pytest.mark.skipif(not triton_found(), reason="Triton is not installed")
def test_the_kernels_calculate_what_the_chains_do() -> None:
    child = Path(__file__).with_name("exact_interpreted.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(child)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = ("maps: 8", "pools: 3", "rows: 9", "refused: 3")
    assert done.stdout.splitlines() == [f"{count} cases" for count in counts]
