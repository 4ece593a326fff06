"""Which operators a program may call, and how its arguments are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.program.archive import DTYPES
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.strict_json import shown

DRAW = "torch.ops.flashrt_ros.draw.default"
"""Noise from key and counter; see ``noise.drawn``."""
_INNER = (
    "__and__",
    "__or__",
    "__xor__",
    "_log_softmax",
    "_native_batch_norm_legit_no_training",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_softmax",
    "_to_copy",
    "_unsafe_view",
    "_weight_norm_interface",
)
"""Operators that torch keeps for itself and yet writes into programs."""
_DROPOUT = (
    "dropout",
    "dropout_",
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)
_REFUSED = ("from_file", "resize", "resize_", "resize_as_", "set_", "record_stream")
"""Those that reach beyond the tensors that they are given."""
_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_NOTHING = (
    "_assert_tensor_metadata.default",
    "_assert_scalar.default",
    "sym_constrain_range.default",
)


@dataclass(frozen=True)
class Tensor:
    """An argument that is computed: its name."""

    name: str


class _DeviceOfProgram:
    """Stands for the device that the program lies on, wherever it was exported."""


DEVICE = _DeviceOfProgram()


def skips(target: str) -> bool:
    """Whether an operator only checks what was known at the export."""
    return target.removeprefix("torch.ops.aten.") in _NOTHING


def operator(where: str, target: object) -> Any:
    """The operator of that name.

    Raises:
        CheckpointError: It is none that a program may call.
    """
    if target == DRAW:
        return noise.drawn
    words = target.split(".") if isinstance(target, str) else []
    if len(words) != 5 or words[:3] != ["torch", "ops", "aten"]:
        raise CheckpointError(
            f"{where}: expected an operator torch.ops.aten.*, found {shown(target)}"
        )
    name, overload = words[3:]
    inner = name.startswith("_") and name not in _INNER
    packet = None if inner or name in _REFUSED else getattr(torch.ops.aten, name, None)
    found = (
        getattr(packet, overload, None)
        if isinstance(packet, torch._ops.OpOverloadPacket)
        else None
    )
    if not isinstance(found, torch._ops.OpOverload):
        raise CheckpointError(f"{where}: operator {target!r} may not be called by a program")
    draws = torch.Tag.nondeterministic_seeded in found.tags
    # These draw only with a dropout, which is looked at among their arguments.
    if draws and name not in _DROPOUT:
        raise CheckpointError(
            f"{where}: operator {target!r} draws from a global generator; draw with "
            "flashrt_ros.runtime.noise instead"
        )
    return found


def arguments(
    where: str, function: Any, values: list[Mapping[str, Any]]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, tensors as ``Tensor``.

    Raises:
        CheckpointError: One is of a kind that is not read here, or the operator has none such.
    """
    given = {str(value.get("name")): value for value in values}
    if function is noise.drawn:
        return [], {name: _value(where, value["arg"]) for name, value in given.items()}
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    held: list[Any] = []
    for argument in function._schema.arguments:
        value = given.pop(argument.name, None)
        if value is None:
            held.append(argument.default_value if argument.has_default_value() else None)
            continue
        read = _value(where, value.get("arg"))
        if argument.kwarg_only:
            keywords[argument.name] = read
        else:
            positional += [*held, read]
            held = []
    if given:
        raise CheckpointError(f"{where}: unknown arguments {shown(sorted(given))}")
    _check_dropout(where, function, positional, keywords)
    return positional, keywords


def _check_dropout(
    where: str, function: Any, positional: list[Any], keywords: Mapping[str, Any]
) -> None:
    name = function._schema.name.removeprefix("aten::")
    if name not in _DROPOUT:
        return
    names = [argument.name for argument in function._schema.arguments]
    values = {**dict(zip(names, positional, strict=False)), **keywords}
    on = values.get("train", True) if "train" in names else values.get("dropout_p", 0.0)
    if on:
        raise CheckpointError(f"{where}: dropout in training: export the module in eval mode")


def _value(where: str, given: Any) -> Any:
    if not isinstance(given, Mapping) or len(given) != 1:
        raise CheckpointError(f"{where}: expected one argument, found {shown(given)}")
    kind, value = next(iter(given.items()))
    read = _KINDS.get(kind)
    if read is None:
        hint = ""
        if kind.startswith("as_sym"):
            hint = ": sizes that depend on values are not run here; export with fixed shapes"
        elif kind == "as_graph":
            hint = ": control flow inside a program is not run here"
        raise CheckpointError(f"{where}: argument of kind {kind!r} is not read here{hint}")
    try:
        return read(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{where}: argument {shown(value)}: {error!r}") from None


def _device(value: Any) -> Any:
    if value["type"] not in ("cpu", "cuda", "meta"):
        raise ValueError("expected a device cpu or cuda")
    return DEVICE


def _optional(value: Any) -> Any:
    return Tensor(value["as_tensor"]["name"]) if "as_tensor" in value else None


def _many(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [read(value) for value in values]


def _name(value: Any) -> Tensor:
    return Tensor(value["name"])


def _complex(value: Any) -> complex:
    return complex(value["real"], value["imag"])


def _plain(*types: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        for one in value if isinstance(value, list) else [value]:
            if type(one) not in types and not isinstance(one, list):
                raise TypeError(f"expected {types}")
        return value

    return read


_KINDS: dict[str, Callable[[Any], Any]] = {
    "as_none": lambda value: None,
    "as_tensor": _name,
    "as_tensors": _many(_name),
    "as_optional_tensor": _optional,
    "as_optional_tensors": _many(_optional),
    "as_int": _plain(int),
    "as_ints": _plain(int),
    "as_int_lists": _plain(int),
    "as_float": lambda value: float(value),
    "as_floats": _many(float),
    "as_bool": _plain(bool),
    "as_bools": _plain(bool),
    "as_string": _plain(str),
    "as_scalar_type": DTYPES.__getitem__,
    "as_memory_format": _FORMATS.__getitem__,
    "as_layout": lambda value: {7: torch.strided}[value],
    "as_device": _device,
    "as_complex": _complex,
}
