"""Tokenizers of letters, and checkpoints of policies that read a task, without LeRobot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lerobot_files import FRONT, MODES, STATE, edit_json, feature, statistics, write_checkpoint

WORDS = ["<pad>", "<s>", "<unk>", "\n", *(chr(code) for code in range(32, 127))]
CHUNK, LENGTH, WIDE, A, S = 6, 40, 8, 3, 4
LINE = {
    "smolvla": "smolvla_new_line_processor",
    "pi0": "pi0_new_line_processor",
    "pi05": "pi05_prepare_state_tokenizer_processor_step",
}


def write_tokenizer(directory: Path, pad: str = "<pad>") -> Path:
    """``tokenizer.json`` with a beginning before each text, and its configuration."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    directory.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    made.enable_truncation(3)  # what a file says of lengths must not matter
    made.enable_padding(length=50)
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"pad_token": pad}))
    return directory


def ids(text: str) -> list[int]:
    return [1, *(WORDS.index(letter) for letter in text)]


def config(kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "input_features": {STATE: feature("STATE", S), FRONT: feature("VISUAL", 3, 12, 16)},
        "output_features": {"action": feature("ACTION", A)},
        "n_obs_steps": 1,
        "chunk_size": CHUNK,
        "n_action_steps": 4,
        "max_action_dim": WIDE,
        "max_state_dim": WIDE,
        "normalization_mapping": {**MODES, "VISUAL": "IDENTITY"},
        "rtc_config": None,
    }


def write_language(directory: Path, kind: str, tokenizer: bool = True, **changed: Any) -> Path:
    """Writes a checkpoint of a type that reads a task.

    Args:
        directory: Made if it is not there.
        kind: ``smolvla``, ``pi0`` or ``pi05``.
        tokenizer: With a tokenizer beside it.
        changed: Keys of config.json.

    Returns:
        The directory.
    """
    values = {**config(kind), **changed}
    stats = statistics(values["input_features"], values["output_features"])
    write_checkpoint(directory, values, {"w": torch.ones(1)}, stats)

    def add(value: Any) -> None:
        text = {"registry_name": LINE[kind], "config": {"max_state_dim": WIDE}}
        if kind != "pi05":
            text["config"] = {}
        tokens = {
            "registry_name": "tokenizer_processor",
            "config": {
                "max_length": 80 if kind == "pi05" else LENGTH,
                "padding_side": "right",
                "padding": "longest",
                "tokenizer_name": "somebody/model",
            },
        }
        value["steps"] += [text, tokens]

    edit_json(directory / "policy_preprocessor.json", add)
    if tokenizer:
        write_tokenizer(directory)
    return directory
