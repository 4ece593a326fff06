"""A slow, obviously right hybrid model: double precision, no cache, one formula at a time.

It takes the weights of a model by their published names and all tokens at once, and knows
neither chunks nor rows nor buffers. Beside it: small random models.
"""

from __future__ import annotations

import torch
from torch.nn.functional import silu, softplus

from flashrt_ros.policies.hybrid.config import FULL, LINEAR, ModelConfig
from flashrt_ros.policies.hybrid.model import HybridModel

Weights = dict[str, torch.Tensor]


def small_config(**changes: object) -> ModelConfig:
    """Four layers, one of them full attention; a few thousand parameters."""
    sizes: dict[str, object] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "layer_types": (LINEAR, LINEAR, LINEAR, FULL),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rotary_dim": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    return ModelConfig(**{**sizes, **changes})  # type: ignore[arg-type]


def small_model(seed: int = 0, scale: float = 0.25, **changes: object) -> HybridModel:
    """A random model whose tokens depend on all of its parts."""
    model = HybridModel(small_config(**changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                parameter.copy_(noise - 1.0)
            elif "norm" in name or name.endswith("dt_bias"):
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(scale * noise)
    return model


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * (1 + weight)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


def _linear(x: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.tensor(0.0))


class Reference:
    """Hidden values and logits of whole sequences."""

    def __init__(self, model: HybridModel) -> None:
        self.config = model.config
        self.weights: Weights = {
            name: value.detach().double() for name, value in model.state_dict().items()
        }

    def part(self, prefix: str) -> Weights:
        return {k[len(prefix) :]: v for k, v in self.weights.items() if k.startswith(prefix)}

    def hidden(self, embedded_TD: torch.Tensor) -> torch.Tensor:
        """``(T, D)`` embeddings to hidden values behind the last norm."""
        x = embedded_TD.double()
        for n, kind in enumerate(self.config.layer_types):
            w = self.part(f"model.layers.{n}.")
            y = _norm(x, w["input_layernorm.weight"], self.config.rms_norm_eps)
            x = x + (self._delta(y, w) if kind == LINEAR else self._attention(y, w))
            x = x + self._feed_forward(x, w)
        return _norm(x, self.weights["model.norm.weight"], self.config.rms_norm_eps)

    def logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        table = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return hidden_TD @ table.T

    def embed(self, tokens: list[int]) -> torch.Tensor:
        return self.weights["model.embed_tokens.weight"][tokens]

    def drafts(self, tokens: list[int], count: int) -> tuple[list[int], torch.Tensor]:
        """What the MTP head drafts behind ``tokens``, of which the last is not yet committed.

        Returns:
            The drafts and the logits of each, ``(count, V)``.
        """
        w, eps = self.part("mtp."), self.config.rms_norm_eps
        hidden = list(self.hidden(self.embed(tokens[:-1])))
        tokens, found, rows = list(tokens), [], []
        for _ in range(count):
            # Pairs of a token's hidden values and the token that follows.
            pairs = torch.cat(
                (
                    _norm(self.embed(tokens[1:]), w["pre_fc_norm_embedding.weight"], eps),
                    _norm(torch.stack(hidden), w["pre_fc_norm_hidden.weight"], eps),
                ),
                dim=-1,
            )
            layer = self.part("mtp.layers.0.")
            x = pairs @ w["fc.weight"].T
            x = x + self._attention(_norm(x, layer["input_layernorm.weight"], eps), layer)
            x = _norm(x + self._feed_forward(x, layer), w["norm.weight"], eps)
            rows.append(self.logits(x[-1]))
            found.append(int(rows[-1].argmax()))
            tokens.append(found[-1])
            hidden.append(x[-1])
        return found, torch.stack(rows)

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(int(self.logits(self.hidden(self.embed(tokens))[-1]).argmax()))
        return tokens[-count:]

    def _feed_forward(self, x: torch.Tensor, w: Weights) -> torch.Tensor:
        y = _norm(x, w["post_attention_layernorm.weight"], self.config.rms_norm_eps)
        gate = silu(y @ w["mlp.gate_proj.weight"].T)
        return (gate * (y @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T

    def _attention(self, y: torch.Tensor, w: Weights) -> torch.Tensor:
        c, tokens = self.config, len(y)
        both = _linear(y, w, "self_attn.q_proj").view(tokens, c.num_attention_heads, -1)
        query, gate = both[..., : c.head_dim], both[..., c.head_dim :]
        key = _linear(y, w, "self_attn.k_proj").view(tokens, c.num_key_value_heads, -1)
        value = _linear(y, w, "self_attn.v_proj").view(tokens, c.num_key_value_heads, -1)
        query = self._turn(_norm(query, w["self_attn.q_norm.weight"], c.rms_norm_eps))
        key = self._turn(_norm(key, w["self_attn.k_norm.weight"], c.rms_norm_eps))
        share = c.num_attention_heads // c.num_key_value_heads
        out = torch.zeros_like(query)
        for t in range(tokens):
            for head in range(c.num_attention_heads):
                scores = key[: t + 1, head // share] @ query[t, head] / c.head_dim**0.5
                out[t, head] = scores.softmax(0) @ value[: t + 1, head // share]
        return _linear((out * gate.sigmoid()).reshape(tokens, -1), w, "self_attn.o_proj")

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        half = self.config.rotary_dim // 2
        out = x.clone()
        for t in range(len(x)):
            for i in range(half):
                angle = torch.tensor(t / self.config.rope_theta ** (i / half)).double()
                a, b = x[t, :, i], x[t, :, i + half]
                out[t, :, i] = a * angle.cos() - b * angle.sin()
                out[t, :, i + half] = b * angle.cos() + a * angle.sin()
        return out

    def _delta(self, y: torch.Tensor, w: Weights) -> torch.Tensor:
        c, tokens = self.config, len(y)
        mixed = y @ w["linear_attn.in_proj_qkv.weight"].T
        taps = w["linear_attn.conv1d.weight"][:, 0].T
        before = torch.cat((torch.zeros(len(taps) - 1, mixed.shape[1]).double(), mixed))
        mixed = silu(
            torch.stack([(before[t : t + len(taps)] * taps).sum(0) for t in range(tokens)])
        )
        query, key, value = mixed.split((c.key_size, c.key_size, c.value_size), 1)
        query = _unit(query.reshape(tokens, c.linear_num_key_heads, -1))
        key = _unit(key.reshape(tokens, c.linear_num_key_heads, -1))
        value = value.reshape(tokens, c.linear_num_value_heads, -1)
        rate = (y @ w["linear_attn.in_proj_b.weight"].T).sigmoid()
        a = y @ w["linear_attn.in_proj_a.weight"].T + w["linear_attn.dt_bias"]
        decay = (-w["linear_attn.A_log"].exp() * softplus(a)).exp()
        share = c.linear_num_value_heads // c.linear_num_key_heads
        out = torch.zeros_like(value)
        for head in range(c.linear_num_value_heads):
            state = torch.zeros(c.linear_key_head_dim, c.linear_value_head_dim).double()
            for t in range(tokens):
                k, q = key[t, head // share], query[t, head // share]
                state = decay[t, head] * state
                state = state + torch.outer(k, rate[t, head] * (value[t, head] - k @ state))
                out[t, head] = q @ state / c.linear_key_head_dim**0.5
        out = _norm(out, w["linear_attn.norm.weight"] - 1, c.rms_norm_eps)
        gate = silu(y @ w["linear_attn.in_proj_z.weight"].T).view(out.shape)
        return (out * gate).reshape(tokens, -1) @ w["linear_attn.out_proj.weight"].T
