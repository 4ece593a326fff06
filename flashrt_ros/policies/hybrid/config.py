"""Sizes of a hybrid language model, as ``config.json`` of a Qwen3.5 text model gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flashrt_ros.errors import CheckpointError, InvalidArgumentError

LINEAR, FULL = "linear_attention", "full_attention"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MODEL_TYPES = ("qwen3_5_text", "qwen3_5")
LARGEST_SIZE = 1 << 20
MOST_LAYERS = 512


@dataclass(frozen=True)
class ModelConfig:
    """Sizes; the names are those of transformers' ``Qwen3_5TextConfig`` where it has one.

    Attributes:
        vocab_size: Tokens.
        hidden_size: D, width of the model.
        intermediate_size: Width of the feed-forward nets.
        layer_types: ``linear_attention`` (gated delta rule) or ``full_attention`` for each layer.
        num_attention_heads: Query heads of full attention.
        num_key_value_heads: Key and value heads of full attention.
        head_dim: Elements of a key of full attention.
        rotary_dim: Of these, how many turn with the position; even.
        rope_theta: Base of their periods.
        linear_num_key_heads: Key (and query) heads of the delta rule.
        linear_num_value_heads: Value heads; each key head serves as many of them, consecutively.
        linear_key_head_dim: Elements of a key of the delta rule.
        linear_value_head_dim: Elements of a value.
        linear_conv_kernel_dim: Taps of the causal convolution, at least 2.
        rms_norm_eps: Added to the mean square.
        tie_word_embeddings: Whether the embeddings are the output weights too.
        attention_bias: Whether the projections of full attention have a bias.
        dtype: ``float32``, ``bfloat16`` or ``float16``; recurrent state is float32 in any case.
        mtp: Whether there is a multi-token-prediction head.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int = 4
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    dtype: str = "float32"
    mtp: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                whole = isinstance(value, int) and not isinstance(value, bool)
                _expect(
                    whole and 1 <= value <= LARGEST_SIZE,
                    field.name,
                    f"a whole number from 1 to {LARGEST_SIZE}",
                    value,
                )
            elif field.type == "float":
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                _expect(number and 0 < value < float("inf"), field.name, "a number above 0", value)
            elif field.type == "bool":
                _expect(isinstance(value, bool), field.name, "true or false", value)
        kinds = self.layer_types
        _expect(
            1 <= len(kinds) <= MOST_LAYERS and set(kinds) <= {LINEAR, FULL},
            "layer_types",
            f"1 to {MOST_LAYERS} of {LINEAR!r} and {FULL!r}",
            list(kinds),
        )
        _expect(FULL in kinds, "layer_types", f"at least one {FULL!r}", list(kinds))
        for many, few in (
            ("num_attention_heads", "num_key_value_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            divisor = getattr(self, few)
            _expect(
                getattr(self, many) % divisor == 0,
                many,
                f"a multiple of {few} ({divisor})",
                getattr(self, many),
            )
        _expect(
            self.rotary_dim % 2 == 0 and self.rotary_dim <= self.head_dim,
            "rotary_dim",
            f"an even number of at most head_dim ({self.head_dim})",
            self.rotary_dim,
        )
        kernel = self.linear_conv_kernel_dim
        _expect(kernel >= 2, "linear_conv_kernel_dim", "at least 2", kernel)
        _expect(self.dtype in DTYPES, "dtype", f"one of {list(DTYPES)}", self.dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Element type of weights, activations, convolution state and rows."""
        return DTYPES[self.dtype]

    @property
    def key_size(self) -> int:
        """Elements of all keys of a delta-rule layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_size(self) -> int:
        """Elements of all values of a delta-rule layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_size(self) -> int:
        """C, channels of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    def to_dict(self) -> dict[str, Any]:
        """JSON values of every field."""
        return {**dataclasses.asdict(self), "layer_types": list(self.layer_types)}

    @classmethod
    def from_dict(cls, values: object, source: str) -> ModelConfig:
        """Reads what ``to_dict`` wrote; every field must be there and none besides.

        Raises:
            CheckpointError: A key is missing, unknown or holds a wrong value; names ``source``.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(values, Mapping) or set(values) != set(names):
            found = sorted(values) if isinstance(values, Mapping) else values
            raise CheckpointError(
                f"{source}: expected an object of exactly {names}, found {found!r}"
            )
        return _make({**values}, source)


def read_pretrained(values: Mapping[str, Any], source: str, mtp: bool) -> ModelConfig:
    """Reads the ``config.json`` of a Qwen3.5 model.

    Keys that do not matter here are left alone; one that would change the computation in a way
    that is not implemented is refused.

    Args:
        values: Content of the file; the text model of a model with images is taken.
        source: What an error names, e.g. the file.
        mtp: Whether the weights of a multi-token-prediction head are there.

    Raises:
        CheckpointError: A needed key is missing or wrong, or asks for what is not implemented.
    """
    kind = values.get("model_type")
    if kind not in MODEL_TYPES:
        raise CheckpointError(
            f"{source}: model_type: expected one of {list(MODEL_TYPES)}, found {kind!r}"
        )
    outer = values
    if isinstance(values.get("text_config"), Mapping):
        values, source = values["text_config"], f"{source}: text_config"
    rope = values.get("rope_parameters")
    if not isinstance(rope, Mapping):
        rope = {
            key: values[key] for key in ("rope_theta", "partial_rotary_factor") if key in values
        }
    turning = rope.get("rope_type", rope.get("type", "default"))
    for key, found, expected in (
        ("hidden_act", values.get("hidden_act", "silu"), "silu"),
        ("rope_parameters.rope_type", turning, "default"),
        ("attn_output_gate", values.get("attn_output_gate", True), True),
        ("num_experts", values.get("num_experts") or 0, 0),
        ("mtp_use_dedicated_embeddings", values.get("mtp_use_dedicated_embeddings", False), False),
        ("quantization_config", outer.get("quantization_config"), None),
    ):
        if found != expected:
            raise CheckpointError(f"{source}: {key}: expected {expected!r}, found {found!r}")
    names = {field.name: field for field in dataclasses.fields(ModelConfig)}
    fields = {key: value for key, value in values.items() if key in names}
    layers, interval = values.get("num_hidden_layers"), values.get("full_attention_interval", 4)
    if fields.get("layer_types") is None and isinstance(layers, int) and isinstance(interval, int):
        kinds = [FULL if (n + 1) % max(1, interval) == 0 else LINEAR for n in range(layers)]
        fields["layer_types"] = kinds
    given = fields.get("layer_types")
    if layers is not None and isinstance(given, list) and len(given) != layers:
        raise CheckpointError(
            f"{source}: layer_types: expected {layers} of them (num_hidden_layers), found"
            f" {len(given)}"
        )
    head, heads = fields.get("head_dim"), fields.get("num_attention_heads")
    if head is None and isinstance(heads, int) and isinstance(fields.get("hidden_size"), int):
        head = fields["head_dim"] = fields["hidden_size"] // max(1, heads)
    factor = rope.get("partial_rotary_factor", 0.25)
    if isinstance(head, int) and isinstance(factor, (int, float)):
        fields["rotary_dim"] = int(head * factor)
    fields["rope_theta"] = rope.get("rope_theta", 10000.0)
    tied = outer.get("tie_word_embeddings", values.get("tie_word_embeddings", False))
    word = values.get("dtype") or values.get("torch_dtype") or outer.get("dtype") or "float32"
    fields |= {"tie_word_embeddings": tied, "dtype": word, "mtp": mtp}
    needed = [
        name
        for name, field in names.items()
        if field.default is dataclasses.MISSING and fields.get(name) is None
    ]
    if needed:
        raise CheckpointError(f"{source}: missing keys {needed}; is it a Qwen3.5 text model?")
    return _make(fields, source)


def _make(fields: dict[str, Any], source: str) -> ModelConfig:
    if not isinstance(fields["layer_types"], (list, tuple)):
        raise CheckpointError(
            f"{source}: layer_types: expected a list, found {fields['layer_types']!r}"
        )
    fields["layer_types"] = tuple(fields["layer_types"])
    try:
        return ModelConfig(**fields)
    except InvalidArgumentError as error:
        raise CheckpointError(f"{source}: {error}") from None


def _expect(condition: bool, name: str, expected: str, found: object) -> None:
    if not condition:
        raise InvalidArgumentError(f"{name}: expected {expected}, found {found!r}")
