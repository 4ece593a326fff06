"""Hybrid language models of any size with random weights, whose drafts are right at times.

Trunk and MTP head both guess mostly from the present token and look back a little, so that some
drafts are accepted and others are not, and both depend on every kind of state. With weights that
are merely random a head is never right, and leaving out its state would show nothing.
"""

from __future__ import annotations

import torch

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.hybrid.config import FULL, LINEAR, ModelConfig
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.tokens import TokenPolicy
from flashrt_ros.runtime.device import open_device

_LAYERS = (LINEAR, LINEAR, LINEAR, FULL)
SIZES: dict[str, ModelConfig] = {
    "tiny": ModelConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        layer_types=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rotary_dim=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        mtp=True,
    ),
    "small": ModelConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        layer_types=_LAYERS * 2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        rotary_dim=16,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        mtp=True,
    ),
    "large": ModelConfig(
        vocab_size=65536,
        hidden_size=2048,
        intermediate_size=5632,
        layer_types=_LAYERS * 6,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        rotary_dim=64,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        tie_word_embeddings=True,
        dtype="bfloat16",
        mtp=True,
    ),
}
"""``large`` has 1.5 billion weights, 24 layers, one of four full attention."""
DRAFTS = 2
MIXING, MIXING_OF_MANY, THINKING, SEEN = 0.5, 0.15, 0.1, 0.4
"""How much attention and delta rule add to the residual stream, and those of a model of more than
``FEW_LAYERS``, and feed-forward nets, against weights that keep its size; and how much the head
takes from the hidden values before. So tokens depend on what came before, and some drafts are
right."""
FEW_LAYERS = 8


@torch.no_grad()
def random_model(config: ModelConfig, device: str = "cpu", seed: int = 0) -> HybridModel:
    """A random model.

    Args:
        config: With an MTP head.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        seed: Of the weights, which are drawn on the CPU: the same on every device.
    """
    assert config.mtp
    where = open_device(device).torch_device
    model = HybridModel.empty(config).to(where).eval()
    generator = torch.Generator().manual_seed(seed)
    width = config.hidden_size
    mixing = MIXING if len(config.layer_types) <= FEW_LAYERS else MIXING_OF_MANY
    for name, parameter in model.named_parameters():
        draw = torch.empty(parameter.shape).normal_(generator=generator).to(where)
        if name.endswith("A_log"):
            value = draw - 3.0
        elif name.endswith("dt_bias"):
            value = draw
        elif "norm" in name:
            base = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
            value = base + 0.1 * draw
        elif "embed_tokens" in name or "lm_head" in name:
            value = draw
        elif name.endswith("conv1d.weight"):
            value = 0.5 * draw
        else:
            value = draw * parameter.shape[-1] ** -0.5
        if name.endswith(("out_proj.weight", "o_proj.weight")):
            value = mixing * value
        elif name.endswith("down_proj.weight"):
            value = THINKING * value
        parameter.copy_(value)
    if config.tie_word_embeddings:
        # Output weights that are the embeddings would say the same token again and again.
        sign_D = torch.randint(0, 2, (width,), generator=generator).to(where) * 2 - 1
        model.model.norm.weight.copy_(sign_D * (1.0 + model.model.norm.weight) - 1.0)
    assert model.mtp is not None
    eye = torch.eye(width, device=where)
    model.mtp.norm.weight.copy_(model.model.norm.weight)
    model.mtp.fc.weight[:, :width].copy_(eye)
    model.mtp.fc.weight[:, width:].copy_(SEEN * eye)
    return model


def random_hybrid(size: str, device: str = "cpu", capacity: int = 1024) -> TokenPolicy:
    """A token policy over ``random_model``.

    Args:
        size: ``tiny``, ``small`` or ``large``.
        device: See ``random_model``.
        capacity: Tokens of a sequence.

    Raises:
        InvalidArgumentError: There is no such size.
    """
    if size not in SIZES:
        raise InvalidArgumentError(f"size: expected one of {list(SIZES)}, found {size!r}")
    return TokenPolicy(random_model(SIZES[size], device), capacity, DRAFTS, sizes=(64,))
