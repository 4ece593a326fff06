"""States that verbs come back to: kept on the host until the last of them, or found in files."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

from flashrt_ros.errors import FlashRTError, NotFoundError
from flashrt_ros.runtime.capsule_folder import CapsuleFolder, load_file
from flashrt_ros.runtime.capsule_image import CapsuleFacts, CapsuleImage

Name = str | int
"""Id of a capsule, or tick of a boundary of the rollback ring."""


class _HeaderRead(Exception):
    """All that was wanted is known."""


class Shelf:
    """Images of states by the ids under which a recording names them.

    Attributes:
        defects: Files that could not be read, in words.
    """

    def __init__(self, folder: Path | None) -> None:
        """Looks into the headers of the files.

        Args:
            folder: Where saved capsules lie; None: nowhere.

        Raises:
            NotFoundError: There is no such folder.
            StorageError: It cannot be read.
        """
        self.defects: list[str] = []
        self._folder = folder
        self._files: dict[str, tuple[Path, CapsuleFacts]] = {}
        self._images: dict[Name, CapsuleImage] = {}
        self._uses: Counter[Name] = Counter()
        if folder is None:
            return
        if not folder.is_dir():
            raise NotFoundError(f"--capsule-folder {folder}: expected a folder, found none")
        for name in CapsuleFolder(folder).files():
            try:
                facts = _header(folder / name)
            except FlashRTError as error:
                self.defects.append(str(error))
                continue
            self._files[facts.id] = (folder / name, facts)

    def begin(self, uses: Counter[str], boundaries: Counter[int]) -> None:
        """Another run: nothing of the one before counts.

        Args:
            uses: How often each capsule is asked for.
            boundaries: How often each boundary is.
        """
        self._images.clear()
        self._uses = Counter()
        self._uses.update(uses)
        self._uses.update(boundaries)

    def wants(self, name: Name) -> bool:
        """Whether a state will be asked for."""
        return self._uses[name] > 0

    def put(self, name: Name, image: CapsuleImage, noise_key: int) -> None:
        """Keeps a state that will be asked for, to go on with this key."""
        if self.wants(name):
            facts = replace(image.facts, noise_key=noise_key)
            self._images[name] = replace(image, facts=facts)

    def peek(self, name: Name) -> CapsuleImage | None:
        """A state that is kept; files are not looked at."""
        return self._images.get(name)

    def take(self, name: Name) -> CapsuleImage | None:
        """A state that is kept or lies in a file; None: neither.

        Raises:
            FlashRTError: The file cannot be read.
        """
        image = self._images.get(name)
        self._uses[name] -= 1
        if not self.wants(name):
            self._images.pop(name, None)
        if image is None and isinstance(name, str):
            image = self.file(name)
        return image

    def facts(self, id_: str) -> CapsuleFacts | None:
        """What the file of a capsule says; None: there is none."""
        found = self._files.get(id_)
        return None if found is None else found[1]

    def file(self, id_: str) -> CapsuleImage | None:
        """A capsule's file; None: there is none.

        Raises:
            FlashRTError: It cannot be read.
        """
        found = self._files.get(id_)
        return None if found is None else load_file(found[0])

    def load(self, file: str, tick: int) -> CapsuleImage | None:
        """A file by its name, if it may be the one that was loaded then.

        Args:
            file: Without folders.
            tick: Of the capsule.

        Raises:
            FlashRTError: It cannot be read.
        """
        path = None if self._folder is None else self._folder / file
        if path is None or not path.is_file():
            return None
        image = load_file(path)
        return image if image.facts.tick == tick else None


def _header(path: Path) -> CapsuleFacts:
    found: list[CapsuleFacts] = []

    def look(facts: CapsuleFacts) -> None:
        found.append(facts)
        raise _HeaderRead

    with contextlib.suppress(_HeaderRead):
        load_file(path, look)
    return found[0]
