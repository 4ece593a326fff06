"""transformers' own model on our hybrid's weights, where it is installed: the peer of hybrids.

Our package never needs it. It computes the delta rule with flash-linear-attention, and convolves
with causal-conv1d, where these were importable as it was imported itself; else, and for whoever
asks, with functions in torch. Everything is imported by name, since nothing may depend on it.

Tensor suffixes: T tokens.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from flashrt_ros.bench.report import Result
from flashrt_ros.errors import InternalError, UnsupportedError
from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.runtime.derived import derived_names

MODELING = "transformers.models.qwen3_5.modeling_qwen3_5"
CONFIGURATION = "transformers.models.qwen3_5.configuration_qwen3_5"
FUNCTIONS = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "causal_conv1d_fn",
    "causal_conv1d_update",
)
"""Its module looks these up at each call; each is a choice between a kernel and torch."""
DISTRIBUTIONS = {
    "fla": ("flash-linear-attention", "fla-core"),
    "causal_conv1d": ("causal-conv1d",),
}
LIBRARIES = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}
_HEAD, _EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Forced:
    """What the peer would have chosen behind each token of a sequence that is given.

    Attributes:
        equal: Tokens that are those of the sequence.
        count: Tokens looked at.
        behind: By how much the logit of the sequence's token is below the best, at most.
        spread: Standard deviation of the logits.
    """

    equal: int
    count: int
    behind: float
    spread: float


class TransformersPeer:
    """``Qwen3_5ForCausalLM`` over the very weights of a model of ours, in the same memory.

    Attributes:
        version: Of transformers.
        ways: How it can be run here, by name: with kernels of other libraries, and without.

    Args:
        model: Ours; its MTP head has no counterpart.
        device: Where it lies.
        longest: Most tokens of a sequence.

    Raises:
        UnsupportedError: This transformers is another than those that this module knows.
        InternalError: The weights are not one to one those that it has.
    """

    def __init__(self, model: HybridModel, device: torch.device, longest: int) -> None:
        self.version = str(importlib.import_module("transformers").__version__)
        self._modeling: ModuleType = importlib.import_module(MODELING)
        missing = [name for name in FUNCTIONS if not hasattr(self._modeling, name)]
        if missing:
            raise UnsupportedError(
                f"transformers {self.version}: expected {', '.join(missing)} in {MODELING}, as in"
                " 5.17 to 5.24, found none"
            )
        self._kernels = {name: implementation(self._modeling, name) for name in FUNCTIONS}
        foreign = sorted(
            {found.partition(".")[0] for found in self._kernels.values()} & {*LIBRARIES}
        )
        self.ways: dict[str, bool] = {}
        if foreign and device.type == "cuda":
            self.ways[f"transformers, {' and '.join(LIBRARIES[name] for name in foreign)}"] = True
        self.ways["transformers, torch alone"] = False
        self.device = device
        self.model = self._load(model, longest)
        parameters = inspect.signature(self.model.forward).parameters
        # Its name has changed from version to version.
        self._cache = "cache" if "cache" in parameters else "past_key_values"

    def _load(self, model: HybridModel, longest: int) -> Any:
        configuration: Any = importlib.import_module(CONFIGURATION)
        values = config_values(model.config, longest)
        with torch.device(self.device):
            made: Any = self._modeling.Qwen3_5ForCausalLM(
                configuration.Qwen3_5TextConfig(**values)
            )
        given = dict(model.state_dict())
        if model.config.tie_word_embeddings:
            given[_HEAD] = given[_EMBEDDINGS]
        expected, known = list(made.state_dict()), ("mtp.", *derived_names(model))
        missing = [name for name in expected if name not in given]
        unused = [n for n in given if n not in expected and not n.startswith(known)]
        if missing or unused:
            raise InternalError(
                f"transformers {self.version}: expected our weights under its names, found none"
                f" for {missing[:3]}, and {unused[:3]} that it has not"
            )
        made.load_state_dict({name: given[name] for name in expected}, strict=True, assign=True)
        return made.requires_grad_(False).eval()

    @property
    def words(self) -> str:
        """Its version, and who computes what in each way."""
        found = [f"transformers {self.version} on the same weights, in the same memory"]
        for package, library in LIBRARIES.items():
            names = [name for name, path in self._kernels.items() if path.startswith(package)]
            if not names:
                found.append(f"{library} is {absence(package)}")
            elif self.device.type != "cuda":
                found.append(f"{library} {version_of(package)} needs a GPU, and is left out")
            else:
                found.append(f"{library} {version_of(package)} stands for {', '.join(names)}")
        return "; ".join(found) + "."

    @contextlib.contextmanager
    def using(self, way: str) -> Iterator[None]:
        """Within, its functions are those of a way.

        Args:
            way: One of ``ways``.
        """
        before = {name: getattr(self._modeling, name) for name in FUNCTIONS}
        if not self.ways[way]:
            for name, function in before.items():
                setattr(self._modeling, name, inspect.unwrap(function))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(self._modeling, name, function)

    def prefill(self, way: str, tokens: list[int]) -> Callable[[], int]:
        """Returns the call that takes a prompt, on the device already, to the next token."""
        given_1T = torch.tensor([tokens], device=self.device)

        def call() -> int:
            with self.using(way):
                out = self.model(given_1T, use_cache=True, logits_to_keep=1)
            return int(out.logits[0, -1].argmax())

        return call

    def decode(self, way: str, tokens: list[int], capacity: int = 0) -> Callable[[], None]:
        """Returns the call that decodes one token more behind a prompt, which is taken in now.

        Args:
            way: One of ``ways``.
            tokens: The prompt.
            capacity: Tokens of a static cache, at fixed addresses; 0: a cache that grows.
        """
        given_1T, options = torch.tensor([tokens], device=self.device), {}
        if capacity:
            transformers: Any = importlib.import_module("transformers")
            options = {
                self._cache: transformers.StaticCache(
                    config=self.model.config, max_cache_len=capacity
                )
            }
        with self.using(way):
            out = self.model(given_1T, use_cache=True, logits_to_keep=1, **options)
        held = {self._cache: getattr(out, self._cache)}
        token_11 = out.logits[:, -1:].argmax(-1)

        def call() -> None:
            with self.using(way):
                out = self.model(token_11, use_cache=True, **held)
            token_11.copy_(out.logits[:, -1:].argmax(-1))

        return call

    def forced(self, way: str, given: list[int], tokens: list[int]) -> Forced:
        """Compares tokens that we have chosen with what it would have, each behind ours.

        Args:
            way: One of ``ways``.
            given: The prompt.
            tokens: Ours, behind it.
        """
        whole_1T = torch.tensor([[*given, *tokens[:-1]]], device=self.device)
        with self.using(way):
            out = self.model(whole_1T, use_cache=False, logits_to_keep=len(tokens))
        logits_TV, ours_T = out.logits[0].float(), torch.tensor(tokens, device=self.device)
        best_T = logits_TV.max(-1).values
        behind_T = best_T - logits_TV.gather(1, ours_T[:, None])[:, 0]
        equal = int((logits_TV.argmax(-1) == ours_T).sum())
        return Forced(equal, len(tokens), float(behind_T.max()), float(logits_TV.std()))


def open_peer(
    result: Result, model: HybridModel, device: torch.device, longest: int
) -> TransformersPeer | None:
    """Returns the peer; where there is none, None, and the notes of the result say why."""
    if importlib.util.find_spec("transformers") is None:
        result.notes.append("transformers is not installed, so it is not beside ours.")
        return None
    try:
        peer = TransformersPeer(model, device, longest)
    except Exception as error:
        # An older one has no such model; ours can be timed all the same.
        result.notes.append(
            f"transformers cannot run it, so it is not beside ours: {in_a_line(error)}"
        )
        return None
    result.notes.append(peer.words)
    return peer


def config_values(config: ModelConfig, longest: int) -> dict[str, Any]:
    """Returns what ``Qwen3_5TextConfig`` calls our sizes."""
    values = config.to_dict()
    for name in ("dtype", "mtp"):
        del values[name]
    values["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": values.pop("rope_theta"),
        "partial_rotary_factor": values.pop("rotary_dim") / config.head_dim,
    }
    return {
        **values,
        "num_hidden_layers": len(config.layer_types),
        "max_position_embeddings": longest,
    }


def implementation(modeling: ModuleType, name: str) -> str:
    """Returns the module of what a function of transformers calls in the end."""
    function = getattr(modeling, name)
    try:
        chosen = inspect.getclosurevars(function).nonlocals.get("implementation", function)
    except TypeError:
        chosen = function  # no plain function: a kernel of another kind
    return str(getattr(chosen, "__module__", ""))


def in_a_line(error: Exception) -> str:
    """Returns what an error is and the first line of what it says."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def absence(package: str) -> str:
    """Returns why transformers does without a package, in words."""
    if importlib.util.find_spec(package) is None:
        return "not installed"
    try:
        importlib.import_module(package)
    except Exception as error:
        return f"installed, but cannot be imported ({in_a_line(error)})"
    return "installed, but transformers does not take it"


def version_of(package: str) -> str:
    """Returns the version of the first distribution that is there; ``unknown`` if none is."""
    for name in DISTRIBUTIONS[package]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "unknown"
