"""The text that a checkpoint's processors make of a task, before it is tokenised."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.hosted.instruction import Instruction, LocalTokenizer, Seen, Tokenizer
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.feature import STATE
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser
from flashrt_ros.policies.lerobot.processor import NEW_LINE, PREPROCESSOR, TOKENIZER, WITH_STATE

BINS = 256
_LONGEST = 200
"""A bin of three digits: with such a text is judged before any state was seen."""


def read_instruction(
    checkpoint: LeRobotCheckpoint, tokenizer: Tokenizer, normaliser: CheckpointNormaliser
) -> Instruction:
    """The instruction of a checkpoint, from its preprocessor.

    Args:
        checkpoint: With the step ``tokenizer_processor``.
        tokenizer: Of the model that the policy was built on.
        normaliser: Of the same checkpoint.

    Raises:
        CheckpointError: The step is missing, or asks for what is not done here.
    """
    steps = checkpoint.preprocessor or ()
    found = [step for step in steps if step.name == TOKENIZER]
    if len(found) != 1:
        raise CheckpointError(
            f"{checkpoint.directory / PREPROCESSOR}: steps: expected one step {TOKENIZER!r}, "
            f"found {len(found)}"
        )
    settings = found[0].settings()
    if settings.word("padding_side", "right") != "right":
        raise settings.fault("padding_side", "'right'", settings.values["padding_side"])
    names = [step.name for step in steps]
    make: Callable[[str, Seen], str] = _plain
    if any(name in names for name in NEW_LINE):
        make = _with_new_line
    observes = WITH_STATE in names
    if observes:
        own = steps[names.index(WITH_STATE)].settings()
        feature = checkpoint.input_features.get(STATE)
        if feature is None:
            raise CheckpointError(f"{own.where}: expected the input {STATE!r}, found none")
        make = StatePrompt(
            normaliser, own.integer("max_state_dim", at_least=feature.shape[0]), feature.shape[0]
        )
    return Instruction(
        tokenizer,
        settings.integer("max_length", at_least=1, at_most=1 << 16),
        pad_id=tokenizer.pad_id if isinstance(tokenizer, LocalTokenizer) else 0,
        prompt=make,
        observes=observes,
    )


def _plain(task: str, seen: Seen) -> str:
    return task


def _with_new_line(task: str, seen: Seen) -> str:
    return task if task.endswith("\n") else f"{task}\n"


class StatePrompt:
    """Task and state in words.

    Each element of the normalised state is the number of its bin among 256 from -1 to 1, and zeros
    follow up to the width: ``huggingface/lerobot:src/lerobot/policies/pi05/processor_pi05.py``.

    Args:
        normaliser: Of the state; copied, so that it stays on the host.
        width: Numbers in the text.
        size: Elements of the state.
    """

    def __init__(self, normaliser: CheckpointNormaliser, width: int, size: int) -> None:
        self._normaliser = copy.deepcopy(normaliser.of(STATE)) if normaliser.has(STATE) else None
        self._width = width
        self._size = size

    @torch.no_grad()
    def __call__(self, task: str, seen: Seen) -> str:
        """The text."""
        state = seen.get(STATE)
        padding = [0.0] * (self._width - self._size)
        if state is None:
            numbers = np.full(self._size, _LONGEST)
        else:
            value = torch.from_numpy(np.array(state, np.float32))
            if self._normaliser is not None:
                value = self._normaliser.normalise(value)
            numbers = _bins(value.numpy())
        words = " ".join(map(str, [*numbers.tolist(), *_bins(np.array(padding)).tolist()]))
        cleaned = task.strip().replace("_", " ").replace("\n", " ")
        return f"Task: {cleaned}, State: {words};\nAction: "


def _bins(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    bins: npt.NDArray[np.int64] = np.digitize(values, np.linspace(-1, 1, BINS + 1)[:-1]) - 1
    return bins
