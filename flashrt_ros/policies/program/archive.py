"""A .pt2 archive of ``torch.export.save``, read as what it is: a zip of JSON and raw tensors.

torch's own loader unpickles: the sample inputs always, by ``torch.load``, which falls back to a
full unpickling where the safe one fails, and weights and constants whose entry says so. Nothing of
that happens here. Sample inputs are not read, and other pickles are refused by name.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.errors import CheckpointError
from flashrt_ros.runtime.strict_json import shown

SCHEMA = 8
"""Major version of the graph's schema: that of torch 2.7 to 2.13."""
DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
_TRUST = "set trust (node: trust_policy_files, command line: --trust) if you made this file"


@dataclass(frozen=True)
class Archive:
    """What one archive holds.

    Attributes:
        path: The file.
        program: ``models/*.json``, parsed.
        weights: Name to parameter or buffer.
        constants: Name to tensor constant.
    """

    path: Path
    program: Mapping[str, Any] = field(repr=False)
    weights: Mapping[str, torch.Tensor] = field(repr=False)
    constants: Mapping[str, torch.Tensor] = field(repr=False)


def read_archive(path: Path) -> Archive:
    """Reads an archive of one program, unpickling nothing.

    Raises:
        CheckpointError: It is damaged, of another format, or holds what only unpickling could
            read; names the member.
    """
    try:
        with zipfile.ZipFile(path) as file:
            return _read(path, file)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(f"{path}: expected a .pt2 archive, found a fault: {error}") from None


def _read(path: Path, file: zipfile.ZipFile) -> Archive:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in file.infolist():
        _, _, inner = info.filename.partition("/")
        if info.compress_type != zipfile.ZIP_STORED or inner in members:
            raise CheckpointError(
                f"{path}: member {info.filename!r}: expected it stored, once, as torch writes it"
            )
        members[inner] = info
    if sum(info.file_size for info in members.values()) > path.stat().st_size:
        raise CheckpointError(f"{path}: members are larger than the file")
    models = [name for name in members if name.startswith("models/") and name.endswith(".json")]
    if not models:
        first = next((name for name in members if name.endswith((".pt", ".pkl"))), "no program")
        raise CheckpointError(
            f"{path}: expected models/*.json, as torch 2.7 and later writes it, found {first!r}; "
            f"loading that would unpickle; export it again, or {_TRUST}"
        )
    if len(models) != 1:
        raise CheckpointError(f"{path}: expected one program, found {sorted(models)}")
    if "byteorder" in members and file.read(members["byteorder"]) != b"little":
        raise CheckpointError(f"{path}: byteorder: expected little")
    name = models[0].removeprefix("models/").removesuffix(".json")
    program = _object(path, file.read(members[models[0]]), models[0])
    version = program.get("schema_version")
    if not isinstance(version, dict) or version.get("major") != SCHEMA:
        raise CheckpointError(
            f"{path}: schema_version: expected major {SCHEMA}, found {shown(version)}; export it "
            "with a torch from 2.7 to 2.13"
        )
    return Archive(
        path,
        program,
        _tensors(path, file, members, "data/weights/", f"{name}_weights_config.json"),
        _tensors(path, file, members, "data/constants/", f"{name}_constants_config.json"),
    )


def _object(path: Path, content: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {name}: expected JSON, found a fault: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {name}: expected an object, found {shown(value)}")
    return value


def _tensors(
    path: Path,
    file: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    folder: str,
    name: str,
) -> dict[str, torch.Tensor]:
    if folder + name not in members:
        return {}
    entries = _object(path, file.read(members[folder + name]), folder + name).get("config")
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: {folder}{name}: expected an object under 'config'")
    found = {}
    for key, entry in entries.items():
        where = f"{path}: {folder}{entry.get('path_name') if isinstance(entry, dict) else key}"
        if not isinstance(entry, dict) or not isinstance(entry.get("tensor_meta"), dict):
            entry = entry if isinstance(entry, dict) else {}
            if not entry.get("use_pickle"):
                raise CheckpointError(f"{where} ({key}): expected the description of a tensor")
        if entry.get("use_pickle") is not False:
            raise CheckpointError(
                f"{where} ({key}): loading it would unpickle, which can run code: save it as a "
                f"plain tensor, or {_TRUST}"
            )
        info = members.get(f"{folder}{entry.get('path_name')}")
        if info is None:
            raise CheckpointError(f"{where} ({key}): no such member")
        try:
            found[key] = _tensor(file.read(info), entry["tensor_meta"])
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise CheckpointError(f"{where} ({key}): expected a tensor: {error}") from None
    return found


def _tensor(content: bytes, meta: Mapping[str, Any]) -> torch.Tensor:
    dtype = DTYPES[meta["dtype"]]
    sizes, strides = _integers(meta["sizes"]), _integers(meta["strides"])
    offset = _integers([meta["storage_offset"]])[0]
    if math.prod(sizes) == 0:
        return torch.empty(sizes, dtype=dtype)
    if len(sizes) != len(strides):
        raise ValueError(f"found {len(sizes)} sizes and {len(strides)} strides")
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    itemsize = torch.empty((), dtype=dtype).element_size()
    if len(content) % itemsize or not 0 <= last < len(content) // itemsize:
        raise ValueError(f"found {len(content)} bytes for sizes {sizes} of {dtype}")
    flat_N = torch.frombuffer(bytearray(content), dtype=dtype)
    return flat_N.as_strided(sizes, strides, offset).clone()


def _integers(values: Any) -> list[int]:
    found = [value["as_int"] for value in values]
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in found):
        raise ValueError(f"expected whole numbers, found {shown(found)}")
    return found
