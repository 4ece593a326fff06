"""The system calls that capsule files are made of, each behind one method, so that tests see them.

Names are relative to an open folder: whatever a name says, and wherever the folder is moved
meanwhile, nothing outside it is touched.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FileSystem:
    """The real one. All methods raise ``OSError``; files and folders are descriptors."""

    def make_folder(self, path: Path) -> None:
        """Makes one folder in an existing one; no error if it is there."""
        path.mkdir(exist_ok=True)

    def open_folder(self, path: Path) -> int:
        """Opens a folder."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def names(self, folder: int) -> list[str]:
        """Returns all names in a folder, sorted."""
        return sorted(os.listdir(folder))

    def create(self, name: str, folder: int) -> int:
        """Makes a file that is not there yet, for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o644, dir_fd=folder)

    def open(self, name: str, folder: int) -> int:
        """Opens a file for reading; neither follows a symbolic link nor waits for a pipe."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=folder)

    def lock(self, file: int) -> bool:
        """Locks a file until it is closed or its process ends; False if another process has it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def status(self, file: int) -> os.stat_result:
        """Kind, size, age and links of an open file."""
        return os.fstat(file)

    def write(self, file: int, data: memoryview) -> int:
        """Writes some of ``data``; returns how many bytes."""
        return os.write(file, data)

    def read_into(self, file: int, into: memoryview) -> int:
        """Reads some bytes; returns how many, 0 at the end."""
        return os.readv(file, [into])

    def fsync(self, file: int) -> None:
        """Waits until a file, or the names in a folder, are on the disk."""
        os.fsync(file)

    def link(self, old: str, new: str, folder: int) -> None:
        """Gives a file a second name, unless that is taken."""
        os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def rename(self, old: str, new: str, folder: int) -> None:
        """Gives a file another name, in the place of what has it now."""
        os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, name: str, folder: int) -> None:
        """Removes a name."""
        os.unlink(name, dir_fd=folder)

    def close(self, file: int) -> None:
        """Closes a file or folder, and gives its lock back."""
        os.close(file)
