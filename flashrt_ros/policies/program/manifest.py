"""``manifest.json`` of a policy directory with programs: buffers, ports and calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.errors import CheckpointError, FlashRTError
from flashrt_ros.policies.lerobot.json_file import read_object
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import PlanKind, Policy, Port, Ports
from flashrt_ros.runtime.strict_json import shown

MANIFEST, INITIAL = "manifest.json", "initial.safetensors"
FORMAT, VERSION = "flashrt_ros.program", 1
CALLS = ("act", "plan", "adopt")
DTYPES = {
    str(dtype)[6:]: dtype
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    )
}


@dataclass(frozen=True)
class Call:
    """One program.

    Attributes:
        file: Name of its archive.
        reads: Buffers that it takes, in order.
        writes: Buffers that what it returns is written to, in order.
    """

    file: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """All that a program's policy says besides its programs.

    Attributes:
        name: Of the policy that it was made from.
        plan_kind: See ``PlanKind``.
        chunk_size: H.
        n_action_steps: Rows that are taken before the next plan.
        act_observes: See ``Policy``.
        buffers: All of them, ``noise.*`` included where they are used.
        ports: Observations and action.
        calls: ``act``, and ``plan`` and ``adopt`` where there are plans.
        origin: Configuration of the policy that it was made from, and the versions.
        rate_hz: Control steps a second that it is meant for; None where unknown.
    """

    name: str
    plan_kind: PlanKind
    chunk_size: int
    n_action_steps: int
    act_observes: bool
    buffers: tuple[BufferSpec, ...]
    ports: Ports
    calls: Mapping[str, Call]
    origin: Mapping[str, Any] = field(default_factory=dict)
    rate_hz: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "plan_kind": self.plan_kind.value,
            "chunk_size": self.chunk_size,
            "n_action_steps": self.n_action_steps,
            "act_observes": self.act_observes,
            "rate_hz": self.rate_hz,
            "buffers": [
                {
                    "name": spec.name,
                    "shape": list(spec.shape),
                    "dtype": str(spec.dtype)[6:],
                    "role": spec.role.value,
                    "unit": spec.unit,
                }
                for spec in self.buffers
            ],
            "observations": [_port(port) for port in self.ports.observations],
            "action": _port(self.ports.action),
            "calls": {
                name: {"file": c.file, "reads": list(c.reads), "writes": list(c.writes)}
                for name, c in self.calls.items()
            },
            "origin": dict(self.origin),
        }


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes ``manifest.json``."""
    text = json.dumps(manifest.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Reads ``manifest.json``.

    Raises:
        CheckpointError: It is missing, ill-shaped or contradicts itself.
    """
    path = directory / MANIFEST
    value = read_object(path)
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: expected format {FORMAT!r} of version {VERSION}, found "
            f"{shown(value.get('format'))} of {shown(value.get('version'))}"
        )
    try:
        manifest = _manifest(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: expected a manifest, found a fault: {error!r}") from None
    except FlashRTError as error:
        raise CheckpointError(f"{path}: {error}") from None
    _check(path, manifest)
    return manifest


def _manifest(value: Mapping[str, Any]) -> Manifest:
    buffers = tuple(
        BufferSpec(
            _text(item["name"]),
            tuple(_integer(size) for size in item["shape"]),
            DTYPES[item["dtype"]],
            Role(item["role"]),
            _text(item.get("unit", "")),
        )
        for item in value["buffers"]
    )
    shapes = {spec.name: spec.shape for spec in buffers}

    def port(item: Mapping[str, Any]) -> Port:
        buffer = _text(item["buffer"])
        names = tuple(_text(name) for name in item.get("names", []))
        unit, required = _text(item.get("unit", "")), item.get("required", True)
        return Port(_text(item["key"]), buffer, shapes[buffer], names, unit, bool(required))

    rate = value.get("rate_hz")
    return Manifest(
        name=_text(value["name"]),
        plan_kind=PlanKind(value["plan_kind"]),
        chunk_size=_integer(value["chunk_size"]),
        n_action_steps=_integer(value["n_action_steps"]),
        act_observes=bool(value["act_observes"]),
        buffers=buffers,
        ports=Ports(tuple(map(port, value["observations"])), port(value["action"])),
        calls={
            name: Call(_text(c["file"]), _words(c["reads"]), _words(c["writes"]))
            for name, c in value["calls"].items()
        },
        origin=dict(value.get("origin", {})),
        rate_hz=None if rate is None else float(rate),
    )


def _check(path: Path, manifest: Manifest) -> None:
    expected = CALLS[:1] if manifest.plan_kind is PlanKind.NONE else CALLS
    if sorted(manifest.calls) != sorted(expected):
        raise CheckpointError(
            f"{path}: calls: expected {', '.join(expected)}, found {sorted(manifest.calls)}"
        )
    roles = {spec.name: spec.role for spec in manifest.buffers}
    if len(roles) != len(manifest.buffers):
        raise CheckpointError(f"{path}: buffers: expected each name once")
    for name, call in manifest.calls.items():
        if Path(call.file).name != call.file or not call.file.endswith(".pt2"):
            raise CheckpointError(
                f"{path}: calls: {name}: file: expected the plain name of a .pt2 file beside it, "
                f"found {shown(call.file)}"
            )
        unknown = sorted({*call.reads, *call.writes} - set(roles))
        if unknown:
            raise CheckpointError(f"{path}: calls: {name}: no buffers {unknown}")
        wrong = [one for one in call.writes if roles[one] is Role.INPUT]
        if name == "plan" and manifest.plan_kind is PlanKind.BESIDE:
            wrong += [one for one in call.writes if roles[one] is Role.STATE]
        if wrong:
            raise CheckpointError(f"{path}: calls: {name}: may not write to {wrong}")


def describe(policy: Policy) -> dict[str, Any]:
    """Where a program comes from: configuration of its policy, and the version of torch."""
    return {"family": policy.family, "config": dict(policy.config()), "torch": torch.__version__}


def _port(port: Port) -> dict[str, Any]:
    return {
        "key": port.key,
        "buffer": port.buffer,
        "names": list(port.names),
        "unit": port.unit,
        "required": port.required,
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {shown(value)}")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected a whole number of at least 1, found {shown(value)}")
    return value


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list of names, found {shown(value)}")
    return tuple(_text(one) for one in value)
