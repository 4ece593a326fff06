"""Fingerprints: what must match to restore at all, and to promise a bit-equal continuation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import nn

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.buffers import StateLayout
from flashrt_ros.runtime.derived import derived_names
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.policy import Policy

_PIECE_BYTES = 64 << 20


class Fingerprint:
    """Named facts in a fixed order, and one digest over them.

    Attributes:
        fields: Name to value, in the order given.
        id: SHA-256, in hex, of the canonical text of the fields.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields: Mapping[str, str] = MappingProxyType(dict(fields))
        # JSON quotes every name and value, so no value can pass for another field.
        text = json.dumps(list(self.fields.items()), ensure_ascii=True, separators=(",", ":"))
        self.id = hashlib.sha256(text.encode("ascii")).hexdigest()

    def difference(self, other: Fingerprint) -> tuple[str, str, str] | None:
        """Returns the first field that differs, its value here and there; None if none does."""
        if self.id == other.id:
            return None
        for name in (*self.fields, *(name for name in other.fields if name not in self.fields)):
            mine = self.fields.get(name, "(absent)")
            theirs = other.fields.get(name, "(absent)")
            if mine != theirs:
                return name, mine, theirs
        return None


def state_fingerprint(policy: Policy, layout: StateLayout) -> Fingerprint:
    """Policy, weights and state buffers; not padding, offsets or capacity.

    Raises:
        SpecError: ``policy.config()`` holds something that is no JSON value.
    """
    try:
        config = json.dumps(policy.config(), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"policy {policy.family!r}: config() must hold JSON values only: {error}"
        ) from error
    fields = {
        "policy.family": policy.family,
        "policy.config": config,
        "policy.plan": (
            f"{policy.plan_kind.value} of {policy.chunk_size}, {policy.n_action_steps} taken"
        ),
        "policy.weights": weights_digest(policy.module()),
    }
    for slot in layout.state:
        fields[f"state.{slot.spec.name}"] = describe(slot.spec.dtype, slot.spec.shape)
    for row in layout.rows:
        fields[f"state.{row.spec.name}"] = describe_rows(row.spec.dtype, row.spec.shape)
    return Fingerprint(fields)


def exec_fingerprint(
    state: Fingerprint,
    device: Device,
    capacity: int = 0,
    shapes: Iterable[str] = (),
    numerics: str = "exact",
) -> Fingerprint:
    """The state id and everything on this machine that can change the bits of a result.

    Args:
        state: Fingerprint of the state.
        device: Where the policy runs.
        capacity: Of the rows: a sum over another number of masked rows may round otherwise.
        shapes: Names of the act shapes: work that is cut into other pieces rounds otherwise.
        numerics: How the policy calculates, see ``Policy.numerics``.
    """
    rows = {"rows.capacity": str(capacity)} if capacity else {}
    cuts = {"act.shapes": text} if (text := " ".join(shapes)) else {}
    how = {"policy.numerics": numerics}
    return Fingerprint({"state": state.id, **how, **rows, **cuts, **device.facts()})


def describe(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Returns e.g. ``float32[1,64]``."""
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


def describe_rows(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Returns the same of a buffer that grows, by the shape of one row."""
    return f"rows of {describe(dtype, shape)}"


def weights_digest(module: nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of every parameter and buffer, sorted by name.

    What a ``Derived`` module holds is left out.
    """
    derived = derived_names(module)
    tensors: dict[str, torch.Tensor] = {
        f"{kind} {name}": value
        for kind, found in (
            ("parameter", module.named_parameters()),
            ("buffer", module.named_buffers()),
        )
        for name, value in found
        if not name.startswith(derived)
    }
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(f"{name} {describe(tensor.dtype, tuple(tensor.shape))}\n".encode())
        flat_N = tensor.contiguous().reshape(-1).view(torch.uint8)
        for start in range(0, flat_N.numel(), _PIECE_BYTES):
            digest.update(flat_N[start : start + _PIECE_BYTES].cpu().numpy().data)
    return digest.hexdigest()
