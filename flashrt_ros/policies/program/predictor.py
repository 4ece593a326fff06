"""A network alone as a program: observations and noise in, a chunk out; hosted like any object.

For those who have a network and no policy: ``torch.export`` of it, and a manifest that says what
goes in and out, in which units, and how it is normalised. Queue, noise, history and normalisation
are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.errors import CheckpointError, FlashRTError
from flashrt_ros.policies.hosted.description import HostedAction, HostedInput, HostedNoise
from flashrt_ros.policies.hosted.policy import HostedPolicy
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser
from flashrt_ros.policies.normalisation import Normalisation, Normaliser
from flashrt_ros.policies.program.manifest import DTYPES, MANIFEST, VERSION
from flashrt_ros.policies.program.policy import load_program
from flashrt_ros.runtime.strict_json import shown

FORMAT = "flashrt_ros.predictor"


def load_predictor(directory: Path, value: Mapping[str, Any], trust: bool = False) -> HostedPolicy:
    """Makes the policy of a manifest of this format.

    Args:
        directory: Of the manifest and its program.
        value: The manifest.
        trust: See ``load_program``.

    Raises:
        CheckpointError: The manifest is ill-shaped, or its program does not fit.
    """
    path = directory / MANIFEST
    if value.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: version: expected {VERSION}, found {shown(value.get('version'))}"
        )
    try:
        return _policy(directory, value, trust)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: expected a manifest, found a fault: {error!r}") from None
    except FlashRTError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _policy(directory: Path, value: Mapping[str, Any], trust: bool) -> HostedPolicy:
    inputs = [
        HostedInput(
            str(item["key"]),
            tuple(item["shape"]),
            DTYPES[item.get("dtype", "float32")],
            tuple(item.get("names", ())),
            str(item.get("unit", "")),
            int(item.get("steps", 1)),
        )
        for item in value["observations"]
    ]
    action = value["action"]
    size = int(action["size"])
    shape = value.get("noise")
    file = value["program"]
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(".pt2"):
        raise CheckpointError(
            f"{directory / MANIFEST}: program: expected the plain name of a .pt2 file beside it, "
            f"found {shown(file)}"
        )
    program = load_program(directory / file, len(inputs) + (shape is not None), 1, trust)
    keys = [item.key for item in inputs]

    def predict(
        batch: Mapping[str, torch.Tensor], noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        found: list[torch.Tensor] = program(
            *(batch[key] for key in keys), *(() if noise is None else (noise,))
        )
        return found[0]

    return HostedPolicy(
        program,
        inputs,
        HostedAction(
            size,
            int(value["chunk_size"]),
            tuple(action.get("names", ())),
            str(action.get("unit", "")),
            int(action.get("first_row", 0)),
        ),
        n_action_steps=value.get("n_action_steps"),
        call=predict,
        noise=None if shape is None else HostedNoise(tuple(shape)),
        normaliser=CheckpointNormaliser(
            {
                item.key: _normaliser(given, item.shape)
                for item, given in zip(inputs, value["observations"], strict=True)
                if given.get("normalisation") is not None
            },
            _normaliser(action, (size,)),
        ),
        name=str(value["name"]),
        settings={"program": str(program.digest)},
    )


def _normaliser(given: Mapping[str, Any], shape: tuple[int, ...]) -> Normaliser:
    """Of one port; an image's statistics are one for each channel."""
    found = given.get("normalisation") or {"mode": "identity"}
    size = (shape[0], 1, 1) if len(shape) == 3 else shape
    statistics = {
        name: torch.tensor(values, dtype=torch.float32).reshape(size)
        for name, values in found.items()
        if name != "mode"
    }
    return Normaliser(Normalisation(found["mode"]), size).set_(statistics)
