"""Keyframes of one source: written while it is evaluated, entered at once later on.

    BAG.keyframes/
        files.json                  digests of the recording's files
        0123456789abcdef/           one folder for each binding, that is for each policy
            binding.json            what they are bound to, in words
            000000000625.capsule    the policy's state before control step 625
            000000000625.json       the rest

A keyframe whose binding is another is not found; the nearest one is named with what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.errors import CorruptError, FlashRTError, NotFoundError, StorageError, reason_of
from flashrt_ros.evaluate.binding import (
    FILES,
    Binding,
    bind,
    differences,
    digest_of,
    name_of,
    write_atomically,
)
from flashrt_ros.evaluate.drive import Driver
from flashrt_ros.evaluate.keyframe import Keyframe, decode, encode
from flashrt_ros.evaluate.source import Source
from flashrt_ros.evaluate.timeline import Entry, Moment, Setting
from flashrt_ros.runtime import strict_json as js
from flashrt_ros.runtime.capsule_folder import SUFFIX, CapsuleFolder
from flashrt_ros.runtime.capsule_image import CapsuleImage
from flashrt_ros.runtime.session import PolicySession

if TYPE_CHECKING:
    from flashrt_ros.evaluate.evaluator import Options

ENDING, BINDING, CAPSULE = ".keyframes", "binding.json", "keyframe"


@dataclass(frozen=True)
class Found:
    """A moment at which all policies can be entered.

    Attributes:
        entry: Where the source goes on.
        states: By label, what each policy must know, and its state.
    """

    entry: Entry
    states: Mapping[str, tuple[Keyframe, CapsuleImage]]


def folder_of(name: str, chosen: str) -> Path:
    """Where the keyframes of a source lie.

    Args:
        name: Path of the source.
        chosen: Folder for the keyframes of all sources; empty: beside each.
    """
    path = Path(name)
    beside = path.with_name((path.name or path.resolve().name) + ENDING)
    return Path(chosen) / beside.name if chosen else beside


class Keyframes:
    """Reads and writes keyframes of one source; ``of`` makes them where they are of use.

    Attributes:
        notices: What is worth a word: stale ones, damaged ones.
        entered: Where was begun, in words; empty: at the start.
    """

    def __init__(
        self,
        source: Source,
        sessions: Mapping[str, PolicySession],
        options: Options,
        setting: Setting,
    ) -> None:
        """Works out what keyframes must be bound to; reads all files of the source at first.

        Raises:
            StorageError: A file cannot be read, or the folder not be made.
        """
        self.notices: list[str] = []
        self.entered: list[str] = []
        self._sessions = sessions
        self._source = source
        self._root = folder_of(source.name, options.keyframe_folder)
        self._every_ns = round(options.keyframes_s * 1e9)
        if self._every_ns:
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(
                    f"{self._root}: expected a folder for keyframes that can be written, found "
                    f"{error.strerror}; name another with --keyframe-folder"
                ) from error
        recording = digest_of(source.files, self._root / FILES)
        self._bindings = {
            label: bind(recording, options, setting, session.state_id, session.exec_id)
            for label, session in sessions.items()
        }
        self._folders = {
            label: CapsuleFolder(self._root / name_of(binding))
            for label, binding in self._bindings.items()
        }
        self._enters = options.enters_keyframes
        self._slot = 0

    @classmethod
    def of(
        cls,
        source: Source,
        sessions: Mapping[str, PolicySession],
        options: Options,
        setting: Setting,
    ) -> Keyframes | None:
        """Keyframes to be written or entered; None where there is neither to do."""
        there = options.enters_keyframes and folder_of(source.name, options.keyframe_folder)
        if options.keyframes_s <= 0 and not (there and there.is_dir()):
            return None
        return cls(source, sessions, options, setting)

    def newest(self, before_ns: int) -> Found | None:
        """The last moment before a time at which all policies can be entered; None: none.

        Args:
            before_ns: Recorded time of the first moment that is wanted.
        """
        if not self._enters:
            return None
        names = [self._names(label) for label in self._folders]
        for name in sorted(set.intersection(*map(set, names)), reverse=True):
            try:
                states = {label: self._read(label, name) for label in self._folders}
            except FlashRTError as error:
                self.notices.append(f"keyframe {name} is not used: {error}")
                continue
            entry = next(iter(states.values()))[0].entry
            # Of the moment that the entry leads to only this is known: it comes later.
            if entry.cut_ns < before_ns:
                begun_s = (entry.cut_ns - self._source.start_ns) / 1e9
                self.entered = [f"begun at keyframe {name}, {begun_s:.3f} s into the recording"]
                return Found(entry, states)
        if not any(names):
            self._tell_stale()
        return None

    def offer(self, moment: Moment, drivers: Sequence[Driver]) -> None:
        """Writes a keyframe behind a moment that was taken, if it is time for one.

        Raises:
            StorageError: It cannot be written.
        """
        if not self._every_ns:
            return
        slot = (moment.time_ns - self._source.start_ns) // self._every_ns
        if slot <= self._slot or any(driver.session.planning for driver in drivers):
            return
        entry = self._source.entry(moment)
        if entry is None:
            return
        self._slot = slot
        for driver in drivers:
            self._write(driver, entry)

    def _names(self, label: str) -> list[str]:
        try:
            return [name.removesuffix(SUFFIX) for name in self._folders[label].files()]
        except NotFoundError:
            return []

    def _read(self, label: str, name: str) -> tuple[Keyframe, CapsuleImage]:
        folder = self._folders[label]
        path = folder.path / f"{name}.json"
        try:
            keyframe = decode(str(path), path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptError(f"{path}: cannot be read: {reason_of(error)}") from error
        image = folder.load(name, self._sessions[label].check_facts)
        if image.facts.id != keyframe.capsule:
            raise CorruptError(
                f"{path}: expected capsule {keyframe.capsule} beside it, found {image.facts.id}"
            )
        return keyframe, image

    def _write(self, driver: Driver, entry: Entry) -> None:
        folder, session = self._folders[driver.label], driver.session
        name = f"{entry.index:012d}"
        if name in self._names(driver.label) and (folder.path / f"{name}.json").is_file():
            return
        session.snapshot(CAPSULE, replace=True)
        image = session.export(CAPSULE)
        session.drop(CAPSULE)
        about = folder.path / BINDING
        if not about.is_file():
            write_atomically(about, js.canonical(dict(self._bindings[driver.label])))
        folder.save(image, name, replace=True)
        text = encode(Keyframe(image.facts.id, entry, driver.standing))
        write_atomically(folder.path / f"{name}.json", text)

    def _tell_stale(self) -> None:
        """Names the keyframes that are there and are of something else."""
        others: list[Binding] = []
        for path in sorted(self._root.glob(f"*/{BINDING}")):
            try:
                found = js.parse(str(path), path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, CorruptError):
                continue
            if isinstance(found, dict):
                others.append(found)
        for label, binding in self._bindings.items():
            if others:
                nearest = min((differences(binding, other) for other in others), key=len)
                self.notices.append(
                    f"{self._root}: keyframes there are stale for policy {label!r} and not used: "
                    f"of another {', '.join(nearest)}"
                )
