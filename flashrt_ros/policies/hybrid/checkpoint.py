"""Reads the directory of a Qwen3.5 model: ``config.json`` and safetensors, in shards or in one.

transformers is not needed. Published models with images have ``model.language_model.`` where text
models have ``model.``, and their ``model.visual.`` is left alone; both may bring ``mtp.``, the
multi-token-prediction head, which transformers neither loads nor saves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import CONFIG, WEIGHTS
from flashrt_ros.policies.hybrid.config import ModelConfig, read_pretrained
from flashrt_ros.policies.hybrid.model import HybridModel

INDEX = "model.safetensors.index.json"
_OUTER, _IGNORED = "model.language_model.", ("model.visual.",)
_TIED = "lm_head.weight"


def read_model(directory: Path | str, dtype: str | None = None) -> HybridModel:
    """Makes the model of a directory that ``save_pretrained`` wrote, or of a published one.

    Args:
        directory: Holds ``config.json`` and ``model.safetensors``, or shards and their index.
        dtype: Of weights and activations; None takes the configuration's.

    Returns:
        The model on the CPU, with an MTP head if there are weights of one.

    Raises:
        CheckpointError: A file is missing or damaged, or configuration and weights do not fit
            each other; names file and key.
    """
    directory = Path(directory)
    config_path = directory / CONFIG
    values = _read_json(config_path)
    files = _files(directory)
    # Read whole before anything is made, one tensor at a time: a damaged file changes nothing.
    headers = {path: dict(_header(path, keys)) for path, keys in files.items()}
    names = {name: path for path, header in headers.items() for name in header}
    config = read_pretrained(values, str(config_path), any(n.startswith("mtp.") for n in names))
    if dtype is not None:
        config = ModelConfig.from_dict({**config.to_dict(), "dtype": dtype}, "dtype")
    with torch.device("meta"):
        # Without memory: a configuration that is not the weights' may ask for any amount.
        expected = HybridModel(config).state_dict()
    if config.tie_word_embeddings:
        names.pop(_TIED, None)  # a second name of the embeddings
    missing = [key for key in expected if key not in names]
    unknown = [key for key in names if key not in expected]
    if missing or unknown:
        raise CheckpointError(
            f"{directory}: missing keys {missing}, unknown keys {unknown}; does {CONFIG} belong to"
            " these weights?"
        )
    for name, path in names.items():
        shape = headers[path][name][1]
        if shape != tuple(expected[name].shape):
            raise CheckpointError(
                f"{path}: {name!r}: expected shape {tuple(expected[name].shape)}, found {shape}"
            )
    model = HybridModel.empty(config).eval()
    for path, header in headers.items():
        wanted = {name: key for name, (key, _) in header.items() if name in expected}
        _load(model, path, wanted)
    return model


def _load(model: HybridModel, path: Path, wanted: dict[str, str]) -> None:
    parameters = dict(model.named_parameters())
    with safe_open(path, framework="pt") as file, torch.no_grad():
        for name, key in wanted.items():
            tensor = file.get_tensor(key)
            if not tensor.is_floating_point():
                raise CheckpointError(
                    f"{path}: {key!r}: expected floating-point weights, found {tensor.dtype};"
                    " quantised weights are not read"
                )
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(
                    f"{path}: {key!r}: expected finite values, found NaN or infinity"
                )
            parameters[name].copy_(tensor)


def _files(directory: Path) -> dict[Path, list[str] | None]:
    """Weight files to the keys that the index says they hold, None without an index."""
    index_path = directory / INDEX
    # As transformers does: one file comes before shards, whose index may be of an older save.
    if (directory / WEIGHTS).is_file() or not index_path.is_file():
        return {directory / WEIGHTS: None}
    where = _read_json(index_path).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise CheckpointError(f"{index_path}: expected an object under 'weight_map'")
    files: dict[Path, list[str] | None] = {}
    for key, name in where.items():
        if not isinstance(name, str) or Path(name).name != name or not name.strip("."):
            raise CheckpointError(
                f"{index_path}: {key!r}: expected the name of a file beside it, found {name!r}"
            )
        listed = files.setdefault(directory / name, [])
        assert listed is not None
        listed.append(key)
    return files


def _header(path: Path, keys: list[str] | None) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yields our name of each weight, its key in the file and its shape."""
    if not path.is_file():
        raise CheckpointError(
            f"{path}: no such file; a model directory holds {CONFIG} and {WEIGHTS}, or the files"
            f" that {INDEX} names"
        )
    try:
        with safe_open(path, framework="pt") as file:
            found = set(file.keys())
            absent = sorted(set(keys or ()) - found)
            if absent:
                raise CheckpointError(f"{path}: {INDEX} says it holds {absent}, but it does not")
            for key in sorted(found if keys is None else keys):
                if key.startswith(_IGNORED):
                    continue
                name = "model." + key.removeprefix(_OUTER) if key.startswith(_OUTER) else key
                yield name, (key, tuple(file.get_slice(key).get_shape()))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected a safetensors file, found a damaged one: {error}"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); a model directory holds {CONFIG}"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path}: expected JSON, found a fault: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values
