"""A folder of capsule files: whole files under their names, or none, whatever ends the writer."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashrt_ros.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
    StorageError,
)
from flashrt_ros.runtime.capsule import CAPSULE_NAME
from flashrt_ros.runtime.capsule_file import Check, encode, read_image
from flashrt_ros.runtime.capsule_image import CapsuleImage
from flashrt_ros.runtime.file_system import FileSystem

SUFFIX = ".capsule"
STALE_S = 60.0
"""Age from which an unlocked temporary file counts as left behind by a writer that was killed."""
_TEMPORARY = re.compile(r"\.flashrt_ros-[0-9a-f]{32}\.part")
_TRIES = 3
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class SavedFile:
    """A file that is on the disk.

    Attributes:
        path: Absolute.
        size_bytes: Of the file.
    """

    path: Path
    size_bytes: int


def file_name(name: str) -> str:
    """Returns the name of a file in a capsule folder; ``SUFFIX`` may be left out.

    Raises:
        InvalidNameError: Before the suffix, it does not match ``CAPSULE_NAME``.
    """
    stem = name.removesuffix(SUFFIX) if isinstance(name, str) else ""
    if not CAPSULE_NAME.fullmatch(stem):
        raise InvalidNameError(
            f"file {name!r}: expected 1 to 128 letters, digits, '_', '.' or '-', the first a"
            f" letter or digit, with or without {SUFFIX!r}, and no folder"
        )
    return stem + SUFFIX


class CapsuleFolder:
    """Reads and writes capsule files in one folder.

    A file appears under its name only when it is complete and on the disk. Writers in several
    threads or processes do not disturb each other.

    Attributes:
        path: The folder, absolute; made when the first file is written.
    """

    def __init__(self, path: str | Path, system: FileSystem | None = None) -> None:
        """Touches nothing yet; ``~`` is the home folder, ``system`` is for tests.

        Raises:
            InvalidArgumentError: There is no home folder, as in some containers.
        """
        try:
            self.path = Path(path).expanduser().absolute()
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"{path}: expected a home folder, found none; set HOME, or name a folder that does"
                " not begin with ~"
            ) from error
        self._system = system or FileSystem()

    def save(self, image: CapsuleImage, file: str = "", replace: bool = False) -> SavedFile:
        """Writes a capsule; on return it outlives a power cut.

        Args:
            image: Of the capsule.
            file: Name of the file; empty: the capsule's.
            replace: Take the place of a file of that name.

        Raises:
            InvalidNameError: The name does not fit or is that of a folder.
            AlreadyExistsError: The file exists, and ``replace`` is not set.
            StorageError: It could not be written: the old file, if any, is untouched. Where only
                the last sync of the folder failed, the message says so, and the new file is there.
            InvalidArgumentError: The capsule could not be read back; nothing was written.
            UnsupportedError: An element type is unknown to files.
        """
        name = file_name(file or image.facts.name)
        pieces = encode(image)
        path = self.path / name
        with self._saying(f"{path}: cannot be written"):
            self._make(self.path)
            with self._opened(self._system.open_folder(self.path)) as folder:
                if not replace and name in self._system.names(folder):
                    raise _exists(path)
                self._sweep(folder)
                temporary, written = self._create(folder)
                try:
                    with self._opened(written):
                        size_bytes = sum(self._write(written, piece) for piece in pieces)
                        self._system.fsync(written)
                        self._publish(folder, temporary, path, replace)
                except BaseException:
                    with contextlib.suppress(OSError):
                        self._system.unlink(temporary, folder)
                    raise
                with self._saying(f"{path}: written whole, but may not outlive a power cut"):
                    self._system.fsync(folder)
        return SavedFile(path, size_bytes)

    def load(self, file: str, check: Check | None = None) -> CapsuleImage:
        """Reads a file whole and verifies it whole.

        Args:
            file: Name of the file.
            check: Asked when the header is verified, before all of the file is read.

        Raises:
            InvalidNameError: The name does not fit, or is that of a link or folder.
            NotFoundError: There is no such file.
            CorruptError: See ``read_image``.
            UnsupportedError: See ``read_image``.
            StorageError: It cannot be read.
        """
        return self._load(file_name(file), check)

    def size_bytes(self, file: str) -> int:
        """Returns how long a file is, damaged or not.

        Raises:
            InvalidNameError: As ``load``.
            NotFoundError: There is no such file.
            StorageError: It cannot be read.
        """
        path = self.path / file_name(file)
        with self._found(path) as (_, status):
            return status.st_size

    def files(self) -> Sequence[str]:
        """Returns the names of the capsule files, damaged ones included, sorted.

        Raises:
            NotFoundError: There is no such folder.
            StorageError: It cannot be read.
        """
        with self._reading(self.path), self._opened(self._system.open_folder(self.path)) as folder:
            return [name for name in self._system.names(folder) if _is_ours(name)]

    def remove(self, file: str) -> None:
        """Removes a file, damaged or not.

        Raises:
            InvalidNameError: The name does not fit.
            NotFoundError: There is no such file.
            StorageError: It cannot be removed.
        """
        name = file_name(file)
        with self._reading(self.path / name, "removed"):
            with self._opened(self._system.open_folder(self.path)) as folder:
                self._system.unlink(name, folder)
                self._system.fsync(folder)

    # Writing

    def _make(self, path: Path) -> None:
        if path.is_dir():
            return
        self._make(path.parent)
        try:
            self._system.make_folder(path)
        except FileExistsError as error:
            raise StorageError(
                f"{path}: expected a folder for capsule files, found a file; move it away, or name"
                " another folder"
            ) from error
        # Else a power cut might take the new folder with all that is in it.
        with self._opened(self._system.open_folder(path.parent)) as parent:
            self._system.fsync(parent)

    def _create(self, folder: int) -> tuple[str, int]:
        """Makes a temporary file that no ``_sweep`` takes away; its name and descriptor."""
        for _ in range(_TRIES):
            name = f".flashrt_ros-{uuid.uuid4().hex}.part"
            file = self._system.create(name, folder)
            try:
                # Some file systems have no locks; they have no sweeping either, then.
                with contextlib.suppress(OSError):
                    if not self._system.lock(file) or not self._system.status(file).st_nlink:
                        self._system.close(file)
                        continue
            except BaseException:
                self._system.close(file)
                raise
            return name, file
        raise StorageError(f"{self.path}: temporary files are taken away as they are made")

    def _write(self, file: int, piece: bytes | memoryview) -> int:
        rest = memoryview(piece)
        while rest:
            count = self._system.write(file, rest)
            if count <= 0:
                raise OSError(errno.EIO, f"short write: {count} of {len(rest)} bytes")
            rest = rest[count:]
        return len(piece)

    def _publish(self, folder: int, temporary: str, path: Path, replace: bool) -> None:
        if replace:
            self._system.rename(temporary, path.name, folder)
            return
        try:
            # Unlike a rename, this fails where the name is taken, however late that happened.
            self._system.link(temporary, path.name, folder)
        except FileExistsError:
            raise _exists(path) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StorageError(
                f"{path}: expected a file system with hard links, which keep two writers from"
                f" overwriting each other, found {error.strerror}; save with replace"
            ) from error
        self._system.unlink(temporary, folder)

    def _sweep(self, folder: int) -> None:
        """Removes temporary files of writers that were killed; a living writer has its locked."""
        for name in self._system.names(folder):
            if not _TEMPORARY.fullmatch(name):
                continue
            with contextlib.suppress(OSError):
                with self._opened(self._system.open(name, folder)) as file:
                    status = self._system.status(file)
                    old = time.time() - status.st_mtime > STALE_S
                    if stat.S_ISREG(status.st_mode) and old and self._system.lock(file):
                        self._system.unlink(name, folder)

    # Reading

    def _load(self, name: str, check: Check | None) -> CapsuleImage:
        path = self.path / name
        with self._found(path) as (file, status):
            return read_image(
                lambda count: self._read(file, count), status.st_size, str(path), check
            )

    @contextlib.contextmanager
    def _found(self, path: Path) -> Iterator[tuple[int, os.stat_result]]:
        with self._reading(path), contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._opened(self._system.open_folder(self.path)))
            file = stack.enter_context(self._opened(self._system.open(path.name, folder)))
            status = self._system.status(file)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidNameError(f"{path}: expected a file, found a folder or device")
            yield file, status

    def _read(self, file: int, count: int) -> memoryview:
        # Not zeroed first: that would take as long as the reading, with the interpreter locked.
        content: memoryview = np.empty(count, dtype=np.uint8).data
        done = 0
        while done < count:
            more = self._system.read_into(file, content[done:])
            if more <= 0:
                break
            done += more
        return content[:done]

    # Around both

    @contextlib.contextmanager
    def _opened(self, descriptor: int) -> Iterator[int]:
        try:
            yield descriptor
        finally:
            # All that matters was synced; an error now changes nothing.
            with contextlib.suppress(OSError):
                self._system.close(descriptor)

    @contextlib.contextmanager
    def _reading(self, path: Path, done: str = "read") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"{path}: expected a file or folder, found none") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise InvalidNameError(
                    f"{path}: expected a file, found a symbolic link, which may lead anywhere"
                ) from error
            raise StorageError(f"{path}: cannot be {done}: {_words(error)}") from error

    @staticmethod
    @contextlib.contextmanager
    def _saying(words: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{words}: {_words(error)}") from error


def load_file(path: Path, check: Check | None = None) -> CapsuleImage:
    """Reads a file anywhere, whatever its name; see ``CapsuleFolder.load``."""
    return CapsuleFolder(path.parent)._load(path.name, check)


def _is_ours(name: str) -> bool:
    return name.endswith(SUFFIX) and bool(CAPSULE_NAME.fullmatch(name.removesuffix(SUFFIX)))


def _exists(path: Path) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{path}: the file exists already; ask for it to be replaced, or choose another name"
    )


def _words(error: OSError) -> str:
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, error.errno)})"
