"""SmolVLA, pi0 and pi05 checkpoints of LeRobot: LeRobot's own network, hosted.

These are too large to be written again here, so LeRobot itself is needed for them, as an optional
package. What it would keep, and its processors, are ours: queue, noise, normalisation, relative
actions, and the tokens of the task.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashrt_ros.errors import CheckpointError, FlashRTError, UnsupportedError
from flashrt_ros.policies.checkpoint import CONFIG
from flashrt_ros.policies.fast.mode import Numerics
from flashrt_ros.policies.hosted import prompt
from flashrt_ros.policies.hosted.description import HostedAction, HostedInput, HostedNoise
from flashrt_ros.policies.hosted.flow_guide import GuidedCall
from flashrt_ros.policies.hosted.instruction import LocalTokenizer, Tokenizer
from flashrt_ros.policies.hosted.policy import HostedPolicy
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.feature import Kind
from flashrt_ros.policies.lerobot.normalisation import make_normaliser
from flashrt_ros.policies.lerobot.processor import LANGUAGE
from flashrt_ros.policies.lerobot.relative import read_relative
from flashrt_ros.policies.lerobot.settings import TRAINING, read_guidance

BACKBONE = "vlm"
"""Directory in a checkpoint with configuration and processor of the model that it was built on."""
_TOKENIZER_PLACES = (".", "tokenizer", BACKBONE)
_EMPTY = "empty_camera_"


def make(checkpoint: LeRobotCheckpoint, numerics: Numerics = Numerics.EXACT) -> HostedPolicy:
    """Makes the policy.

    Raises:
        UnsupportedError: LeRobot, or something that it needs, is not installed, or it is to be
            fast.
        CheckpointError: Something needed is missing, ill-shaped or contradictory; names it.
    """
    if numerics is not Numerics.EXACT:
        raise UnsupportedError(
            f"{checkpoint.directory}: numerics: expected 'exact', found {numerics.value!r}: the"
            f" network of {checkpoint.type!r} is LeRobot's own, and calculates as its"
            " configuration says"
        )
    settings = checkpoint.settings
    if settings.integer("n_obs_steps", 1) != 1:
        raise settings.fault("n_obs_steps", "1", settings.values["n_obs_steps"])
    if settings.integer("memory_frames", 1, at_least=0) > 1:
        raise settings.fault(
            "memory_frames",
            "at most 1, since LeRobot keeps the frames where no capsule would hold them",
            settings.values["memory_frames"],
        )
    chunk_size = settings.integer("chunk_size", at_least=1)
    n_action_steps = settings.integer("n_action_steps", at_least=1)
    wide = settings.integer("max_action_dim", at_least=checkpoint.action.shape[0])
    guidance = read_guidance(settings, chunk_size)
    settings.ignore("*")
    normaliser = make_normaliser(checkpoint, LANGUAGE)
    relative = read_relative(checkpoint)
    instruction = prompt.read_instruction(checkpoint, _tokenizer(checkpoint), normaliser)
    action = checkpoint.action
    hosted, versions = _load(checkpoint)
    guided = None if guidance is None else GuidedCall(hosted, guidance.max_guidance_weight)
    training = tuple(word.rstrip("*") for word in TRAINING)
    return HostedPolicy(
        hosted,
        _inputs(checkpoint),
        HostedAction(action.shape[0], chunk_size, action.names),
        n_action_steps=n_action_steps,
        call=guided or "predict_action_chunk",
        noise=HostedNoise((1, chunk_size, wide)),
        instruction=instruction,
        normaliser=normaliser,
        name=checkpoint.type,
        settings={
            **versions,
            **{k: v for k, v in checkpoint.config.items() if not k.startswith(training)},
        },
        relative=relative,
        guidance=guidance,
    )


def _inputs(checkpoint: LeRobotCheckpoint) -> list[HostedInput]:
    """State and cameras; of a camera that was never there LeRobot makes an image itself."""
    found = []
    for feature in checkpoint.input_features.values():
        if feature.kind in (Kind.STATE, Kind.VISUAL) and _EMPTY not in feature.name:
            found.append(HostedInput(feature.name, feature.shape, names=feature.names))
    return found


def _tokenizer(checkpoint: LeRobotCheckpoint) -> Tokenizer:
    for place in _TOKENIZER_PLACES:
        if (checkpoint.directory / place / "tokenizer.json").is_file():
            return LocalTokenizer(checkpoint.directory / place)
    return LocalTokenizer(checkpoint.directory)  # says what is missing


def _load(checkpoint: LeRobotCheckpoint) -> tuple[Any, dict[str, str]]:
    """LeRobot's policy with its weights on the CPU, and the versions of what runs it."""
    directory, versions = checkpoint.directory, {}
    with _offline():
        try:
            for name in ("lerobot", "transformers"):
                versions[name] = str(importlib.import_module(name).__version__)
            configs = importlib.import_module("lerobot.configs.policies")
            factory = importlib.import_module("lerobot.policies.factory")
            chosen = factory.get_policy_class(checkpoint.type)
        except (ImportError, RuntimeError) as error:
            # A torchvision of another torch fails with a RuntimeError.
            raise UnsupportedError(
                f"{directory / CONFIG}: a policy of type {checkpoint.type!r} runs in LeRobot "
                f"itself, which is not installed whole ({error}); install it into the node's "
                'Python: pip install "lerobot[smolvla,pi]"'
            ) from error
        try:
            config = configs.PreTrainedConfig.from_pretrained(directory)
            config.device = "cpu"
            for name, value in (("compile_model", False), ("rtc_config", None)):
                if hasattr(config, name):
                    setattr(config, name, value)
            if (directory / BACKBONE).is_dir() and hasattr(config, "vlm_model_name"):
                config.vlm_model_name = str(directory / BACKBONE)
            policy = chosen.from_pretrained(directory, config=config)
        except FlashRTError:
            raise
        except Exception as error:
            # Whatever LeRobot raises, it is about this directory.
            raise CheckpointError(_words(directory, checkpoint, error)) from error
    return policy.to("cpu").eval(), versions


def _words(directory: Path, checkpoint: LeRobotCheckpoint, error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    words = f"{directory}: LeRobot cannot load it: {type(error).__name__}: {first}"
    name = checkpoint.config.get("vlm_model_name")
    if isinstance(name, str) and not (directory / BACKBONE).is_dir():
        words += (
            f"; if it misses the files of {name!r}, put its configuration, tokenizer and "
            f"processor into {directory / BACKBONE} (nothing is downloaded here)"
        )
    return words


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Within, the libraries of Hugging Face download nothing."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    before = {name: os.environ.get(name) for name in names}
    # Read at the import of the library, which may have been before.
    imported = sys.modules.get("huggingface_hub.constants")
    online = getattr(imported, "HF_HUB_OFFLINE", None)
    os.environ.update(dict.fromkeys(names, "1"))
    if online is not None:
        imported.HF_HUB_OFFLINE = True  # type: ignore[union-attr]
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if online is not None:
            imported.HF_HUB_OFFLINE = online  # type: ignore[union-attr]
