"""What one policy did over one source: arrays by control step, and the hash over all of them.

Suffixes: T moments, A action elements, C chunks, H rows of a chunk, S splices of two chunks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import CorruptError

F8 = npt.NDArray[np.float64]
F4 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int64]
I4 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

PACE = 0.01
"""Share of a control period up to which what passes between two steps is the jitter of clocks."""
HASHED = (
    "index_T",
    "episode_T",
    "stepped_T",
    "predicted_TA",
    "sent_TA",
    "chunk_start_C",
    "chunks_CHA",
    "splice_index_S",
    "splice_SA",
)
"""What two runs of the same policy over the same source have in common, to the bit."""


@dataclass
class Track:
    """One policy over one source.

    Attributes:
        policy: Its label.
        source: Name of the source.
        names: ``A`` names.
        units: ``A`` units.
        gripper: ``A`` flags: the element opens and closes something.
        period_s: Length of a control step.
        index_T: Of each moment, absolute in the source; rises, not always by one.
        time_ns_T: Recorded time.
        episode_T: Of each moment.
        stepped_T: Whether a step was made.
        recorded_TA: Command recorded last, contract units; NaN: none.
        state_TA: Where the element was measured to be; NaN: not known.
        predicted_TA: What the policy gave, contract units; NaN where not stepped.
        sent_TA: The same after limits and start check, as the node would have sent it; NaN where
            nothing would have left.
        latency_ms_T: How long the step took; NaN where not stepped. Not in the hash.
        ages_ms: Input to its age in each moment, ``(T,)``; NaN without a message.
        fault_T: Why no step was made, without the numbers that grow; empty where one was.
        chunk_start_C: Index of the moment that row 0 of each chunk kept belongs to.
        chunk_adopted_C: Index of the moment from which the chunk was followed.
        chunks_CHA: Rows of each, contract units; H is 0 without chunks. Of very many chunks every
            second, fourth, ... is kept.
        chunks: Chunks in all.
        splice_index_S: Index of each moment at which a chunk took the place of one with rows left.
        splice_SA: The new chunk's row for that moment less the old one's, contract units.
        remarks: What else is worth a word, such as commands held back.
        digest: SHA-256 in hex over ``HASHED``.
    """

    policy: str
    source: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    gripper: tuple[bool, ...]
    period_s: float
    index_T: I8
    time_ns_T: I8
    episode_T: I4
    stepped_T: Flags
    recorded_TA: F8
    state_TA: F4 | F8
    predicted_TA: F4 | F8
    sent_TA: F8
    latency_ms_T: F8
    ages_ms: dict[str, F4 | F8]
    fault_T: list[str]
    chunk_start_C: I8
    chunk_adopted_C: I8
    chunks_CHA: F4
    chunks: int = 0
    splice_index_S: I8 = field(default_factory=lambda: np.zeros(0, np.int64))
    splice_SA: F4 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    remarks: list[str] = field(default_factory=list)
    digest: str = ""

    def __post_init__(self) -> None:
        """Works the hash out."""
        self.digest = self.digest or digest_of(self)

    @property
    def steps(self) -> int:
        """T."""
        return len(self.index_T)

    @property
    def pace_s(self) -> float:
        """Usual time between two steps: ``period_s``, unless recorded commands set a pace."""
        between_ns = np.diff(self.time_ns_T)[np.diff(self.index_T) == 1]
        usual_s = float(np.median(between_ns)) * 1e-9 if between_ns.size else 0.0
        other = usual_s > 0 and abs(usual_s - self.period_s) > PACE * self.period_s
        return usual_s if other else self.period_s

    def save(self, path: Path) -> None:
        """Writes it as ``.npz``, without pickles."""
        arrays: dict[str, Any] = {
            name: value for name, value in _items(self) if isinstance(value, np.ndarray)
        }
        rest = {
            name: value
            for name, value in _items(self)
            if not isinstance(value, np.ndarray) and name not in ("ages_ms", "fault_T")
        }
        # Each different reason once: a recording has few.
        reasons = sorted(set(self.fault_T))
        place = {reason: number for number, reason in enumerate(reasons)}
        rest |= {"inputs": list(self.ages_ms), "reasons": reasons}
        arrays["fault"] = np.array([place[reason] for reason in self.fault_T], np.int32)
        if self.ages_ms:
            arrays["ages_ms"] = np.stack(list(self.ages_ms.values()))
        text = np.frombuffer(json.dumps(rest).encode(), np.uint8)
        with path.open("wb") as file:
            np.savez_compressed(file, json=text, **arrays)

    @classmethod
    def load(cls, path: Path) -> Track:
        """Reads what ``save`` has written.

        Raises:
            CorruptError: It is not that, or its hash does not fit it.
        """
        try:
            with np.load(path, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            rest = json.loads(arrays.pop("json").tobytes())
            inputs, reasons = rest.pop("inputs"), rest.pop("reasons")
            ages = arrays.pop("ages_ms", np.empty((0, 0)))
            fault_T = [reasons[number] for number in arrays.pop("fault").tolist()]
            for name in ("names", "units", "gripper"):
                rest[name] = tuple(rest[name])
            track = cls(
                **rest, **arrays, ages_ms=dict(zip(inputs, ages, strict=True)), fault_T=fault_T
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptError(f"{path}: expected a saved track: {error}") from error
        if digest_of(track) != track.digest:
            raise CorruptError(f"{path}: expected hash {track.digest}, found another content")
        return track


def _items(track: Track) -> list[tuple[str, Any]]:
    return [(each.name, getattr(track, each.name)) for each in fields(track)]


def digest_of(track: Track) -> str:
    """SHA-256, in hex, over names, shapes and bytes of ``HASHED``."""
    digest = hashlib.sha256()
    for name in HASHED:
        array = np.ascontiguousarray(getattr(track, name))
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def digest_of_all(digests: Sequence[str]) -> str:
    """SHA-256, in hex, of several runs in their order: one for a whole evaluation."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
