"""What a keyframe is bound to: change any of it, and what the keyframe leads to may be another."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

import flashrt_ros
from flashrt_ros import __version__
from flashrt_ros.errors import CorruptError, StorageError
from flashrt_ros.evaluate.timeline import Setting
from flashrt_ros.runtime import strict_json as js

if TYPE_CHECKING:
    from flashrt_ros.evaluate.evaluator import Options

BLOCK_BYTES = 1 << 22
FILES = "files.json"

ELSEWHERE = frozenset(
    {
        "candidates",  # in the state id
        "contract",  # its content is bound, not its name
        "device",  # in the exec id
        "numerics",  # the same
        "threads",  # the same
        "trust",
        "survey",
        "capsules",
        "start_s",
        "end_s",
        "keyframes_s",
        "keyframe_folder",
        "enters_keyframes",
    }
)
"""Options on which what comes next does not depend, or that are bound by other means."""

Binding = Mapping[str, str]
"""Name of each thing that matters to its value, or to a digest of it."""


def bind(
    recording: str, options: Options, setting: Setting, state_id: str, exec_id: str
) -> Binding:
    """Everything that a keyframe of one policy depends on.

    Args:
        recording: Digest of the source's files.
        options: Of the evaluation.
        setting: What became of them.
        state_id: Of the policy's session.
        exec_id: The same.
    """
    contract = setting.contract
    said = "" if contract is None else repr(dataclasses.replace(contract, source=""))
    chosen = {
        field.name: _text(getattr(options, field.name))
        for field in dataclasses.fields(options)
        if field.name not in ELSEWHERE
    }
    return {
        "flashrt_ros": f"{__version__} {code_digest()}",
        "recording": recording,
        "contract": hashlib.sha256(said.encode()).hexdigest(),
        **chosen,
        "policy (state id)": state_id,
        "machine (exec id)": exec_id,
    }


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """Of all that this package is made of: one version may have been changed where it lies."""
    root = Path(flashrt_ros.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _text(value: object) -> str:
    return repr(sorted(value.items())) if isinstance(value, Mapping) else repr(value)


def name_of(binding: Binding) -> str:
    """Folder for keyframes of this binding."""
    return hashlib.sha256(js.canonical(dict(sorted(binding.items()))).encode()).hexdigest()[:16]


def differences(one: Binding, other: Binding) -> list[str]:
    """Names of what is not the same."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def digest_of(files: Sequence[Path], remembered: Path | None = None) -> str:
    """Digest over names and contents.

    A file of the same size and times of change as remembered is not read again.

    Args:
        files: In this order.
        remembered: File that keeps the digests, where it can be written; None: none does.

    Raises:
        StorageError: A file cannot be read.
    """
    known = _remembered(remembered)
    entries = []
    for file in files:
        try:
            status = file.stat()
            # The second is what no copy and no ``touch`` can set back.
            changed = f"{status.st_mtime_ns} {status.st_ctime_ns}"
            entry = [str(file), str(status.st_size), changed]
            found = known.get("\n".join(entry))
            entries.append([*entry, found or _digest(file)])
        except OSError as error:
            raise StorageError(f"{file}: cannot be read: {error.strerror}") from error
    if remembered is not None and known.keys() != {"\n".join(entry[:3]) for entry in entries}:
        with contextlib.suppress(StorageError):  # it will be read again, then
            write_atomically(remembered, js.canonical(entries))
    contents = [[Path(name).name, digest] for name, _, _, digest in entries]
    return hashlib.sha256(js.canonical(contents).encode()).hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all, however many write it at once.

    Raises:
        StorageError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error


def _digest(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as content:
        while block := content.read(BLOCK_BYTES):
            digest.update(block)
    return str(digest.hexdigest())


def _remembered(path: Path | None) -> dict[str, str]:
    """By name, size and time of change; empty where nothing of use is remembered."""
    try:
        found: Any = [] if path is None else js.parse(str(path), path.read_text(encoding="utf-8"))
        return {f"{name}\n{size}\n{time}": str(digest) for name, size, time, digest in found}
    except (OSError, CorruptError, TypeError, ValueError):
        return {}
