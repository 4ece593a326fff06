"""Capsule files as bytes: what is written is read back, and nothing else is read at all.

A state that was read wrong moves an arm wrong, so a file is either the one that was written or it
is refused with a reason; formats of this kind have been read with flipped bits, with header sizes
that took all memory, and with tensors that overlap.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from capsule_images import (
    content_of,
    image_of,
    image_of_every_dtype,
    image_with,
    join,
    meaning,
    split,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load

from flashrt_ros.errors import (
    CorruptError,
    InvalidArgumentError,
    StateMismatchError,
    UnsupportedError,
)
from flashrt_ros.runtime.capsule_file import decode, read_image
from flashrt_ros.runtime.capsule_header import MAX_HEADER_BYTES
from flashrt_ros.runtime.capsule_image import CapsuleFacts, HostBuffer
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.policy import HostRecord


@pytest.fixture(scope="module")
def content() -> bytes:
    return content_of(image_of())


# Round trips


@pytest.mark.parametrize("make", [image_of, image_of_every_dtype])
def test_what_is_written_is_read_back(make: Callable[[], object]) -> None:
    image = make()
    content = content_of(image)
    again = decode(content, "file")
    assert meaning(again) == meaning(image)
    assert content_of(again) == content
    # The order in which buffers are given is no part of the capsule.
    assert content_of(replace(image, buffers=image.buffers[::-1])) == content
    assert content_of(replace(image, facts=replace(image.facts, tick=99))) != content


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        HostRecord,
        step=st.integers(0, 2**63 - 1),
        episode=st.integers(0, 2**63 - 1),
        cursor=st.integers(0, 3),
        length=st.integers(3, 9),
        chunk=st.integers(0, 99),
        task=st.text(max_size=40),
    ),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4),
    st.none() | st.integers(0, 2**64 - 1),
)
def test_facts_of_every_kind_survive(
    host: HostRecord, fields: dict[str, str], key: int | None
) -> None:
    image = image_with(a=torch.zeros(2))
    facts = image.facts
    kept = {k: v for k, v in fields.items() if not k.startswith("state")}
    state = Fingerprint({**kept, **facts.state_fingerprint.fields})
    changed = replace(
        facts,
        host=host,
        noise_key=key,
        state_fingerprint=state,
        exec_fingerprint=Fingerprint({"state": state.id, **kept}),
    )
    image = replace(image, facts=changed)
    found = decode(content_of(image), "file")
    assert meaning(found) == meaning(image)
    assert found.facts.state_fingerprint.id == state.id


def test_it_is_a_plain_safetensors_file(content: bytes, tmp_path: object) -> None:
    """Any tool can look into it, and every tensor is aligned to its elements."""
    image = image_of_every_dtype()
    for one in (image_of(), image):
        plain = load(content_of(one))
        assert set(plain) == {b.name for b in one.buffers}
        for buffer in one.buffers:
            found = plain[buffer.name]
            assert (found.dtype, tuple(found.shape)) == (buffer.dtype, buffer.shape)
            raw = found.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            assert raw == bytes(buffer.data)
    header, _ = split(content_of(image))
    table = json.loads(header)
    assert next(iter(table)) == "__metadata__"
    del table["__metadata__"]
    widths = {b.name: b.dtype.itemsize for b in image.buffers}
    assert all(e["data_offsets"][0] % widths[name] == 0 for name, e in table.items())
    path = f"{tmp_path}/plain.capsule"
    with open(path, "wb") as file:
        file.write(content)
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["format"] == "flashrt_ros.capsule"
        assert opened.metadata()["version"] == "1.0"


def test_what_cannot_be_read_back_is_not_written() -> None:
    odd = image_with(a=torch.zeros(2))
    complex_ = HostBuffer("c", torch.complex64, (1,), memoryview(bytes(8)))
    with pytest.raises(
        UnsupportedError, match=r"element type among .*F32.*, found torch.complex64"
    ):
        content_of(replace(odd, buffers=(complex_,)))
    for change, words in (
        ({"task": "x" * 4097}, "host.task: expected at most 4096 characters, found 4097"),
        ({"cursor": 5}, "host.cursor: expected at most host.length 4, found 5"),
        ({"step": -1}, "host.step: expected an integer in 0 .."),
    ):
        facts = replace(odd.facts, host=replace(odd.facts.host, **change))
        with pytest.raises(InvalidArgumentError, match=f"could not be read back.*: {words}"):
            content_of(replace(odd, facts=facts))
    large = Fingerprint({"policy.config": "x" * MAX_HEADER_BYTES})
    with pytest.raises(InvalidArgumentError, match=r"policy.config\(\) is the likely cause"):
        content_of(replace(odd, facts=replace(odd.facts, state_fingerprint=large)))


# Refusals by kind


def edited(content: bytes, old: str, new: str, sign: bool = True) -> bytes:
    header, data = split(content)
    assert old.encode() in header, "the edit must do something"
    return join(header.replace(old.encode(), new.encode(), 1), data, sign)


def header_with(content: bytes, change: Callable[[dict[str, object]], None]) -> bytes:
    header, data = split(content)
    table = json.loads(header)
    change(table)
    return join(json.dumps(table, separators=(",", ":")).encode(), data)


def _metadata(key: str, value: object) -> Callable[[dict[str, object]], None]:
    def change(table: dict[str, object]) -> None:
        table["__metadata__"][key] = value  # type: ignore[index]

    return change


def _tensor(name: str, key: str, value: object) -> Callable[[dict[str, object]], None]:
    def change(table: dict[str, object]) -> None:
        table[name][key] = value  # type: ignore[index]

    return change


def _swap(table: dict[str, object]) -> None:
    table["rnn.h"] = table.pop("rnn.h")


FLIP = 0x10
CASES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda c: b"", "truncated: expected at least 8 bytes, found 0"),
    "short length": (lambda c: c[:7], "truncated: expected at least 8 bytes, found 7"),
    "truncated header": (lambda c: c[:100], r"truncated: expected a header of \d+ bytes, found"),
    "truncated data": (lambda c: c[:-1], r"truncated: expected \d+ bytes, found \d+"),
    "trailing byte": (lambda c: c + b"\0", r"trailing bytes: expected \d+ bytes, found \d+"),
    "flipped data": (
        lambda c: c[:-1] + bytes([c[-1] ^ FLIP]),
        "bytes of buffer 'trace' were changed: expected SHA-256 [0-9a-f]{64}, found",
    ),
    "flipped header": (
        lambda c: edited(c, '"pick', '"kick', sign=False) if b'"pick' in c else
        edited(c, "toy_recurrent", "toy_recurrenu", sign=False),
        "header was changed: expected SHA-256",
    ),
    "huge length": (
        lambda c: (2**63).to_bytes(8, "little") + c[8:],
        "not a capsule file: expected a header of at most 1048576 bytes, found a length of 9223",
    ),
    "foreign text": (lambda c: b"# a readme of more than eight bytes\n", "not a capsule file"),
    "foreign safetensors": (
        lambda c: join(b'{"__metadata__":{"format":"pt"}}', b"", sign=False),
        "not a capsule file: expected format 'flashrt_ros.capsule' in __metadata__, found 'pt'",
    ),
    "no metadata": (lambda c: join(b'{"a":1}', b"", sign=False), "not a capsule file"),
    "a list": (lambda c: join(b"[]", b"", sign=False), r"header: expected an object, found \[\]"),
    "non-ASCII": (
        lambda c: join(split(c)[0].replace(b"cut", b"\xc3\xa4b"), split(c)[1]),
        "header: expected ASCII, found byte 0xc3",
    ),
    "deep nesting": (
        lambda c: join(b"[" * 200_000, b"", sign=False),
        "header: expected JSON, found one nested too deeply",
    ),
    "key twice": (
        lambda c: edited(c, '"count":{', '"trace":{"a":1},"count":{'),
        "header: expected JSON, found the key 'trace' twice",
    ),
    "NaN": (lambda c: edited(c, '"shape":[1]', '"shape":[NaN]'), "found 'NaN' where only int"),
    "infinity": (
        lambda c: edited(c, '"shape":[1]', '"shape":[-Infinity]'),
        "found '-Infinity' where only integers",
    ),
    "a float": (lambda c: edited(c, '"shape":[1]', '"shape":[1.0]'), "found '1.0' where only int"),
    "a huge integer": (
        lambda c: edited(c, '"shape":[1]', f'"shape":[{"9" * 5000}]'),
        "found an integer of 5000 digits",
    ),
    "huge shape": (
        lambda c: header_with(c, _tensor("rnn.h", "shape", [2**40, 2**40])),
        r"tensor 'rnn.h': data_offsets: expected \[24, .* within 1099511627776, found \[24, 88\]",
    ),
    "zero in a shape": (
        lambda c: header_with(c, _tensor("rnn.h", "shape", [0, 16])),
        "tensor 'rnn.h': shape: expected sizes of at least 1",
    ),
    "a negative size": (
        lambda c: header_with(c, _tensor("rnn.h", "shape", [-1, 16])),
        "tensor 'rnn.h': shape: expected an integer in 0 ..",
    ),
    "many dimensions": (
        lambda c: header_with(c, _tensor("rnn.h", "shape", [1] * 99)),
        "tensor 'rnn.h': shape: expected at most 16 sizes",
    ),
    "another shape": (
        lambda c: header_with(c, _tensor("rnn.h", "shape", [16, 1])),
        r"what the state fingerprint names, state.rnn.h: float32\[1,16\], found float32\[16,1\]",
    ),
    "another dtype": (
        lambda c: header_with(c, _tensor("rnn.h", "dtype", "I32")),
        r"state.rnn.h: float32\[1,16\], found int32\[1,16\]",
    ),
    "unknown dtype": (
        lambda c: header_with(c, _tensor("rnn.h", "dtype", "Q9")),
        "tensor 'rnn.h': unknown dtype 'Q9'",
    ),
    "overlap": (
        lambda c: header_with(c, _tensor("rnn.h", "data_offsets", [16, 80])),
        r"tensor 'rnn.h': data_offsets: expected \[24, 88\], without gap or overlap",
    ),
    "gap": (
        lambda c: header_with(c, _tensor("rnn.h", "data_offsets", [32, 96])),
        r"tensor 'rnn.h': data_offsets: expected \[24, 88\]",
    ),
    "other order": (lambda c: header_with(c, _swap), "data_offsets: expected"),
    "a tensor's extra key": (
        lambda c: header_with(c, _tensor("rnn.h", "more", 1)),
        "tensor 'rnn.h': expected the keys dtype, shape, data_offsets, found",
    ),
    "a tensor less": (lambda c: header_with(c, lambda t: t.pop("trace")), "checksums: expected"),
    "a metadata key more": (
        lambda c: header_with(c, _metadata("rows", "x")),
        "__metadata__: expected the keys capsule, checksums",
    ),
    "metadata that is no text": (
        lambda c: header_with(c, _metadata("host", 3)),
        "host: expected a string, found 3",
    ),
    "newer minor": (
        lambda c: edited(c, '"version":"1.0"', '"version":"1.7"'),
        "newer format: expected version 1.1 or an older one, found 1.7",
    ),
    "newer major": (
        lambda c: edited(c, '"version":"1.0"', '"version":"12.0"'),
        "newer format: expected version 1.1 or an older one, found 12.0",
    ),
    "no version": (
        lambda c: edited(c, '"version":"1.0"', '"version":"one"'),
        "version: expected major.minor, found 'one'",
    ),
    "a space": (lambda c: edited(c, '"count":{', '"count": {'), "header is not canonical"),
    "an escape": (lambda c: edited(c, '"count":{', '"\\u0063ount":{'), "header is not canonical"),
    "more padding": (
        lambda c: (len(h := c[8 : 8 + int.from_bytes(c[:8], "little")]) + 8).to_bytes(8, "little")
        + h + b" " * 8 + split(c)[1],
        "header is not canonical: expected '' at byte",
    ),
    "a bad name": (
        lambda c: edited(c, r"\"name\":\"cut\"", r"\"name\":\"../cut\""),
        "capsule.name: expected a capsule name, found '../cut'",
    ),
    "a bad id": (
        lambda c: edited(c, r"\"parent_id\":\"\"", r"\"parent_id\":\"x\""),
        "capsule.parent_id: expected 12 hex digits, found 'x'",
    ),
    "a negative step": (
        lambda c: edited(c, r"\"step\":3", r"\"step\":-3"),
        "host.step: expected an integer in 0 ..",
    ),
    "a true step": (
        lambda c: edited(c, r"\"step\":3", r"\"step\":true"),
        "host.step: expected an integer in 0 .. 9223372036854775807, found True",
    ),
    "cursor beyond": (
        lambda c: edited(c, r"\"cursor\":0", r"\"cursor\":1"),
        "host.cursor: expected at most host.length 0, found 1",
    ),
    "another state": (
        lambda c: edited(c, "toy_recurrent", "toy_recurrenu"),
        "exec: expected the state id",
    ),
    "a checksum": (
        lambda c: edited(c, r"\"count\":\"", r"\"count\":\"0"),
        "tensor 'count': checksum: expected 64 hex digits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refusal_says_which_file_and_why(content: bytes, case: str) -> None:
    damage, words = CASES[case]
    changed = damage(content)
    assert changed != content
    expected = UnsupportedError if case.startswith("newer") else CorruptError
    with pytest.raises(expected, match=f"^/capsules/x.capsule: .*{words}"):
        decode(changed, "/capsules/x.capsule")


def test_a_bool_that_is_neither_is_refused() -> None:
    image = image_with(flag=torch.tensor([True, False]))
    assert meaning(decode(content_of(image), "file")) == meaning(image)
    bad = HostBuffer("flag", torch.bool, (2,), memoryview(b"\x01\x02"))
    with pytest.raises(CorruptError, match="buffer 'flag': expected bytes 0 and 1 for BOOL"):
        decode(content_of(replace(image, buffers=(bad,))), "file")


def test_a_file_that_shrinks_while_it_is_read_is_refused(content: bytes) -> None:
    left = memoryview(content[:-4])

    def take(count: int) -> memoryview:
        nonlocal left
        data, left = left[:count], left[count:]
        return data

    with pytest.raises(CorruptError, match="became shorter while it was read"):
        read_image(take, len(content), "file")


def test_an_unwanted_capsule_is_refused_before_its_bytes_are_read(content: bytes) -> None:
    asked = []

    def check(facts: CapsuleFacts) -> None:
        asked.append(facts.name)
        raise StateMismatchError("policy.family: expected mine, found theirs")

    def take(count: int) -> memoryview:
        taken.append(count)
        begin = sum(taken[:-1])
        return memoryview(content)[begin : begin + count]

    taken: list[int] = []
    with pytest.raises(StateMismatchError, match=r"^file: policy.family: expected mine"):
        read_image(take, len(content), "file", check)
    assert asked == ["cut"]
    assert sum(taken) == len(content) - len(split(content)[1])
