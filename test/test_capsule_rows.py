"""Capsule files of states that grow by rows: written, refused, compared, laid out anew.

A row that comes back in the place of another one is a memory of what never happened; so a file's
rows are verified like all else, and a session that places rows otherwise must get each one right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from capsule_images import content_of, join, meaning, split
from row_images import image_with_rows, ledger, placed
from safetensors.torch import load
from session_checks import fingerprint_of

from flashrt_ros import cli
from flashrt_ros.errors import (
    CorruptError,
    ExecMismatchError,
    InvalidArgumentError,
    NoMemoryError,
    UnsupportedError,
)
from flashrt_ros.runtime.capsule_diff import difference
from flashrt_ros.runtime.capsule_file import decode
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.capsule_image import CapsuleImage, RowBlock
from flashrt_ros.runtime.fingerprint import Fingerprint


@pytest.fixture(scope="module")
def image() -> CapsuleImage:
    return image_with_rows()


def rows_of(image: CapsuleImage) -> bytes:
    assert image.rows is not None
    return bytes(image.rows.data)


def with_rows(image: CapsuleImage, data: bytes) -> CapsuleImage:
    assert image.rows is not None
    return replace(image, rows=replace(image.rows, data=memoryview(data)))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_what_is_written_is_read_back(steps: int) -> None:
    image = image_with_rows(steps)
    content = content_of(image)
    found = decode(content, "file")
    assert meaning(found) == meaning(image)
    assert found.rows is not None
    assert image.rows is not None
    assert found.rows.buffers == image.rows.buffers
    assert rows_of(found) == rows_of(image)
    assert len(rows_of(found)) == 2 * steps * found.rows.row_bytes
    assert found.facts.host.rows == 2 * steps
    assert content_of(found) == content


def test_it_is_a_plain_safetensors_file_of_the_second_version(image: CapsuleImage) -> None:
    content = content_of(image)
    plain = load(content)
    assert plain["__rows__"].numpy().tobytes() == rows_of(image)
    assert plain["__rows__"].shape == (10, 32)
    header = json.loads(split(content)[0])
    assert header["__metadata__"]["version"] == "1.1"
    assert list(header)[-1] == "__rows__"


def edit(content: bytes, change: Callable[[dict[str, object]], None]) -> bytes:
    header, data = split(content)
    table = json.loads(header)
    change(table)
    return join(json.dumps(table, separators=(",", ":")).encode(), data)


def line(number: int, key: str, value: object) -> Callable[[dict[str, object]], None]:
    """Changes one entry of the table of rows; None takes it out."""

    def change(table: dict[str, object]) -> None:
        metadata = table["__metadata__"]
        rows = json.loads(metadata["rows"])  # type: ignore[index]
        if key:
            rows[number][key] = value
        else:
            rows[number:] = []
        metadata["rows"] = json.dumps(rows, separators=(",", ":"))  # type: ignore[index]

    return change


def metadata(key: str, value: str) -> Callable[[dict[str, object]], None]:
    def change(table: dict[str, object]) -> None:
        table["__metadata__"][key] = value  # type: ignore[index]

    return change


def host(rows: int) -> Callable[[dict[str, object]], None]:
    def change(table: dict[str, object]) -> None:
        metadata = table["__metadata__"]
        metadata["host"] = metadata["host"].replace('"rows":10', f'"rows":{rows}')  # type: ignore[index]

    return change


def tensor(key: str, value: object) -> Callable[[dict[str, object]], None]:
    def change(table: dict[str, object]) -> None:
        table["__rows__"][key] = value  # type: ignore[index]

    return change


HEADERS: dict[str, tuple[Callable[[dict[str, object]], None], str]] = {
    "no table": (metadata("rows", "[]"), r"rows: expected a list of buffers, found \[\]"),
    "no list": (metadata("rows", "3"), "rows: expected a list of buffers, found 3"),
    "a buffer less": (line(1, "", 0), "state.mark: rows of uint8.2., found .absent."),
    "another name": (line(0, "name", "tapf"), "state.tape: rows of int32.3., found .absent."),
    "a bad name": (line(0, "name", "__x"), "rows: '__x': expected the name of a buffer"),
    "a name twice": (line(1, "name", "tape"), "rows: 'tape': expected .* each once"),
    "a name of another": (line(1, "name", "sum"), "rows: expected buffers .* found state.sum tw"),
    "another type": (line(0, "dtype", "F32"), "rows of int32.3., found rows of float32.3."),
    "unknown type": (line(0, "dtype", "Q9"), "rows: 'tape': unknown dtype 'Q9'"),
    "another shape": (line(0, "shape", [2]), "rows of int32.3., found rows of int32.2."),
    "a zero": (line(0, "shape", [0]), "rows: 'tape': shape: expected sizes of at least 1"),
    "an overlap": (line(1, "offset", 8), "rows: 'mark': offset: expected 12 or more"),
    "beyond the row": (line(1, "offset", 31), "end within the 32 bytes of a row, found 31 to 33"),
    "a negative offset": (line(0, "offset", -16), "rows: 'tape': offset: expected an integer"),
    "a key more": (line(0, "unit", "m"), "rows: expected the keys dtype, name, offset, shape"),
    "fewer rows": (host(9), "host.rows: expected 10, as there are in '__rows__', found 9"),
    "older version": (metadata("version", "1.0"), "__metadata__: expected the keys capsule"),
    "no block": (lambda t: t.pop("__rows__"), "checksums: expected the keys"),
    "block of words": (tensor("dtype", "I32"), "'__rows__': expected U8 of shape .rows, bytes"),
    "flat block": (tensor("shape", [320]), "'__rows__': expected U8 of shape .rows, bytes of a"),
    "rows of nothing": (tensor("shape", [10, 0]), "expected rows of at least 1 byte"),
    "longer block": (tensor("shape", [11, 32]), "tensor '__rows__': data_offsets: expected"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_contradict_themselves_are_refused(image: CapsuleImage, case: str) -> None:
    change, words = HEADERS[case]
    changed = edit(content_of(image), change)
    assert changed != content_of(image)
    with pytest.raises(CorruptError, match=f"^file: .*{words}"):
        decode(changed, "file")


def test_rows_that_contradict_the_rest_are_refused(image: CapsuleImage) -> None:
    data = bytearray(rows_of(image))
    data[13] = 1  # between tape and mark
    with pytest.raises(CorruptError, match="expected zeros in bytes 12 to 15 of each row"):
        decode(content_of(with_rows(image, bytes(data))), "file")
    shorter = replace(image, facts=replace(image.facts, host=replace(image.facts.host, rows=9)))
    with pytest.raises(CorruptError, match=r"buffer 'rows.length': expected 9 rows, found 10"):
        decode(content_of(with_rows(shorter, rows_of(image)[:-32])), "file")
    with pytest.raises(InvalidArgumentError, match=r"host.rows: expected 10.*, found 9"):
        content_of(shorter)
    content = content_of(image)
    with pytest.raises(CorruptError, match="bytes of buffer '__rows__' were changed"):
        decode(content[:-20] + bytes([content[-20] ^ 4]) + content[-19:], "file")
    with pytest.raises(CorruptError, match="truncated"):
        decode(content[:-32], "file")
    with pytest.raises(UnsupportedError, match=r"expected version 1.1 or an older one, found 1.2"):
        decode(edit(content, metadata("version", "1.2")), "file")


# In sessions


def test_a_load_continues_bit_equally_and_forks_there(image: CapsuleImage) -> None:
    session, other = ledger(), ledger(rollback_depth=2)
    for step in range(5):
        session.step({"told": [2, step + 1]})
    for step in range(9):
        other.step({"told": [1, step + 70]})
    other.import_(decode(content_of(image), "file"), "loaded")
    branches = [*other.fork("loaded", names=("a", "b")), other.store.get("loaded")]
    for branch in branches:
        session.snapshot("here", replace=True)
        session.restore("here", seed=branch.key)
        other.restore(branch)
        assert (other.host.rows, other.state_digest()) == (10, session.state_digest())
        for step in range(4):
            session.step({"told": [step % 3, 9]})
            other.step({"told": [step % 3, 9]})
            assert other.state_digest() == session.state_digest()
        other.step({"told": [1, 10]})
        session.step({"told": [1, 11]})
        assert other.state_digest() != session.state_digest(), "control: other rows"
        session.restore("here")


def test_another_placement_is_laid_out_anew(image: CapsuleImage) -> None:
    """By a version that aligns rows otherwise, or sorts them."""
    session = ledger()
    session.import_(image, "as-it-was")
    for name, far in (("wide", placed(image, 96, 0, 64)), ("turned", placed(image, 40, 16, 0))):
        again = decode(content_of(far), "file")
        assert rows_of(again) != rows_of(image)
        session.import_(again, name)
        assert rows_of(session.export(name)) == rows_of(image)
        session.restore(name)
        assert session.export(name).by_name().keys() == image.by_name().keys()
        assert not difference(image, far)
    wrong = with_rows(image, rows_of(image)[32:] + rows_of(image)[:32])
    session.import_(wrong, "wrong")
    assert rows_of(session.export("wrong")) != rows_of(image), "control"


def test_more_rows_than_there_is_room_for_are_refused_with_figures(image: CapsuleImage) -> None:
    small = ledger(capacity=8)
    before = fingerprint_of(small)
    with pytest.raises(ExecMismatchError, match=r"rows.capacity: expected 8, found 40"):
        small.import_(image)
    with pytest.raises(NoMemoryError, match=r"host.rows: expected at most 8, .*, found 10"):
        small.import_(image, allow_inexact=True)
    assert fingerprint_of(small) == before
    fits = image_with_rows(3)
    small.import_(fits, "fits", allow_inexact=True)
    small.restore("fits", allow_inexact=True)
    assert small.host.rows == 6
    small.step({"told": [2, 1]})
    with pytest.raises(NoMemoryError, match="expected room for 2 more rows, found 8 of 8"):
        small.step({"told": [2, 1]})


def test_rows_of_another_shape_are_another_state(image: CapsuleImage) -> None:
    """What fingerprints rule out is asked again of the bytes."""
    session = ledger()
    assert image.rows is not None
    (tape, mark) = image.rows.buffers
    short = replace(image, rows=RowBlock((replace(tape, shape=(2,)), mark), 32, image.rows.data))
    with pytest.raises(CorruptError, match="rows of 'tape': expected 12 bytes each, found 8"):
        session.import_(short)
    gone = replace(image, rows=RowBlock((tape,), 32, image.rows.data))
    with pytest.raises(CorruptError, match="rows of 'mark': expected 2 bytes each, found none"):
        session.import_(gone)
    with pytest.raises(CorruptError, match=r"host.rows: expected 0, found 10"):
        session.import_(replace(image, rows=None))


# The command


def test_diff_names_buffer_and_rows(image: CapsuleImage) -> None:
    assert not difference(image, image_with_rows())
    tape_TB = np.frombuffer(rows_of(image), np.int32).reshape(10, 8).copy()
    tape_TB[3, 1] += 7
    tape_TB[6, 2] -= 100
    found = difference(image, with_rows(image, tape_TB.tobytes()))
    ((rows),) = found.rows
    assert (rows.buffer.name, rows.rows, rows.of) == ("tape", 2, 10)
    assert (rows.first, rows.last) == (3, 6)
    assert (rows.buffer.elements, rows.buffer.largest, rows.buffer.where) == (2, 100, (6, 2))
    assert not found.fields
    longer = difference(image, image_with_rows(6))
    assert not longer.rows, "the rows that both have are the same"
    assert {line.field: (line.one, line.other) for line in longer.fields}["host.rows"] == (
        "10",
        "12",
    )


def test_the_command_understands_rows(
    image: CapsuleImage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = CapsuleFolder(tmp_path)
    files.save(image, "one")
    files.save(image_with_rows(first=2), "other")

    def call(action: str, *words: str) -> tuple[int, str]:
        code = cli.main(["capsule", action, "--dir", str(tmp_path), *words])
        return code, capsys.readouterr().out

    code, text = call("show", "one")
    assert code == 0
    assert "rows: 10 of 32 bytes each\n  tape  " in text
    assert "int32 3, at byte 0\n  mark  " in text
    shown = json.loads(call("show", "one", "--json")[1])["rows"]
    assert (shown["count"], shown["row_bytes"]) == (10, 32)
    assert [b["name"] for b in shown["buffers"]] == ["tape", "mark"]
    code, text = call("diff", "one", "other")
    assert code == 1
    # Every stamp is one higher, so the last row's sum is five higher.
    expected = "tape: 10 of 10 rows differ, the first is 0, the last 9; 20 of 30 elements differ,"
    assert f"{expected} largest difference 5 at [8, 2]\n" in text
    assert call("diff", "one", "one")[0] == 0
    assert str(image.size_bytes) in call("ls", "one")[1]
    assert call("verify")[0] == 0
    raw = (tmp_path / "one.capsule").read_bytes()
    (tmp_path / "one.capsule").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    code, text = call("verify")
    assert (code, "bytes of buffer '__rows__' were changed" in text) == (1, True)


def test_a_state_without_rows_says_so_of_one_with_them(image: CapsuleImage) -> None:
    plain = replace(
        image,
        rows=None,
        facts=replace(image.facts, state_fingerprint=Fingerprint({"policy.family": "x"})),
    )
    fields = {line.field: line.other for line in difference(plain, image).fields}
    assert fields["buffer.tape"] == "rows of int32[3]"
