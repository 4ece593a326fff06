"""``flashrt_ros inspect``: what a policy declares, and the memory that it will take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import AlreadyExistsError, NoMemoryError, StorageError
from flashrt_ros.hardware.memory import in_words

if TYPE_CHECKING:
    from flashrt_ros.runtime.buffers import StateLayout
    from flashrt_ros.runtime.forecast import Forecast
    from flashrt_ros.runtime.policy import Policy

ELEMENTS_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``inspect``."""
    parser.add_argument(
        "policy", help="directory with config.json, registered name, or package.module:factory"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--numerics", default="exact", help="exact or fast: the node's parameter numerics"
    )
    parser.add_argument(
        "--store-bytes",
        type=int,
        default=64 << 20,
        metavar="BYTES",
        help="the node's parameter store_bytes (default: 64 MiB)",
    )
    parser.add_argument(
        "--rollback-depth",
        type=int,
        default=64,
        metavar="BOUNDARIES",
        help="the node's parameter rollback_depth (default: 64)",
    )
    parser.add_argument(
        "--preview-sets",
        type=int,
        default=1,
        metavar="STATES",
        help="the node's parameter preview_sets (default: 1)",
    )
    parser.add_argument(
        "--contract",
        type=Path,
        metavar="FILE",
        help="also write a contract to start from, with the policy's ports, to this new file",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let torch unpickle programs (.pt2) that cannot be read otherwise; runs any code",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints declarations and forecast; 1 if the policy does not fit the device's memory."""
    from flashrt_ros.policies.fast.mode import read_numerics
    from flashrt_ros.policies.lerobot import families
    from flashrt_ros.policies.lerobot.summary import summary
    from flashrt_ros.policies.registry import find_checkpoint, load_policy
    from flashrt_ros.ros.trial import Trial
    from flashrt_ros.runtime.device import open_device
    from flashrt_ros.runtime.engine import complete_layout
    from flashrt_ros.runtime.forecast import make_forecast
    from flashrt_ros.runtime.number import check_int
    from flashrt_ros.runtime.session import MAX_PREVIEW_SETS

    store_bytes = check_int("--store-bytes", arguments.store_bytes, 1)
    depth = check_int("--rollback-depth", arguments.rollback_depth, 0)
    sets = check_int("--preview-sets", arguments.preview_sets, 0, MAX_PREVIEW_SETS)
    checkpoint = find_checkpoint(arguments.policy)
    if checkpoint is None:
        policy = load_policy(arguments.policy, arguments.trust, arguments.numerics)
    else:
        policy = families.make(checkpoint, read_numerics(arguments.numerics))
    facts = None if checkpoint is None else summary(checkpoint)
    if arguments.contract is not None:
        rate_hz = None if facts is None else facts["rate_hz"]
        _write_contract(arguments.contract, policy, rate_hz, arguments.policy)
    layout = complete_layout(policy)
    device = open_device(arguments.device)
    forecast = make_forecast(policy, layout, device, store_bytes, depth, Trial.STATES, sets)
    refusal = ""
    try:
        forecast.check()
    except NoMemoryError as error:
        refusal = str(error)
    if arguments.json:
        found = to_json(policy, layout, forecast, refusal)
        if facts is not None:
            found["checkpoint"] = facts
        print(json.dumps(found, indent=2))
    else:
        if facts is not None:
            print("\n".join(_checkpoint(facts)), end="\n\n")
        print(report(policy, layout, forecast, refusal))
        if arguments.contract is not None:
            print(
                f"\n{arguments.contract}: written; go through it line by line, then try it with"
                f"\n    flashrt_ros check {arguments.policy} --contract {arguments.contract}"
            )
    return 1 if refusal else 0


def _write_contract(path: Path, policy: Policy, rate_hz: float | None, name: str) -> None:
    from flashrt_ros.contract.template import make_template

    text = make_template(policy.ports(), rate_hz, f"For the policy {name}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise AlreadyExistsError(
            f"{path}: expected no such file, found one; name another, so that no contract that "
            "somebody worked on is lost"
        ) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from None


def _checkpoint(facts: Mapping[str, Any]) -> Iterable[str]:
    """What the summary of a LeRobot checkpoint says, for people."""
    from flashrt_ros.policies.lerobot.changes import CHANGES

    rate = f"{facts['rate_hz']:g} Hz" if facts["rate_hz"] is not None else "unknown"
    names = (
        facts["element_names"] or "unknown; copy the data set's meta/info.json beside config.json"
    )
    yield f"LeRobot checkpoint of type {facts['type']}, statistics in its {facts['statistics']}"
    yield f"control rate of the recordings: {rate}"
    yield f"names of elements: {names}"
    for key, found in facts["changes"].items():
        words = f"{json.dumps(found['is'])} instead of {json.dumps(found['config'])}"
        yield f"changed by {CHANGES}: {key}: {words}"
    yield f"keys of config.json that nothing reads: {', '.join(facts['unknown_keys']) or 'none'}"
    yield ""
    rows = [("feature", "kind", "shape", "normalisation")]
    for item in facts["features"]:
        row = (
            item["name"],
            item["kind"],
            _shape(item["shape"]),
            item["normalisation"] or "not read",
        )
        rows.append(row)
    yield from _table(rows)


def to_json(
    policy: Policy, layout: StateLayout, forecast: Forecast, refusal: str
) -> dict[str, Any]:
    """Returns all that is known as JSON values; sizes in bytes.

    Args:
        policy: The policy.
        layout: Its complete layout.
        forecast: Its forecast.
        refusal: Why it does not fit; empty where it does.
    """
    ports = policy.ports()
    slots = (*layout.state, *layout.inputs, *layout.outputs)
    sizes = {slot.spec.name: slot.size_bytes for slot in slots}
    sizes.update({row.spec.name: row.size_bytes * layout.capacity for row in layout.rows})
    return {
        "family": policy.family,
        "plan_kind": policy.plan_kind.value,
        "chunk_size": policy.chunk_size,
        "n_action_steps": policy.n_action_steps,
        "ports": [
            {
                "key": port.key,
                "direction": "action" if port is ports.action else "observation",
                "buffer": port.buffer,
                "shape": list(port.shape),
                "dtype": _dtype(layout.find(port.buffer).dtype),
                "unit": port.unit,
                "names": list(port.names),
                "required": port.required,
            }
            for port in (*ports.observations, ports.action)
        ],
        "buffers": [
            {
                "name": spec.name,
                "role": spec.role.value,
                "shape": [spec.capacity, *spec.shape] if spec.capacity else list(spec.shape),
                "dtype": _dtype(spec.dtype),
                "unit": spec.unit,
                "grows": spec.capacity > 0,
                "size_bytes": sizes[spec.name],
            }
            for spec in layout.specs
        ],
        "capsule_bytes": forecast.capsule_bytes,
        "row_bytes": layout.row_bytes,
        "memory": {
            "device": forecast.device,
            "needed_bytes": forecast.needed_bytes,
            "free_bytes": forecast.memory.free_bytes,
            "shared_with_host": forecast.memory.shared,
            "slots": forecast.slots,
            "rollback_depth": forecast.rollback_depth,
            "named_snapshots": forecast.named_snapshots,
            "items": [
                {
                    "name": item.name,
                    "size_bytes": item.size_bytes,
                    "on_host": item.host,
                    "present": item.present,
                    "detail": item.detail,
                }
                for item in forecast.items
            ],
            "refusal": refusal,
        },
    }


def report(policy: Policy, layout: StateLayout, forecast: Forecast, refusal: str) -> str:
    """Returns the same as ``to_json`` for people."""
    from flashrt_ros.runtime.forecast import NOT_COUNTED

    found = to_json(policy, layout, forecast, refusal)
    chunk = ""
    if found["plan_kind"] != "none":
        chunk = f", chunks of {policy.chunk_size}, of which {policy.n_action_steps} are taken"
    ports = [("port", "", "shape", "dtype", "unit", "elements")]
    for port in found["ports"]:
        need = port["direction"] if port["required"] else "optional"
        shape, names = _shape(port["shape"]), _some(port["names"])
        ports.append((port["key"], need, shape, port["dtype"], port["unit"], names))
    buffers = [("buffer", "role", "shape", "dtype", "unit", "size")]
    for row in found["buffers"]:
        size = in_words(row["size_bytes"])
        shape = _shape(row["shape"])
        buffers.append((row["name"], row["role"], shape, row["dtype"], row["unit"], size))
    weight = f"a capsule weighs {in_words(forecast.capsule_bytes)}: all state, each buffer padded"
    if layout.row_bytes:
        weight += f"; and {in_words(layout.row_bytes)} for each row, once for all that share it"
    memory = [(f"memory on {forecast.device}", "", "")]
    for item in forecast.items:
        memory.append((item.name, in_words(item.size_bytes), item.detail))
    memory.append(("needed", in_words(forecast.needed_bytes), forecast.free_in_words()))
    lines = [
        f"{policy.family}: plans: {found['plan_kind']}{chunk}",
        "",
        *_table(ports),
        "",
        *_table(buffers),
        "",
        weight,
        "",
        *_table(memory),
    ]
    if forecast.device != "cpu":
        lines.append(f"not counted: {NOT_COUNTED}")
    if refusal:
        lines += ["", refusal]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(
            f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)
        ).rstrip()


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _some(names: Sequence[str]) -> str:
    more = len(names) - ELEMENTS_SHOWN
    return ", ".join(names[:ELEMENTS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
