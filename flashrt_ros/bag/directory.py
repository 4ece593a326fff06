"""Finds the storage files of a recording, and what its ``metadata.yaml`` promises of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
import zstandard

from flashrt_ros.bag.message import STORAGE_SUFFIXES, long_type
from flashrt_ros.errors import CorruptError, NotFoundError


@dataclass
class Found:
    """The parts of a recording.

    Attributes:
        files: Storage files in recorded order.
        promised: Messages by (topic, long type) that the metadata promise; None without them.
        defects: What is amiss, in words.
    """

    files: list[Path]
    promised: dict[tuple[str, str], int] | None = None
    defects: list[str] = field(default_factory=list)


def find(path: Path) -> Found:
    """Finds the storage files of a recording.

    Args:
        path: A recording's folder, or one ``.mcap`` or ``.db3`` file.

    Raises:
        NotFoundError: There is no such path, or no storage file in it.
        CorruptError: It is a file of another kind.
    """
    if not path.exists():
        raise NotFoundError(f"{path}: no such recording; expected a folder, .mcap or .db3 file")
    if path.is_file():
        if _suffix(path) in STORAGE_SUFFIXES:
            return Found([path])
        if path.name == "metadata.yaml":
            return find(path.parent)
        hint = "; convert it with `rosbags-convert`" if path.suffix == ".bag" else ""
        raise CorruptError(f"{path}: expected a folder, .mcap or .db3 file{hint}")
    if not path.is_dir():
        raise CorruptError(f"{path}: expected a folder, .mcap or .db3 file, found neither")
    present = sorted(entry for entry in path.iterdir() if _suffix(entry) in STORAGE_SUFFIXES)
    metadata, defects = _read_metadata(path / "metadata.yaml")
    found = Found(present, defects=defects)
    if metadata is not None:
        _apply(metadata, path, found)
    if not found.files:
        raise NotFoundError(f"{path}: expected .mcap or .db3 files in it, found none")
    return found


def unpack(path: Path, folder: Path) -> Path:
    """Decompresses a storage file compressed as a whole into ``folder``; others stay as they are.

    Raises:
        CorruptError: The compressed file is damaged.
    """
    if path.suffix != ".zstd":
        return path
    target = folder / path.stem
    try:
        with path.open("rb") as source, target.open("wb") as sink:
            with zstandard.ZstdDecompressor().stream_reader(source) as reader:
                shutil.copyfileobj(reader, sink)
    except zstandard.ZstdError as error:
        raise CorruptError(f"{path}: expected a zstd file, found damage: {error}") from error
    return target


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix == ".zstd" else path.suffix


def _read_metadata(path: Path) -> tuple[Mapping[str, Any] | None, list[str]]:
    if not path.exists():
        return None, ["metadata.yaml is missing (the recording was not closed)"]
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
        information = content["rosbag2_bagfile_information"]
        if not isinstance(information, Mapping):
            raise TypeError(f"found {type(information).__name__}")
    except (yaml.YAMLError, TypeError, KeyError) as error:
        return None, [f"metadata.yaml is unreadable ({str(error).splitlines()[0]}); not used"]
    return information, []


def _apply(metadata: Mapping[str, Any], folder: Path, found: Found) -> None:
    """Orders the files as the metadata do, and compares the two."""
    # Old recordings hold the path that the file had on the recorder: only the name counts.
    names = [PurePosixPath(str(entry)).name for entry in _list(metadata, "relative_file_paths")]
    for name in names:
        if not (folder / name).is_file():
            found.defects.append(f"{name}: listed in metadata.yaml, but missing")
    listed = [folder / name for name in names if (folder / name).is_file()]
    for extra in found.files:
        if extra not in listed:
            found.defects.append(f"{extra.name}: not listed in metadata.yaml; read all the same")
    found.files = listed + [extra for extra in found.files if extra not in listed]
    found.promised = {}
    for entry in _list(metadata, "topics_with_message_count"):
        try:
            topic = entry["topic_metadata"]
            key = (str(topic["name"]), long_type(str(topic["type"])))
            found.promised[key] = found.promised.get(key, 0) + int(entry["message_count"])
        except (TypeError, KeyError, ValueError):
            found.defects.append("metadata.yaml: one topic entry is unreadable; not used")


def _list(metadata: Mapping[str, Any], key: str) -> list[Any]:
    """A list of the metadata; anything else in its place promises nothing."""
    found = metadata.get(key)
    return found if isinstance(found, list) else []
