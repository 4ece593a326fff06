"""What the benchmarks of hybrid language models share: sizes, streams, what a token must read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.random_hybrid import SIZES, random_model
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.hybrid.config import FULL
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.tokens import TokenPolicy, TokenStream
from flashrt_ros.runtime.derived import derived_names
from flashrt_ros.runtime.device import Device, Lane
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.session import PolicySession

CAPSULE = "context"
_EMBEDDINGS = "model.embed_tokens."


@dataclass(frozen=True)
class Setting:
    """What is measured of which model.

    Attributes:
        size: Name of the model in ``SIZES``.
        contexts: Tokens of the prompts whose first token is timed: multiples of the largest shape.
        context: Tokens of the prompt behind which is decoded.
        room: Tokens that fit behind the longest prompt.
        shapes: Tokens of the passes of prefill; see ``TokenPolicy``.
    """

    size: str
    contexts: tuple[int, ...]
    context: int
    room: int
    shapes: tuple[int, ...]


_ON_GPU = Setting("large", (2048, 4096, 8192, 16384), 2048, 2048, (64, 512, 2048))
_ON_CPU = Setting("tiny", (256, 512, 1024, 2048), 256, 768, (64, 256))
_FEWER = {"small": 2, "large": 1}
"""Prompts that a CPU takes in without spending minutes."""


def setting_of(options: Options) -> Setting:
    """Returns what is measured.

    Raises:
        InvalidArgumentError: There is no model of that size.
    """
    base = _ON_GPU if options.cuda else _ON_CPU
    size = options.size or base.size
    if size not in SIZES:
        raise InvalidArgumentError(f"size: expected one of {list(SIZES)}, found {size!r}")
    most = 4 if options.cuda else _FEWER.get(size, 4)
    contexts = base.contexts[: min(most, 2) if options.quick else most]
    return Setting(size, contexts, base.context, base.room, base.shapes)


def make_model(setting: Setting, options: Options) -> HybridModel:
    """Returns the model, on its device."""
    model = random_model(SIZES[setting.size], options.device)
    if options.cuda:
        torch.cuda.synchronize()  # sessions have streams of their own
    return model


def words_of(model: HybridModel, size: str) -> str:
    """Returns what model it is."""
    config = model.config
    derived = derived_names(model)
    count = sum(w.numel() for n, w in model.named_parameters() if not n.startswith(derived))
    return (
        f"{size} random hybrid, {count / 1e6:.4g} M weights, {len(config.layer_types)} layers,"
        f" {config.layer_types.count(FULL)} of them full attention, {config.dtype}"
    )


def open_stream(
    model: HybridModel, options: Options, setting: Setting, longest: int, drafts: int
) -> TokenStream:
    """Returns a stream with room for a prompt of ``longest`` tokens, and for its capsule."""
    policy = TokenPolicy(model, longest + setting.room, drafts, setting.shapes)
    layout = complete_layout(policy)
    # Both capsules while one takes the place of the other; what is left over is halved.
    store_bytes = 6 * (layout.fixed_bytes + 4096) + 5 * layout.capacity * layout.row_bytes
    return TokenStream(
        PolicySession(
            policy,
            options.device,
            store_bytes=max(1 << 20, store_bytes),
            rollback_depth=0,
            warm_up=options.warm(),
            preview_sets=0,
        )
    )


def prompt(model: HybridModel, count: int, seed: int) -> list[int]:
    """Returns random tokens, the same ones each time."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(
        model.config.vocab_size, (count,), generator=generator
    ).tolist()
    return tokens


def settle(session: PolicySession) -> None:
    """Waits for what the session has enqueued, wherever the caller's own work goes."""
    with session.device.bind(Lane.CONTROL):
        session.device.synchronize()


def weights_bytes(model: HybridModel) -> int:
    """Returns the bytes of all weights that one token reads, each once, drafts apart.

    Of embeddings that are no output weights it reads one row, which is not counted.
    """
    left_out = ("mtp.", *derived_names(model))
    if not model.config.tie_word_embeddings:
        left_out = (*left_out, _EMBEDDINGS)
    weights = {
        weight.data_ptr(): weight.nbytes
        for name, weight in model.named_parameters()
        if not name.startswith(left_out)
    }
    return sum(weights.values())


def reading(
    device: Device, size_bytes: int, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """Returns kernels of torch that read so many bytes and write next to none.

    Args:
        device: Where; what is read is allocated there.
        size_bytes: About how many: a whole number of rows of 2048 elements.
        dtype: Elements of the matrix.
    """
    width = 2048
    rows = max(1, size_bytes // (width * dtype.itemsize))
    held_N = device.allocate(rows * width * dtype.itemsize)
    held_N.fill_(1)
    numbers_N = held_N.view(torch.float32)
    matrix_NW = held_N.view(dtype).view(-1, width)
    vector_W = torch.ones(width, dtype=dtype, device=device.torch_device)
    return {"torch.sum": numbers_N.sum, "torch.mv": lambda: torch.mv(matrix_NW, vector_W)}


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns at how many places two runs of as many tokens are the same."""
    return sum(a == b for a, b in zip(one, other, strict=True))
