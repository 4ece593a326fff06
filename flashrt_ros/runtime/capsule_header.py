"""The header of a capsule file: one canonical text for each capsule, and nothing else accepted.

See docs/capsules.md for the format.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from flashrt_ros.errors import CorruptError, InvalidArgumentError, UnsupportedError
from flashrt_ros.runtime import strict_json as js
from flashrt_ros.runtime.buffers import BUFFER_NAME
from flashrt_ros.runtime.capsule import CAPSULE_NAME
from flashrt_ros.runtime.capsule_image import DTYPES, CapsuleFacts, RowBuffer, dtype_name
from flashrt_ros.runtime.capsule_rows import (
    ROWS_TENSOR,
    block_shape,
    decode_rows,
    described,
    encode_rows,
    shape_of,
)
from flashrt_ros.runtime.fingerprint import Fingerprint, describe
from flashrt_ros.runtime.policy import MAX_TASK_CHARACTERS, HostRecord

FORMAT = "flashrt_ros.capsule"
PLAIN, WITH_ROWS = (1, 0), (1, 1)
"""Major and minor: a file has the oldest version that can hold its capsule."""
VERSION = WITH_ROWS
"""The newest that is read; see docs/capsules.md."""
LENGTH_BYTES = 8
"""Of the little-endian number before the header."""
MAX_HEADER_BYTES = 1 << 20
"""A longer one would hold the interpreter for tens of milliseconds while it is parsed."""
MAX_DATA_BYTES = 1 << 40
_METADATA = "__metadata__"
_METADATA_KEYS = (
    "capsule",
    "checksums",
    "digest",
    "exec",
    "format",
    "host",
    "state",
    "version",
)
_CAPSULE_KEYS = ("created_ns", "generation", "id", "name", "noise_key", "parent_id", "tick")
_HOST_KEYS = tuple(sorted(field.name for field in fields(HostRecord)))
_TENSOR_KEYS = ("dtype", "shape", "data_offsets")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{12}")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")
_NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One line of the tensor table.

    Attributes:
        name: State buffer.
        dtype: Element type.
        shape: Sizes.
        checksum: SHA-256 of its bytes, in hex.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    checksum: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def place(self) -> tuple[int, str]:
        """What the table is sorted by: the widest elements first, so that each is aligned."""
        return 0 if self.name == ROWS_TENSOR else -self.dtype.itemsize, self.name


def encode_header(
    facts: CapsuleFacts, entries: Sequence[Entry], rows: Sequence[RowBuffer] = ()
) -> bytes:
    """Returns length and header, padded with spaces to a multiple of 8 bytes.

    Args:
        facts: Of the capsule.
        entries: Sorted by ``Entry.place``; the block of rows, if there are any, is the last.
        rows: What lies in that block.

    Raises:
        InvalidArgumentError: It could not be read back.
        UnsupportedError: Files do not know an element type.
    """
    text = _text(facts, entries, rows, _NO_DIGEST)
    text = _text(facts, entries, rows, hashlib.sha256(text.encode("ascii")).hexdigest())
    text += " " * (-len(text) % LENGTH_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise InvalidArgumentError(
            f"capsule {facts.name!r}: expected a file header of at most {MAX_HEADER_BYTES} bytes,"
            f" found {len(text)}; policy.config() is the likely cause"
        )
    raw = text.encode("ascii")
    try:
        decode_header(raw)
    except CorruptError as error:
        raise InvalidArgumentError(
            f"capsule {facts.name!r}: could not be read back from a file: {error}"
        ) from error
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw


def _host_keys(rows: bool) -> tuple[str, ...]:
    # Where there are no rows, their number is no news.
    return tuple(key for key in _HOST_KEYS if rows or key != "rows")


def _text(
    facts: CapsuleFacts, entries: Sequence[Entry], rows: Sequence[RowBuffer], digest: str
) -> str:
    version = WITH_ROWS if rows else PLAIN
    capsule = {key: getattr(facts, key) for key in _CAPSULE_KEYS}
    host = asdict(facts.host)
    values = {
        "capsule": js.canonical(capsule),
        "checksums": js.canonical({entry.name: entry.checksum for entry in entries}),
        "digest": digest,
        "exec": _fingerprint_text(facts.exec_fingerprint),
        "format": FORMAT,
        "host": js.canonical({key: host[key] for key in _host_keys(bool(rows))}),
        "rows": encode_rows(rows),
        "state": _fingerprint_text(facts.state_fingerprint),
        "version": f"{version[0]}.{version[1]}",
    }
    header: dict[str, Any] = {_METADATA: {key: values[key] for key in _metadata_keys(version)}}
    begin = 0
    for entry in entries:
        end = begin + entry.size_bytes
        header[entry.name] = {
            "dtype": dtype_name(entry.dtype),
            "shape": list(entry.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    return js.canonical(header)


def _metadata_keys(version: tuple[int, int]) -> tuple[str, ...]:
    return _METADATA_KEYS if version < WITH_ROWS else tuple(sorted((*_METADATA_KEYS, "rows")))


def _fingerprint_text(fingerprint: Fingerprint) -> str:
    return js.canonical([list(pair) for pair in fingerprint.fields.items()])


def decode_header(raw: bytes) -> tuple[CapsuleFacts, tuple[Entry, ...], tuple[RowBuffer, ...]]:
    """Returns facts, tensor table and rows of a header that is canonical and whole.

    Args:
        raw: The header with its padding, without the length before it.

    Raises:
        CorruptError: It is damaged, foreign, or not what ``encode_header`` would have written.
        UnsupportedError: It is of a newer format.
    """
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise CorruptError(
            f"header: expected ASCII, found byte {raw[error.start]:#04x} at {error.start}"
        ) from None
    header = js.parse("header", text)
    if not isinstance(header, dict):
        raise CorruptError(f"header: expected an object, found {js.shown(header)}")
    metadata = header.pop(_METADATA, None)
    found = metadata.get("format") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or found != FORMAT:
        raise CorruptError(
            f"not a capsule file: expected format {FORMAT!r} in {_METADATA}, found"
            f" {js.shown(found)}"
        )
    _check_digest(text, metadata)
    version = _version(metadata)
    values = js.record(_METADATA, metadata, _metadata_keys(version))
    facts = _facts(values)
    entries = _entries(header, _json_of(values, "checksums"), version >= WITH_ROWS)
    rows: tuple[RowBuffer, ...] = ()
    if version >= WITH_ROWS:
        rows = decode_rows(_json_of(values, "rows"), entries[-1].shape[1])
    _check_agreement(facts, entries, rows)
    expected = _text(facts, entries, rows, metadata["digest"])
    expected += " " * (-len(expected) % LENGTH_BYTES)
    if text != expected:
        at = next(
            (i for i, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b),
            min(len(text), len(expected)),
        )
        raise CorruptError(
            f"header is not canonical: expected {js.shown(expected[at : at + 24])} at byte {at},"
            f" found {js.shown(text[at : at + 24])}"
        )
    return facts, entries, rows


def _check_digest(text: str, metadata: dict[str, Any]) -> None:
    digest = js.text("digest", metadata.get("digest"))
    if not _DIGEST.fullmatch(digest):
        raise CorruptError(f"digest: expected 64 hex digits, found {js.shown(digest)}")
    blank = text.rstrip(" ").replace(f'"digest":"{digest}"', f'"digest":"{_NO_DIGEST}"', 1)
    found = hashlib.sha256(blank.encode("ascii")).hexdigest()
    if found != digest:
        raise CorruptError(
            f"header was changed: expected SHA-256 {digest}, which it names, found {found}"
        )


def _version(metadata: dict[str, Any]) -> tuple[int, int]:
    text = js.text("version", metadata.get("version"))
    match = _VERSION.fullmatch(text)
    if not match:
        raise CorruptError(f"version: expected major.minor, found {js.shown(text)}")
    version = (int(match[1]), int(match[2]))
    if version > VERSION:
        raise UnsupportedError(
            f"newer format: expected version {VERSION[0]}.{VERSION[1]} or an older one, found"
            f" {text}; read it with a newer flashrt_ros"
        )
    if version[0] != VERSION[0]:
        raise UnsupportedError(
            f"format version: expected {VERSION[0]}.0 to {VERSION[0]}.{VERSION[1]}, found {text}"
        )
    return version


def _json_of(values: dict[str, Any], key: str) -> Any:
    return js.parse(key, js.text(key, values[key]))


def _facts(values: dict[str, Any]) -> CapsuleFacts:
    capsule = js.record("capsule", _json_of(values, "capsule"), _CAPSULE_KEYS)
    id_, name, parent = (
        js.text(f"capsule.{key}", capsule[key]) for key in ("id", "name", "parent_id")
    )
    if not _ID.fullmatch(id_):
        raise CorruptError(f"capsule.id: expected 12 hex digits, found {js.shown(id_)}")
    if parent and not _ID.fullmatch(parent):
        raise CorruptError(f"capsule.parent_id: expected 12 hex digits, found {js.shown(parent)}")
    if not CAPSULE_NAME.fullmatch(name):
        raise CorruptError(f"capsule.name: expected a capsule name, found {js.shown(name)}")
    key = capsule["noise_key"]
    keys = _host_keys("rows" in values)
    host = js.record("host", _json_of(values, "host"), keys)
    task = js.text("host.task", host["task"])
    if len(task) > MAX_TASK_CHARACTERS:
        raise CorruptError(
            f"host.task: expected at most {MAX_TASK_CHARACTERS} characters, found {len(task)}"
        )
    counts = {k: js.integer(f"host.{k}", host[k]) for k in keys if k != "task"}
    if counts["cursor"] > counts["length"]:
        raise CorruptError(
            f"host.cursor: expected at most host.length {counts['length']}, found"
            f" {counts['cursor']}"
        )
    return CapsuleFacts(
        id=id_,
        name=name,
        parent_id=parent,
        created_ns=js.integer("capsule.created_ns", capsule["created_ns"]),
        tick=js.integer("capsule.tick", capsule["tick"]),
        generation=js.integer("capsule.generation", capsule["generation"]),
        noise_key=None if key is None else js.integer("capsule.noise_key", key, 2**64 - 1),
        host=HostRecord(task=task, **counts),
        state_fingerprint=_fingerprint("state", _json_of(values, "state")),
        exec_fingerprint=_fingerprint("exec", _json_of(values, "exec")),
    )


def _fingerprint(where: str, pairs: object) -> Fingerprint:
    if not isinstance(pairs, list):
        raise CorruptError(f"{where}: expected a list of fields, found {js.shown(pairs)}")
    for pair in pairs:
        if not (isinstance(pair, list) and [type(word) for word in pair] == [str, str]):
            raise CorruptError(f"{where}: expected name and value, found {js.shown(pair)}")
    values: dict[str, str] = dict(pairs)
    if len(values) != len(pairs):
        raise CorruptError(f"{where}: expected each field once, found one twice")
    return Fingerprint(values)


def _entries(table: dict[str, Any], checksums: object, with_rows: bool) -> tuple[Entry, ...]:
    sums = js.record("checksums", checksums, tuple(table))
    entries = []
    end = 0
    for name, line in table.items():
        where = f"tensor {js.shown(name)}"
        is_rows = with_rows and name == ROWS_TENSOR
        if not (is_rows or BUFFER_NAME.fullmatch(name)):
            raise CorruptError(f"{where}: expected the name of a buffer, such as 'rnn.h.0'")
        line = js.record(where, line, _TENSOR_KEYS)
        dtype = DTYPES.get(js.text(f"{where}: dtype", line["dtype"]))
        if dtype is None:
            raise CorruptError(f"{where}: unknown dtype {js.shown(line['dtype'])}")
        checksum = js.text(f"{where}: checksum", sums[name])
        if not _DIGEST.fullmatch(checksum):
            raise CorruptError(
                f"{where}: checksum: expected 64 hex digits, found {js.shown(checksum)}"
            )
        shape: tuple[int, ...]
        if is_rows:
            shape = block_shape(where, line)
        else:
            shape = shape_of(where, line["shape"], MAX_DATA_BYTES)
        entry = Entry(name, dtype, shape, checksum)
        expected = [end, end + entry.size_bytes]
        if line["data_offsets"] != expected or expected[1] > MAX_DATA_BYTES:
            raise CorruptError(
                f"{where}: data_offsets: expected {expected}, without gap or overlap and within"
                f" {MAX_DATA_BYTES}, found {js.shown(line['data_offsets'])}"
            )
        end = expected[1]
        entries.append(entry)
    if not entries or sorted(entries, key=lambda entry: entry.place) != entries:
        raise CorruptError(
            "tensors: expected at least one, the widest elements first and then by name, rows"
            f" last, found {js.shown(list(table))}"
        )
    if with_rows and entries[-1].name != ROWS_TENSOR:
        raise CorruptError(f"tensors: expected {ROWS_TENSOR!r} for the rows, found none")
    return tuple(entries)


def _check_agreement(
    facts: CapsuleFacts, entries: Sequence[Entry], rows: Sequence[RowBuffer]
) -> None:
    """What stands in the header twice must be the same."""
    prefix = "state."
    told = {k: v for k, v in facts.state_fingerprint.fields.items() if k.startswith(prefix)}
    fixed = entries[:-1] if rows else entries
    table = {prefix + e.name: describe(e.dtype, e.shape) for e in fixed}
    twice = table.keys() & described(rows).keys()
    if twice:
        raise CorruptError(f"rows: expected buffers of their own, found {min(twice)} twice")
    table.update(described(rows))
    if told != table:
        name = next(k for k in (*told, *table) if told.get(k) != table.get(k))
        raise CorruptError(
            f"tensors: expected what the state fingerprint names, {name}: "
            f"{told.get(name, '(absent)')}, found {table.get(name, '(absent)')}"
        )
    if rows and facts.host.rows != entries[-1].shape[0]:
        raise CorruptError(
            f"host.rows: expected {entries[-1].shape[0]}, as there are in {ROWS_TENSOR!r}, found"
            f" {facts.host.rows}"
        )
    state = facts.exec_fingerprint.fields.get("state")
    if state != facts.state_fingerprint.id:
        raise CorruptError(
            f"exec: expected the state id {facts.state_fingerprint.id}, found {js.shown(state)}"
        )
