"""From plain records to ROS messages."""

from __future__ import annotations

import array
import functools
import importlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from builtin_interfaces.msg import Time

from flashrt_ros.contract import Contract, InputStamp
from flashrt_ros.errors import ContractError
from flashrt_ros.msg import (
    ActionChunk,
    CapsuleEvent,
    CapsuleInfo,
    ObservationStamp,
    PolicyStatus,
    PolicyStep,
    Provenance,
)
from flashrt_ros.ros.records import (
    CapsuleRecord,
    ChunkRecord,
    EventRecord,
    ProvenanceRecord,
    StatusRecord,
    StepRecord,
)

_SEQUENCE = re.compile(r"sequence<(\w+/\w+)(?:, \d+)?>|(\w+/\w+)\[\d+\]")


@functools.cache
def interface(type_name: str) -> Any:
    """The class of a full type name such as ``sensor_msgs/msg/JointState``.

    Raises:
        ContractError: The package is not installed here, or has no such message.
    """
    package, kind, name = type_name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ImportError, AttributeError) as error:
        raise ContractError(
            f"message type {type_name}: expected Python package {package!r} with it, found none "
            f"({error}); source the workspace that holds it, or install ros-$ROS_DISTRO-"
            f"{package.replace('_', '-')}"
        ) from error


def require_interfaces(contract: Contract) -> None:
    """Makes sure that every type of a contract can be subscribed to or published here.

    Raises:
        ContractError: Lists those that cannot.
    """
    paths: dict[str, str] = {}
    for entry in (*contract.inputs(), *contract.actions):
        paths.setdefault(entry.type, entry.path)
    faults = []
    for type_name, path in paths.items():
        try:
            interface(type_name)
        except ContractError as error:
            faults.append(f"\n  {path}.type: {error}")
    if faults:
        raise ContractError(f"{contract.source} needs what is not installed:{''.join(faults)}")


def _element(message: Any, field: str) -> Any:
    """Class of the elements of a sequence field; None for numbers and strings."""
    match = _SEQUENCE.match(message.get_fields_and_field_types()[field])
    if match is None:
        return None
    package, name = (match[1] or match[2]).split("/")
    return interface(f"{package}/msg/{name}")


def fill(message: Any, fields: Mapping[str, Any]) -> Any:
    """Writes nested plain fields into a message and returns it.

    Raises:
        AttributeError: The message has no such field.
        AssertionError: A value does not fit its field.
    """
    for name, value in fields.items():
        if isinstance(value, Mapping):
            fill(getattr(message, name), value)
        elif value and isinstance(value, list) and isinstance(value[0], Mapping):
            element = _element(message, name)
            setattr(message, name, [fill(element(), item) for item in value])
        else:
            setattr(message, name, value)
    return message


def time_of(stamp_ns: int) -> Time:
    """A stamp."""
    sec, nanosec = divmod(stamp_ns, 1_000_000_000)
    return Time(sec=sec, nanosec=nanosec)


