"""Watches the operations of a policy for writes to tensors that are none of its buffers.

What is kept there is no part of a capsule, however seldom it matters: this finds it without
waiting for the step at which it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class ForeignWrites(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Records writes to what is neither a buffer nor made in the same call.

    Attributes:
        found: Pairs of call and words, each once.
    """

    def __init__(self, buffers: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.found: dict[tuple[str, str], None] = {}
        self._own = {_address(tensor) for tensor in buffers}
        # Kept until the call ends, so that no address is given twice within it.
        self._fresh: dict[int, Any] = {}
        self._call = ""

    def watch(self, call: str, done: bool) -> None:
        """For ``Rig.watch``."""
        self._call = "" if done else call
        self._fresh.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Looks at one operation and runs it."""
        given = dict(kwargs or {})
        if not self._call:
            return func(*args, **given)
        seen = {_address(tensor) for tensor in _tensors((args, list(given.values())))}
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else given.get(argument.name)
            for tensor in _tensors(value):
                if _address(tensor) not in self._own and _address(tensor) not in self._fresh:
                    words = f"{func._schema.name} on {list(tensor.shape)} {tensor.dtype}"
                    self.found[self._call, words] = None
        result = func(*args, **given)
        for tensor in _tensors(result):
            # What torch.tensor has made comes here for the first time as an argument.
            if _address(tensor) not in seen or func._schema.name.startswith("aten::lift"):
                self._fresh[_address(tensor)] = tensor.untyped_storage()
        return result


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.numel():
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
