"""Watches the operations of a policy for those that a captured graph cannot do.

On CUDA a capture would fail on them; here they are also found where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


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


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)
