"""Watches the operations of a policy for those that a captured graph cannot do.

On CUDA a capture would fail on them; here they are also found where there is no GPU.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {
    "aten::_local_scalar_dense": "item(), or a tensor used as a Python number or condition",
    "aten::equal": "torch.equal, whose answer is a Python bool",
    "aten::is_nonzero": "a tensor used as a condition",
    "aten::nonzero": "nonzero, whose size depends on the values",
    "aten::masked_select": "masked_select, whose size depends on the values",
    "aten::multinomial": "multinomial, which reads back and draws from a global generator",
}
_COPIES = ("aten::copy_", "aten::_to_copy")
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Records reads in ``plan``, ``adopt`` and ``act``; those in a reset are harmless.

    Attributes:
        found: Pairs of call and words, each once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.found: dict[tuple[str, str], None] = {}
        self._call = ""

    def watch(self, call: str, done: bool) -> None:
        """For ``Rig.watch``."""
        self._call = "" if done or call == "reset_" else call

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Looks at one operation and runs it."""
        if self._call:
            name = func._schema.name
            if name in _READS:
                self.found[self._call, _READS[name]] = None
            elif name in _INDEXING and _has_mask(args[1]):
                self.found[self._call, "indexing with a boolean mask"] = None
        return func(*args, **(kwargs or {}))


class _Obstacles(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Finds the first operation that a capture forbids, and the line that asked for it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.first = ""
        self._device = device.type

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Looks at one operation and runs it."""
        result = func(*args, **(kwargs or {}))
        if not self.first:
            words = self._forbidden(func._schema.name, args, result)
            if words:
                self.first = f"{words} {_caller()}"
        return result

    def _forbidden(self, name: str, args: Sequence[Any], result: Any) -> str:
        tensors = [value for value in (*args, result) if isinstance(value, torch.Tensor)]
        if all(tensor.device.type != self._device for tensor in tensors):
            return ""  # the host's own values, which are the same at each replay
        if name in _READS:
            return f"{name} ({_READS[name]})"
        if name in _INDEXING and _has_mask(args[1]):
            return f"{name} (indexing with a boolean mask)"
        hosts = [tensor for tensor in tensors if tensor.device.type == "cpu"]
        if name in _COPIES and self._device != "cpu" and hosts and not hosts[0].is_pinned():
            return f"{name} (a copy between host and device)"
        return ""


def first_obstacle(fn: Callable[[], None], device: torch.device) -> str:
    """Calls ``fn`` and returns the first operation that a capture forbids; empty without one.

    Args:
        fn: What would be captured.
        device: Where its tensors are; values that lie on the host only may be read.

    Returns:
        The operation, and file, line and text of the code that asked for it, in one line.
    """
    watch = _Obstacles(device)
    with watch:
        fn()
    return watch.first


def place_of(error: BaseException) -> str:
    """Where an error was first raised, outside of torch: file, line and text, in one line."""
    first = error
    while first.__context__ is not None:
        first = first.__context__
    return _place(traceback.extract_tb(first.__traceback__))


def _caller() -> str:
    return _place(traceback.extract_stack())


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    for frame in reversed(frames):
        if not frame.filename.startswith(_OWN):
            return f"at {Path(frame.filename).name}:{frame.lineno}: {frame.line}"
    return "at an unknown place"


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)
