"""Digests of everything that Python code can reach from a policy.

This finds what no buffer shows: a deque of observations, a counter, a tensor that an attribute is
bound to anew, a value in a closure or a module's global.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import random
import types
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import torch
from torch import nn

_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.Size,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch._ops.OpOverload,
)
_FOREIGN = ("torch", "builtins", "abc", "typing", "flashrt_ros.runtime")


def tensor_digest(tensor: torch.Tensor) -> str:
    """Digest of shape, dtype and bytes; waits for the device."""
    host = tensor.detach().contiguous().cpu().reshape(-1)
    digest = hashlib.blake2b(digest_size=12)
    if host.numel():
        digest.update(host.view(torch.uint8).numpy().data)
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)} {digest.hexdigest()}"


def weight_digests(module: nn.Module) -> dict[str, str]:
    """Name to digest of every parameter and buffer, those not saved included."""
    return {name: tensor_digest(tensor) for name, tensor in _weights(module).items()}


def attribute_digests(policy: object, module: nn.Module) -> dict[str, str]:
    """Path to digest of all attributes of a policy, its module and the classes of both.

    Weights are given by their address only, so that a change of their bytes is told apart.
    """
    walk = _Walk({id(tensor) for tensor in _weights(module).values()})
    walk.visit(policy, "policy")
    walk.visit(module, "module")
    for owner, path in ((policy, "policy"), (module, "module")):
        for cls in type(owner).__mro__:
            if not cls.__module__.startswith(_FOREIGN):
                walk.class_(cls, f"class of {path}, {cls.__qualname__}")
    return walk.found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Paths that were added, removed or changed."""
    paths = [*before, *(path for path in after if path not in before)]
    return [path for path in paths if before.get(path) != after.get(path)]


def _weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class _Walk:
    def __init__(self, weights: AbstractSet[int]) -> None:
        self.found: dict[str, str] = {}
        self._weights = weights
        # Objects are kept, so that no id is given to another object during the walk.
        self._seen: dict[int, tuple[str, object]] = {}

    def visit(self, value: object, path: str) -> None:
        if isinstance(value, _PLAIN):
            self.found[path] = repr(value)
            return
        if id(value) in self._seen:
            self.found[path] = f"is {self._seen[id(value)][0]}"
            return
        self._seen[id(value)] = (path, value)
        if isinstance(value, torch.Tensor):
            content = "" if id(value) in self._weights else tensor_digest(value)
            self.found[path] = f"tensor at {value.data_ptr():#x} {content}"
        elif isinstance(value, np.ndarray):
            self.found[path] = (
                f"array {value.shape} {hashlib.blake2b(value.tobytes()).hexdigest()}"
            )
        elif isinstance(value, torch.Generator):
            self.found[path] = f"generator {tensor_digest(value.get_state())}"
        elif isinstance(value, random.Random):
            self.found[path] = f"generator {hash(value.getstate())}"
        elif isinstance(value, Mapping):
            self.found[path] = f"{type(value).__name__} of {len(value)}"
            self._all((f"{path}[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, (list, tuple, deque)):
            self.found[path] = f"{type(value).__name__} of {len(value)}"
            self._all((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, AbstractSet):
            self.found[path] = repr(sorted(map(repr, value)))
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self._all(((f"{path}.__self__", value.__self__), (path, value.__func__)))
        elif isinstance(value, (staticmethod, classmethod)):
            self.visit(value.__func__, path)
        elif isinstance(value, property):
            self.visit(value.fget, path)
        elif isinstance(value, functools.partial):
            self._all(((f"{path}.func", value.func), (f"{path}.args", value.args)))
            self.visit(value.keywords, f"{path}.keywords")
        elif isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            self.found[path] = f"generator at {frame.f_lasti if frame else 'its end'}"
            self.visit(dict(frame.f_locals) if frame else None, f"{path}.locals")
        elif isinstance(value, weakref.ReferenceType):
            self.found[path] = "weak reference"
        else:
            self._object(value, path)

    def class_(self, cls: type, path: str) -> None:
        hidden = ("__", "_abc_")
        self._all(
            (f"{path}.{name}", value)
            for name, value in vars(cls).items()
            if not name.startswith(hidden)
        )

    def _object(self, value: object, path: str) -> None:
        fields = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    fields.setdefault(name, getattr(value, name))
        if fields:
            self.found[path] = type(value).__qualname__
            self._all((f"{path}.{name}", item) for name, item in fields.items())
            return
        try:
            # Iterators and counters say their position only here.
            self.found[path] = repr(value.__reduce__())
        except Exception:
            self.found[path] = repr(value)

    def _function(self, function: types.FunctionType, path: str) -> None:
        self.found[path] = f"function {function.__qualname__}"
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.visit(cell.cell_contents, f"{path}, closure variable {name}")
            except ValueError:
                self.found[f"{path}, closure variable {name}"] = "empty"
        self._all(
            (f"{path}, default {index}", item)
            for index, item in enumerate(function.__defaults__ or ())
        )
        if function.__module__.startswith(_FOREIGN):
            return
        for name in code.co_names:
            value = function.__globals__.get(name)
            if not callable(value) and not isinstance(value, types.ModuleType):
                self.visit(value, f"global {function.__module__}.{name}")

    def _all(self, items: Iterable[tuple[str, object]]) -> None:
        for path, value in items:
            self.visit(value, path)
