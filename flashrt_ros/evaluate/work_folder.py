"""Results of sources, each written whole or not at all, under a key of all that it depends on.

    FOLDER/
        files/                    digests of sources' files, so that they are not read again
        0123456789abcdef.../      one result
            result.json           facts, figures of each run
            00.npz, fan.npz       series, where they are wanted

Who finds a result under its key need not make it again, whoever made it and when.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.errors import CorruptError, StorageError
from flashrt_ros.evaluate.evaluator import Result, SourceFacts
from flashrt_ros.evaluate.fan import Branch, Fan
from flashrt_ros.evaluate.track import Track
from flashrt_ros.runtime import strict_json as js

RESULT, FAN, FILES = "result.json", "fan.npz", "files"
STALE_S = 86_400.0
"""Age from which on what somebody has left half-done is removed."""


@dataclass(frozen=True)
class Kept:
    """One result.

    Attributes:
        facts: Of the source.
        runs: Entries of the report's ``runs``.
        tracks: Where they are wanted.
        fan: Of a fork.
    """

    facts: SourceFacts
    runs: tuple[dict[str, Any], ...] = ()
    tracks: tuple[Track, ...] = ()
    fan: Fan | None = None

    @property
    def result(self) -> Result:
        """For outputs that need series."""
        return Result(self.facts, self.tracks)


class WorkFolder:
    """A folder of results.

    Args:
        path: Made if it is not there.

    Raises:
        StorageError: It cannot be made.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{path}: cannot be made: {error.strerror}") from error

    def digests_of(self, name: str) -> Path:
        """Where the digests of a source's files are remembered."""
        return self.path / FILES / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"

    def has(self, key: str) -> bool:
        """Whether there is a result; ``load`` may yet find it damaged."""
        return (self.path / key / RESULT).is_file()

    def save(self, key: str, kept: Kept) -> None:
        """Writes a result; where there is one already that stays.

        Raises:
            StorageError: It cannot be written; nothing is left behind.
        """
        part = self.path / f".{key}.{socket.gethostname()}.{os.getpid()}.part"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for number, track in enumerate(kept.tracks):
                track.save(part / f"{number:02}.npz")
            if kept.fan is not None:
                _save_fan(part / FAN, kept.fan)
            plain = {
                "facts": dataclasses.asdict(kept.facts),
                "runs": list(kept.runs),
                "tracks": len(kept.tracks),
                "fan": kept.fan is not None,
            }
            text = json.dumps(plain, allow_nan=False)
            digest = hashlib.sha256(text.encode()).hexdigest()
            (part / RESULT).write_text(f"{digest}\n{text}", encoding="utf-8")
            try:
                part.rename(self.path / key)
            except OSError:
                if not self.has(key):  # what is there is a wreck, half removed
                    self.remove(key)
                    part.rename(self.path / key)
        except OSError as error:
            raise StorageError(f"{part}: cannot be written: {error.strerror}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def load(self, key: str, series: bool = True) -> Kept:
        """Reads a result.

        Args:
            key: As given to ``save``.
            series: Tracks, too.

        Raises:
            CorruptError: It is not what was written.
        """
        folder = self.path / key
        try:
            digest, _, text = (folder / RESULT).read_text(encoding="utf-8").partition("\n")
            if hashlib.sha256(text.encode()).hexdigest() != digest:
                raise CorruptError(f"{folder / RESULT}: it was changed")
            plain = json.loads(text)
            facts = plain["facts"]
            facts["topics"] = tuple(map(tuple, facts["topics"]))
            facts["defects"] = tuple(facts["defects"])
            facts["notes"] = tuple(facts["notes"])
            count = plain["tracks"] if series else 0
            tracks = tuple(Track.load(folder / f"{number:02}.npz") for number in range(count))
            fan = _load_fan(folder / FAN) if plain["fan"] else None
            return Kept(SourceFacts(**facts), tuple(plain["runs"]), tracks, fan)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{folder}: expected a result, found other content: {error}"
            ) from error

    def remove(self, key: str) -> None:
        """Removes a result, or whatever there is in its place."""
        place = self.path / key
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Removes what those have left half-done that were killed long ago."""
        for part in self.path.glob(".*.part"):
            if time.time() - part.stat().st_mtime > STALE_S:
                shutil.rmtree(part, ignore_errors=True)


def key_of(facts: Sequence[object]) -> str:
    """Key of all that a result depends on."""
    return hashlib.sha256(js.canonical(list(facts)).encode()).hexdigest()[:32]


def _save_fan(path: Path, fan: Fan) -> None:
    rest = {
        field.name: getattr(fan, field.name)
        for field in dataclasses.fields(fan)
        if field.name not in ("actions_BHA", "recorded_HA", "branches")
    }
    rest["branches"] = [dataclasses.asdict(branch) for branch in fan.branches]
    text = np.frombuffer(json.dumps(rest).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(
            file, json=text, actions_BHA=fan.actions_BHA, recorded_HA=fan.recorded_HA
        )


def _load_fan(path: Path) -> Fan:
    with np.load(path, allow_pickle=False) as found:
        rest = json.loads(found["json"].tobytes())
        for name in ("names", "units"):
            rest[name] = tuple(rest[name])
        rest["branches"] = tuple(Branch(**branch) for branch in rest["branches"])
        arrays = {name: found[name] for name in ("actions_BHA", "recorded_HA")}
        return Fan(**rest, **arrays)
