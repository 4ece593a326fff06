"""Directories of Qwen3.5 models: what is read, under which names, and what is refused.

The layout is that of transformers' ``save_pretrained`` and of published checkpoints; a weight that
lands in the wrong place, or a setting passed over, would make another model of the same file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_reference import small_model
from safetensors.torch import save_file

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.hybrid.checkpoint import read_model
from flashrt_ros.policies.hybrid.config import FULL, LINEAR
from flashrt_ros.policies.hybrid.model import HybridModel

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "attention_bias": False,
    "dtype": "float32",
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "max_position_embeddings": 32768,
    "model_type": "qwen3_5_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "vocab_size": 96,
}
MTP = {
    "mtp.fc.weight",
    "mtp.norm.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.pre_fc_norm_hidden.weight",
    "mtp.layers.0.input_layernorm.weight",
    "mtp.layers.0.post_attention_layernorm.weight",
    *(f"mtp.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    *(f"mtp.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mtp.layers.0.self_attn.{part}_norm.weight" for part in "qk"),
}


def weights_of(model: HybridModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def write(directory: Path, weights: dict[str, torch.Tensor], **changes: object) -> Path:
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return directory


def shard(directory: Path, weights: dict[str, torch.Tensor], parts: int = 3) -> None:
    where = {name: f"model-{n % parts + 1:05d}.safetensors" for n, name in enumerate(weights)}
    for file in set(where.values()):
        save_file({n: weights[n] for n in weights if where[n] == file}, directory / file)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def equal(one: HybridModel, other: HybridModel) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[n], theirs[n]) and ours[n].dtype == theirs[n].dtype for n in ours
    )


@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_directory_gives_its_model(tmp_path: Path, tied: bool, mtp: bool) -> None:
    model = small_model(tie_word_embeddings=tied, mtp=mtp)
    write(tmp_path, weights_of(model), tie_word_embeddings=tied)
    found = read_model(tmp_path)
    assert found.config == model.config
    assert equal(found, model)
    assert not equal(found, small_model(seed=1, tie_word_embeddings=tied, mtp=mtp))
    assert {name for name in weights_of(model) if name.startswith("mtp.")} == (
        MTP if mtp else set()
    )
    assert ("lm_head.weight" in weights_of(model)) is not tied


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    model = small_model(mtp=True)
    write(tmp_path, weights_of(model))
    (tmp_path / "model.safetensors").unlink()
    shard(tmp_path, weights_of(model))
    assert equal(read_model(tmp_path), model)


def test_a_model_with_images_gives_its_text_model(tmp_path: Path) -> None:
    model = small_model(mtp=True, tie_word_embeddings=True)
    weights = {
        name.replace("model.", "model.language_model.", 1)
        if name.startswith("model.")
        else name: v
        for name, v in weights_of(model).items()
    }
    weights |= {
        "model.visual.blocks.0.weight": torch.ones(3),
        "lm_head.weight": torch.ones(96, 32),
    }
    save_file(weights, tmp_path / "model.safetensors")
    text = {k: v for k, v in CONFIG.items() if k not in ("architectures", "tie_word_embeddings")}
    text |= {"layer_types": None, "full_attention_interval": 4}
    outer = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    assert equal(read_model(tmp_path), model)


def test_a_dtype_can_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path, weights_of(small_model()))
    found = read_model(tmp_path, dtype="bfloat16")
    dtypes = {name: value.dtype for name, value in found.state_dict().items()}
    assert dtypes.pop("model.layers.0.linear_attn.A_log") == torch.float32
    assert dtypes["model.layers.0.linear_attn.in_proj_a.weight"] == torch.bfloat16
    assert equal(found, small_model(dtype="bfloat16"))
    with pytest.raises(CheckpointError, match="dtype: expected one of"):
        read_model(tmp_path, dtype="int4")


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        del weights[name]

    return spoil


def damage(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"][3] = torch.nan


WRONG_WEIGHTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], None], str]] = {
    "missing": (drop("model.norm.weight"), r"missing keys \['model.norm.weight'\]"),
    "half a head": (drop("mtp.fc.weight"), r"missing keys \['mtp.fc.weight'\]"),
    "unknown": (
        lambda weights: weights.update({"model.extra": torch.ones(1)}),
        r"unknown keys \['model.extra'\]",
    ),
    "shape": (
        lambda weights: weights.update({"model.norm.weight": torch.ones(31)}),
        r"'model.norm.weight': expected shape \(32,\), found \(31,\)",
    ),
    "not finite": (
        damage,
        "'model.norm.weight': expected finite values",
    ),
    "quantised": (
        lambda weights: weights.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
        "expected floating-point weights, found torch.int8",
    ),
}


@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_wrong_weights_are_refused(tmp_path: Path, case: str) -> None:
    spoil, words = WRONG_WEIGHTS[case]
    weights = weights_of(small_model(mtp=True))
    spoil(weights)
    write(tmp_path, weights)
    with pytest.raises(CheckpointError, match=words):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "model_type: expected one of .* found 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu', found 'gelu'"),
        (
            {"rope_parameters": {"rope_type": "yarn"}},
            "rope_type: expected 'default', found 'yarn'",
        ),
        ({"rope_parameters": {"type": "linear"}}, "rope_type: expected 'default', found 'linear'"),
        ({"attn_output_gate": False}, "attn_output_gate: expected True, found False"),
        ({"num_experts": 8}, "num_experts: expected 0, found 8"),
        ({"mtp_use_dedicated_embeddings": True}, "expected False, found True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: expected None"),
        ({"vocab_size": None}, r"missing keys \['vocab_size'\]"),
        ({"hidden_size": "wide"}, "hidden_size: expected a whole number"),
        (
            {"layer_types": [FULL]},
            r"layer_types: expected 4 of them \(num_hidden_layers\), found 1",
        ),
        ({"layer_types": 4}, "layer_types: expected a list, found 4"),
        ({"hidden_size": 1 << 30}, "hidden_size: expected a whole number from 1 to"),
        ({"linear_num_value_heads": 8}, "expected shape"),
    ],
)
def test_wrong_configurations_are_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    write(tmp_path, weights_of(small_model()), **changes)
    with pytest.raises(CheckpointError, match=words):
        read_model(tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: cannot be read"):
        read_model(tmp_path)
    write(tmp_path, weights_of(small_model()))
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-100], b"", whole[:5], b"\xff" * 400):
        path.write_bytes(content)
        with pytest.raises(
            CheckpointError, match=r"model.safetensors: expected a safetensors file"
        ):
            read_model(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: no such file"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({}, "expected an object under 'weight_map'"),
        ({"model.norm.weight": "../secret.safetensors"}, "expected the name of a file beside it"),
        ({"model.norm.weight": 3}, "expected the name of a file beside it, found 3"),
        ({"model.norm.weight": "gone.safetensors"}, "gone.safetensors: no such file"),
        ({"model.other": "model-00001.safetensors"}, r"says it holds \['model.other'\]"),
    ],
)
def test_wrong_indices_are_refused(tmp_path: Path, where: dict[str, object], words: str) -> None:
    weights = weights_of(small_model())
    write(tmp_path, weights)
    (tmp_path / "model.safetensors").unlink()
    shard(tmp_path, weights)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(CheckpointError, match=words):
        read_model(tmp_path)
