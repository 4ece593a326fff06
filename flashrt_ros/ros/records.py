"""What the control thread reports, as plain values; ``messages.py`` makes ROS messages of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract import Command, InputStamp
from flashrt_ros.ros.motion import Mode

Vector = npt.NDArray[np.float64]


def _nothing() -> Vector:
    return np.empty(0)


class EventKind(enum.IntEnum):
    """Values of ``kind`` in ``CapsuleEvent``, as the .msg file has them."""

    SNAPSHOT = 1
    RESTORE = 2
    FORK = 3
    ROLLBACK = 4
    RESET = 5
    DROP = 6
    EVICT = 7
    SAVE = 8
    LOAD = 9
    MOVE = 10


@dataclass(frozen=True)
class CapsuleRecord:
    """Fields of ``CapsuleInfo``; ``created_ns`` is of the system clock."""

    id: str
    name: str
    parent_id: str
    created_ns: int
    tick: int
    step: int
    episode: int
    generation: int
    task: str
    tier: str
    pinned: bool
    automatic: bool
    size_bytes: int
    unique_bytes: int
    state_id: str
    exec_id: str


@dataclass(frozen=True)
class EventRecord:
    """Fields of ``CapsuleEvent`` but header and sequence; ``duration_ms``: steady clock."""

    kind: EventKind
    tick: int
    step: int
    episode: int
    generation: int
    task: str = ""
    id: str = ""
    name: str = ""
    parent_id: str = ""
    seed: int | None = None
    request_id: str = ""
    duration_ms: float = 0.0
    size_bytes: int = 0
    tier: str = ""
    run: str = ""
    source_id: str = ""
    source_tick: int = 0
    source_automatic: bool = False
    noise_key: int = 0
    file: str = ""


@dataclass(frozen=True)
class StatusRecord:
    """Fields of ``PolicyStatus`` but the header."""

    mode: Mode = Mode.UNCONFIGURED
    reason: str = ""
    dry_run: bool = False
    policy: str = ""
    device: str = ""
    tick: int = 0
    step: int = 0
    episode: int = 0
    generation: int = 0
    task: str = ""
    capsule: str = ""
    state_id: str = ""
    exec_id: str = ""
    capsules: int = 0
    bytes_used: int = 0
    bytes_budget: int = 0
    inference_delay: int = 0


@dataclass(frozen=True)
class ProvenanceRecord:
    """Fields of ``Provenance`` but the header; mappings become JSON objects."""

    run: str
    policy: str
    device: str
    state_id: str
    exec_id: str
    noise_key: int
    state_facts: Mapping[str, str]
    exec_facts: Mapping[str, str]
    contract: str
    contract_source: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class PlanOrigin:
    """Where a plan began, and what it saw: ``plan_...`` of ``PolicyStep``.

    Attributes:
        tick: Control step before which it began.
        task: Task text.
        delay: Control steps that it was told.
        consumed: Control steps from its beginning to its adoption.
    """

    tick: int
    task: str = ""
    delay: int = 0
    consumed: int = 0


@dataclass(frozen=True)
class StepRecord:
    """Fields of ``PolicyStep`` but the header; without ``plan`` no chunk was adopted."""

    tick: int
    step: int
    episode: int
    generation: int
    capsule: str
    task: str
    chunk_id: int
    chunk_index: int
    names: Sequence[str]
    action: Vector
    published: bool
    hold_reason: str
    stamps: Sequence[InputStamp]
    latency_ms: float
    period_ms: float
    observation_age_ms: float = float("nan")
    state_digest: str = ""
    run: str = ""
    predicted: Vector = field(default_factory=_nothing)
    dry_run: bool = False
    ramp_share: float = 1.0
    ramp_from: Vector = field(default_factory=_nothing)
    limited_from: Vector = field(default_factory=_nothing)
    plan: PlanOrigin | None = None
    act_stamps: Sequence[InputStamp] = ()
    observation_digest: int = 0
    noise_key: int = 0


@dataclass(frozen=True)
class ChunkRecord:
    """Fields of ``ActionChunk`` but the header; ``rows_HA`` is in policy units, before limits."""

    generation: int
    chunk_id: int
    period_s: float
    names: Sequence[str]
    rows_HA: Vector = field(compare=False)
    capsule: str = ""


@dataclass(frozen=True)
class PreviewRecord:
    """A chunk of a preview, and when it was planned, on the ROS clock."""

    chunk: ChunkRecord
    stamp_ns: int


class Outlet(Protocol):
    """Where the control thread's results go: publishers in the node, lists in tests.

    Called from the control thread; ``send`` and ``flush`` from callbacks too, under the lock of
    ``Motion``.
    """

    def stamp_ns(self) -> int:
        """ROS clock, for the headers of commands."""

    def send(self, commands: Sequence[Command]) -> None:
        """Publishes commands."""

    def alive(self) -> None:
        """Says that the control thread has kept its period, whether or not a command left."""

    def shadow(self, commands: Sequence[Command]) -> None:
        """Publishes what would have been sent, where nobody takes it for a command."""

    def flush(self, timeout_s: float) -> bool:
        """Waits until reliable subscribers have what was sent; False if some have not."""

    def provenance(self, record: ProvenanceRecord) -> None:
        """Publishes what computes the actions from now on."""

    def step(self, record: StepRecord) -> None:
        """Publishes the provenance of one control step."""

    def chunk(self, record: ChunkRecord) -> None:
        """Publishes a chunk that was adopted."""

    def event(self, record: EventRecord) -> None:
        """Publishes a verb that was carried out."""

    def status(self, record: StatusRecord) -> None:
        """Publishes a status that differs from the last one in more than counters."""

    def fault(self) -> None:
        """Publishes diagnostics now, as a fault came or went."""

    def log(self, level: str, words: str) -> None:
        """Logs; the level is ``info``, ``warn`` or ``error``."""
