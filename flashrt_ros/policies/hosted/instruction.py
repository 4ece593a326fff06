"""The task text as token ids of a fixed length, so that another task needs no other graph."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from flashrt_ros.errors import CheckpointError, InvalidArgumentError, UnsupportedError
from flashrt_ros.runtime.buffers import BufferSpec, Role

TOKENS, MASK = "language.tokens", "language.mask"
Seen = Mapping[str, "np.ndarray[Any, Any] | None"]
"""Port key to its value on the host."""


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, special tokens included, neither cut nor padded."""


@dataclass(frozen=True)
class Instruction:
    """How the task text gets into the batch.

    Buffers: ``language.tokens`` ``(L,)`` int64, ``language.mask`` ``(L,)`` bool, true where there
    is a token. In the batch both are ``(1, L)``.

    Attributes:
        tokenizer: Makes ids of a text.
        length: L, tokens; shorter texts are padded on the right, longer ones refused.
        pad_id: Id of the padding.
        tokens_key: Key of the ids in the batch.
        mask_key: Key of the mask in the batch.
        prompt: Makes the text that is tokenised, of the task and, with ``observes``, of the
            observations (empty where only the task is to be judged).
        observes: Whether the prompt holds observations, so that it is made anew for each plan.
    """

    tokenizer: Tokenizer = field(repr=False)
    length: int
    pad_id: int = 0
    tokens_key: str = "observation.language.tokens"
    mask_key: str = "observation.language.attention_mask"
    prompt: Callable[[str, Seen], str] = field(default=lambda task, seen: task, repr=False)
    observes: bool = False

    def specs(self) -> tuple[BufferSpec, ...]:
        """Its input buffers."""
        return (
            BufferSpec(TOKENS, (self.length,), torch.int64, Role.INPUT, "tokens"),
            BufferSpec(MASK, (self.length,), torch.bool, Role.INPUT),
        )

    def encode(self, task: str, seen: Seen) -> Mapping[str, torch.Tensor]:
        """Buffers of a task; see ``Policy.encode_task``.

        Raises:
            InvalidArgumentError: There are too many tokens.
        """
        ids = self.tokenizer.encode(self.prompt(task, seen))
        if len(ids) > self.length:
            raise InvalidArgumentError(
                f"task {task!r}: expected at most {self.length} tokens, found {len(ids)}; say it "
                "in fewer words"
            )
        padding = self.length - len(ids)
        return {
            TOKENS: torch.tensor([*ids, *[self.pad_id] * padding], dtype=torch.int64),
            MASK: torch.tensor([True] * len(ids) + [False] * padding),
        }

    def to_dict(self) -> Mapping[str, object]:
        """JSON values for the state id."""
        return {"length": self.length, "pad_id": self.pad_id}


class LocalTokenizer:
    """``tokenizer.json`` of a local directory, read by the library ``tokenizers``.

    Args:
        directory: That holds it, and ``tokenizer_config.json`` that names the padding.

    Attributes:
        pad_id: Id of the padding; 0 where none is named.

    Raises:
        UnsupportedError: The library is not installed.
        CheckpointError: The directory has no such file, or an ill-shaped one.
    """

    def __init__(self, directory: Path) -> None:
        try:
            library: Any = importlib.import_module("tokenizers")
        except ImportError as error:
            raise UnsupportedError(
                f"{directory}: a task text is tokenised by the Python package 'tokenizers', which "
                "is not installed: pip install tokenizers"
            ) from error
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"{path}: expected the tokenizer of the policy, found no such file; copy it from "
                "the model that the policy was built on (nothing is downloaded here)"
            )
        try:
            # Read here: the library takes any path for what it is, and says little.
            self._reader = library.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:
            raise CheckpointError(
                f"{path}: expected a tokenizer, found a fault: {error}"
            ) from None
        self._reader.no_padding()
        self._reader.no_truncation()
        self.pad_id = self._padding(directory / "tokenizer_config.json")

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``."""
        return list(self._reader.encode(text).ids)

    def _padding(self, path: Path) -> int:
        if not path.is_file():
            return 0
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
            word = found.get("pad_token")
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path}: expected a JSON object: {error}") from None
        if isinstance(word, dict):
            word = word.get("content")
        identity = self._reader.token_to_id(word) if isinstance(word, str) else None
        return 0 if identity is None else int(identity)
