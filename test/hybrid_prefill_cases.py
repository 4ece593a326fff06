"""Cases for the prefill kernels of the hybrid model: inputs, what a kernel makes, what it should.

Run as a program it checks the small ones under Triton's interpreter, on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from hybrid_reference import small_config
from torch.nn import functional

from flashrt_ros.bench.random_hybrid import SIZES
from flashrt_ros.policies.hybrid import delta_rule, ops
from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.policies.hybrid.decode import Decoder
from flashrt_ros.policies.hybrid.kernels import convolve
from flashrt_ros.policies.hybrid.kernels import norm as norms
from flashrt_ros.policies.hybrid.kernels.attention import attend
from flashrt_ros.policies.hybrid.kernels.chunk import delta_chunks
from flashrt_ros.policies.hybrid.kernels.few_attend import place_
from flashrt_ros.policies.hybrid.kernels.many_delta import many_delta
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.runtime.buffers import ROWS_LENGTH, ROWS_SPEC

Tensors = tuple[torch.Tensor, ...]


@dataclass
class Case:
    """One comparison.

    Attributes:
        name: Of it.
        run: Makes tensors by kernels.
        expected: Makes the same in float32 or float64 by torch.
        limit: Largest relative error, as norms.
        beside: Makes the same by torch in the dtype of the kernels: the error may be twice its.
    """

    name: str
    run: Callable[[], Tensors]
    expected: Callable[[], Tensors]
    limit: float
    beside: Callable[[], Tensors] | None = None

    def errors(self) -> list[tuple[float, float]]:
        """Relative error and limit of each tensor; not a number where one of it is none.

        The control: the same numbers, one token late, are beyond the limit.
        """
        # cuDNN would convolve float32 by products of fewer bits.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            expected = self.expected()
        late = expected[0].roll(1, 0)
        assert len(late) == 1 or error(late, expected[0]) > self.limit, "the control is as good"
        found = list(map(error, self.run(), expected))
        beside = list(map(error, self.beside(), expected)) if self.beside else [0.0] * len(found)
        return [(a, max(self.limit, 2 * b)) for a, b in zip(found, beside, strict=True)]


def good(errors: list[tuple[float, float]]) -> bool:
    return all(found <= limit for found, limit in errors)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    apart = (found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
    return float(apart)


class Draw:
    """Random tensors on a device, the same each time."""

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator(device).manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        draw = torch.randn(shape, generator=self.generator, device=self.device)
        return draw.to(dtype or self.dtype)

    def even(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)


def limit(dtype: torch.dtype) -> float:
    return 5e-6 if dtype == torch.float32 else 5e-3


def delta_inputs(
    draw: Draw, tokens: int, heads: tuple[int, int], size: tuple[int, int], kind: str = "random"
) -> Tensors:
    """What ``delta_chunks`` takes; queries, keys and values are parts of one tensor.

    ``kind``: ``random``; ``equal`` keys with rates of 1 and no decay; ``deep`` decays, down to
    where only logarithms hold them; ``pads`` in the last third.
    """
    (few, many), (keys, values) = heads, size
    parts = (few * keys, few * keys, many * values)
    query, key, value = draw(tokens, sum(parts)).split(parts, dim=1)
    decay, rate = -0.2 * draw.even(tokens, many), draw.even(tokens, many).to(draw.dtype)
    if kind == "equal":
        key[:] = key[:1].clone()
        rate[:], decay[:] = 1.0, 0.0
    elif kind == "deep":
        decay = -torch.exp(6.0 * draw(tokens, many, dtype=torch.float32))
        decay[3::7] = -1e30
    elif kind == "pads":
        value = value.t().contiguous().t()
        rate[tokens - tokens // 3 :] = 0.0
        decay[tokens - tokens // 3 :] = 0.0
    state = draw(many, keys, values, dtype=torch.float32)
    views = (query.view(tokens, few, keys), key.view(tokens, few, keys))
    return (*views, value.view(tokens, many, values), decay, rate, state)


def delta_expected(query: Any, key: Any, value: Any, *more: Any) -> Tensors:
    """By steps in float32, rounded nowhere."""
    out, states = delta_rule.delta_steps(query.float(), key.float(), value.float(), *more)
    return out, states[-1]


def delta_cases(draw: Draw, small: bool) -> Iterator[Case]:
    shapes = [(48, (2, 4), (16, 16), 16), (40, (3, 6), (12, 4), 20), (128, (1, 1), (32, 64), 64)]
    if not small:
        shapes += [(256, (2, 2), (64, 64), 128), (1024, (1, 2), (64, 64), 64)]
        shapes += [(64, (16, 16), (128, 128), 64), (640, (16, 16), (128, 128), 64)]
        # Heads for which Triton's products of 64 tokens once made no numbers.
        shapes += [(128, (2, 4), sizes, 64) for sizes in ((16, 16), (16, 64), (32, 16), (12, 4))]
    for shape in shapes:
        for kind in ("random", "equal", "deep", "pads"):
            tensors = delta_inputs(draw, *shape[:3], kind)
            yield Case(
                f"delta_chunks {shape} {kind}",
                lambda tensors=tensors, chunk=shape[3]: delta_chunks(*tensors, chunk),
                lambda tensors=tensors: delta_expected(*tensors),
                # Sums of deep decays are coarse: float32 holds 104 to 4e-6.
                limit(draw.dtype) * (20 if kind == "deep" and draw.dtype == torch.float32 else 2),
            )


def rows_of(draw: Draw, capacity: int, groups: int, size: int, written: int) -> Tensors:
    """Keys and values as parts of longer records; behind the written ones there is no number."""
    record = draw(capacity, 3, 2, groups, size)
    record[written:] = torch.nan
    return record[:, 1, 0], record[:, 1, 1]


def attended(tensors: Tensors, more: Any, gate: torch.Tensor) -> Tensors:
    found = ops.attend(*(x.float().contiguous() for x in tensors), *more)
    return found, found * gate.float().sigmoid()


def attend_cases(draw: Draw, small: bool) -> Iterator[Case]:
    # Tokens, query heads, groups, size of a head, rows before, first.
    shapes = [(20, 4, 2, 16, 0, 0), (5, 3, 1, 24, 37, 0), (33, 2, 2, 32, 70, 3)]
    if not small:
        shapes += [(64, 8, 2, 256, before, 0) for before in (0, 17, 960, 5000)]
        shapes += [(t, 8, 2, 256, 1000, 0) for t in (65, 256, 777, 2048)]
        shapes += [(256, 8, 2, 64, 300, 1), (256, 6, 2, 128, 64, 0), (128, 8, 8, 64, 0, 0)]
    for shape in shapes:
        tokens, heads, groups, size, before, first = shape
        query, gate = draw(tokens, heads, 2 * size).chunk(2, -1)
        rows = rows_of(draw, before + tokens + 9, groups, size, before + tokens)
        positions = torch.arange(before, before + tokens, device=draw.device)
        yield Case(
            f"attend {shape}",
            lambda a=(query, *rows, positions, first), gate=gate: (attend(*a), attend(*a, gate)),
            lambda a=(query, *rows), b=(positions, first), gate=gate: attended(a, b, gate),
            limit(draw.dtype),
        )


def silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def other_cases(draw: Draw, small: bool) -> Iterator[Case]:
    def case(name: str, run: Callable[[], Any], expected: Callable[[], Any]) -> Case:
        def listed(f: Callable[[], Any]) -> Tensors:
            made = f()
            return made if isinstance(made, tuple) else (made,)

        return Case(name, lambda: listed(run), lambda: listed(expected), limit(draw.dtype))

    for tokens, width in [(5, 24), (3, 2048)] + ([] if small else [(64, 2048), (1000, 5632)]):
        x, weight = draw(tokens, width), 0.1 * draw(width)
        size = f"({tokens}, {width})"
        yield case(
            f"rms_norm {size}",
            lambda a=(x, weight): norms.rms_norm(*a, 1e-6),
            lambda a=(x, weight): ops.rms_norm(a[0].float(), a[1], 1e-6),
        )
        both = draw(tokens, 2 * width)
        yield case(
            f"silu_product {size}",
            lambda a=both: norms.silu_product(*a.chunk(2, -1)),
            lambda a=both: silu_product(*a.float().chunk(2, -1)),
        )
    sizes = [(1, 20, 4), (21, 136, 3)] + ([] if small else [(64, 6144, 4), (1000, 6144, 4)])
    for tokens, channels, taps in sizes:
        window, weight = draw(tokens + taps - 1, 2 * channels), 0.5 * draw(channels, taps)
        window = window[:, channels:]
        a = (window, weight)
        yield case(
            f"convolve ({tokens}, {channels}, {taps})",
            lambda a=a, w=taps - 1: convolve.convolve_behind(a[0][:w], a[0][w:], a[1]),
            lambda a=a: ops.convolve(a[0].float(), a[1].float()),
        )


class Kernels(ops.Ops):
    """All of them, as operations of a model."""

    def rms_norm(self, x_D: torch.Tensor, norm: ops.Norm) -> torch.Tensor:
        return norms.rms_norm(x_D, norm.weight, norm.eps)

    def swiglu(self, x_TD: torch.Tensor, norm: ops.Norm, gate: Any, up: Any) -> torch.Tensor:
        gate_TE, up_TE = self.normed_linear(x_TD, norm, (gate, up))
        return norms.silu_product(gate_TE, up_TE)

    def delta(self, parts: Tensors, state: Any, layer: Any, step: Any) -> Any:
        weights = (layer.conv1d.weight.squeeze(1), layer.A_log, layer.dt_bias, layer.norm.weight)
        eps = layer.config.rms_norm_eps
        return many_delta(parts, state, weights, eps, step.chunk, step.count_1), None

    def attend(
        self, query_TQS: torch.Tensor, gate_TQS: torch.Tensor, rows: Any, step: Any, first: int
    ) -> torch.Tensor:
        found = attend(query_TQS, *rows, step.positions_T, first, gate_TQS)
        return found.reshape(len(query_TQS), -1)

    def place_(
        self, parts: Tensors, rows: Any, layer: Any, step: Any, periods: torch.Tensor
    ) -> torch.Tensor | None:
        weights = (layer.q_norm.weight, layer.k_norm.weight)
        eps = (layer.q_norm.eps, layer.k_norm.eps)
        parts = torch.cat(parts, 1).split([part.shape[1] for part in parts], 1)
        return place_(parts, rows, weights, eps, step.positions_T, periods)


def made_model(config: ModelConfig, device: str) -> HybridModel:
    """Random weights, of which all outputs depend; the same each time, rounded to the dtype."""
    model, draw = HybridModel.empty(config).to(device), Draw(device, torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if "norm" in name else parameter.shape[-1] ** -0.5
            base = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
            value = base + scale * draw(*parameter.shape)
            # Those that stay in float32 are the same in each dtype by themselves.
            parameter.copy_(value.bfloat16() if value.dim() > 1 or "norm" in name else value)
    return model


def two_passes(
    config: ModelConfig, chunk: int, device: str, made: ops.Ops, dtype: torch.dtype
) -> Tensors:
    """Hidden values of two passes, the second one half pads, and the state that they leave."""
    model = made_model(replace(config, dtype=str(dtype)[6:]), device)
    model.ops = lambda: made  # type: ignore[method-assign]
    embedded = Draw(device, torch.bfloat16)(4 * chunk, config.hidden_size).to(dtype)
    state = {}
    for spec in [*Decoder(model).layout(6 * chunk), ROWS_SPEC]:
        shape = (spec.capacity, *spec.shape) if spec.capacity else spec.shape
        # Rows that were never written are no numbers.
        value = torch.nan if spec.capacity else 0
        state[spec.name] = torch.full(shape, value, dtype=spec.dtype, device=device)
    hidden, tokens = [], 2 * chunk
    with torch.no_grad():
        for count in (tokens, tokens - chunk // 2):
            part = embedded[len(hidden) * tokens :][:tokens]
            count_1 = torch.full((1,), count, device=device)
            found, advances = model.run_(part, state, chunk, count_1)
            for advance in advances:
                made.commit_(advance, count_1)
            state[ROWS_LENGTH].add_(count_1)
            hidden.append(found[:count])
    kept = (x for name, x in state.items() if name.endswith(("recurrent", "conv")))
    return (torch.cat(hidden), *kept)


def model_cases(draw: Draw, small: bool) -> Iterator[Case]:
    sizes = [(small_config(), 16)]
    if not small:
        configs = [replace(SIZES[name], mtp=False, dtype="float32") for name in SIZES]
        sizes += [(replace(c, layer_types=c.layer_types[:4], vocab_size=64), 64) for c in configs]
    for config, chunk in sizes:
        given = (config, chunk, draw.device)
        yield Case(
            f"model {config.hidden_size}",
            lambda a=given: two_passes(*a, Kernels(), draw.dtype),
            lambda a=given: two_passes(*a, ops.TORCH, torch.float32),
            # Through all layers.
            4 * limit(draw.dtype),
            lambda a=given: two_passes(*a, ops.TORCH, draw.dtype),
        )


def all_cases(device: str, dtype: torch.dtype, small: bool) -> Iterator[Case]:
    draw = Draw(device, dtype)
    for cases in (delta_cases, attend_cases, other_cases, model_cases):
        yield from cases(draw, small)


def main() -> int:
    """Prints each case and its errors; returns how many fail."""
    torch.set_num_threads(1)
    failed = 0
    # Its bfloat16 products are of the bits, not of the numbers.
    for case in all_cases("cpu", torch.float32, small=True):
        errors = case.errors()
        failed += not good(errors)
        print("ok" if good(errors) else "FAILED", case.name, errors, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