def _plain(record: Any, message: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        setattr(message, name, getattr(record, name))
    return message


_CAPSULE = (
    *("id", "name", "parent_id", "tick", "step", "episode", "generation", "task", "tier"),
    *("pinned", "automatic", "size_bytes", "unique_bytes", "state_id", "exec_id"),
)
_STATUS = (
    *("mode", "reason", "dry_run", "policy", "device", "tick", "step", "episode", "generation"),
    *("task", "capsule", "state_id", "exec_id", "capsules", "bytes_used", "bytes_budget"),
    "inference_delay",
)
_EVENT = (
    *("kind", "id", "name", "parent_id", "tick", "step", "episode", "generation", "task"),
    *("request_id", "duration_ms", "size_bytes", "tier", "run", "noise_key", "file"),
    *("source_id", "source_tick", "source_automatic"),
)
_STEP = (
    *("tick", "step", "episode", "generation", "capsule", "task", "chunk_id", "chunk_index"),
    *("published", "hold_reason", "latency_ms", "period_ms", "state_digest"),
    *("observation_age_ms", "run", "dry_run", "ramp_share", "observation_digest", "noise_key"),
)
_STEP_VECTORS = ("action", "predicted", "ramp_from", "limited_from")
_PROVENANCE = (
    *(
        "run",
        "policy",
        "device",
        "state_id",
        "exec_id",
        "noise_key",
        "contract",
        "contract_source",
    ),
)
_PROVENANCE_JSON = ("state_facts", "exec_facts", "versions")


def capsule_info(record: CapsuleRecord) -> Any:
    """``CapsuleInfo``."""
    message = _plain(record, CapsuleInfo(), _CAPSULE)
    message.created = time_of(record.created_ns)
    return message


def policy_status(record: StatusRecord, stamp_ns: int) -> Any:
    """``PolicyStatus``."""
    message = _plain(record, PolicyStatus(), _STATUS)
    message.header.stamp = time_of(stamp_ns)
    return message


def provenance(record: ProvenanceRecord, stamp_ns: int) -> Any:
    """``Provenance``."""
    message = _plain(record, Provenance(), _PROVENANCE)
    message.header.stamp = time_of(stamp_ns)
    for name in _PROVENANCE_JSON:
        setattr(message, name, json.dumps(dict(getattr(record, name))))
    return message


def capsule_event(record: EventRecord, stamp_ns: int, sequence: int = 0) -> Any:
    """``CapsuleEvent``; ``sequence`` counts the messages of the topic."""
    message = _plain(record, CapsuleEvent(), _EVENT)
    message.header.stamp = time_of(stamp_ns)
    message.seeded = record.seed is not None
    message.seed = record.seed or 0
    message.sequence = sequence
    return message


def observation_stamp(stamp: InputStamp, resolved: Mapping[str, str]) -> Any:
    """``ObservationStamp``.

    Args:
        stamp: Of the sampler.
        resolved: Topic as the contract writes it to the name in the graph.
    """
    return ObservationStamp(
        observation=stamp.observation,
        topic=resolved.get(stamp.topic, stamp.topic),
        stamp=time_of(stamp.stamp_ns),
        age_ms=stamp.age_ms,
        digest=stamp.digest,
        sequence=stamp.sequence,
        present=stamp.present,
    )


def policy_step(record: StepRecord, stamp_ns: int, resolved: Mapping[str, str]) -> Any:
    """``PolicyStep``; see ``observation_stamp`` for ``resolved``."""
    message = _plain(record, PolicyStep(), _STEP)
    message.header.stamp = time_of(stamp_ns)
    message.names = list(record.names)
    for name in _STEP_VECTORS:
        setattr(message, name, array.array("d", getattr(record, name).tobytes()))
    message.observations = [observation_stamp(stamp, resolved) for stamp in record.stamps]
    message.act_observations = [observation_stamp(s, resolved) for s in record.act_stamps]
    if (plan := record.plan) is not None:
        message.adopted = True
        message.plan_tick, message.plan_consumed = plan.tick, plan.consumed
        message.plan_delay, message.plan_task = plan.delay, plan.task
    if math.isnan(record.period_ms):
        message.period_ms = 0.0  # the first step has none
    return message


def action_chunk(record: ChunkRecord, stamp_ns: int) -> Any:
    """``ActionChunk``."""
    return fill(
        ActionChunk(),
        {
            "header": {"stamp": {"sec": stamp_ns // 10**9, "nanosec": stamp_ns % 10**9}},
            "capsule": record.capsule,
            "generation": record.generation,
            "chunk_id": record.chunk_id,
            "period_s": record.period_s,
            "names": list(record.names),
            "horizon": record.rows_HA.shape[0],
            "data": array.array("d", record.rows_HA.tobytes()),
        },
    )
