"""Capsules on the host for tests of files: of a real session, and of every element type."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

import torch
from toy_policies import ToyRecurrent, observations

from flashrt_ros.runtime.capsule_file import encode
from flashrt_ros.runtime.capsule_image import DTYPES, CapsuleFacts, CapsuleImage, HostBuffer
from flashrt_ros.runtime.fingerprint import Fingerprint, describe
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.session import PolicySession


def image_of(steps: int = 3, seed: int = 3, name: str = "cut") -> CapsuleImage:
    """A capsule of ``ToyRecurrent`` after some steps."""
    torch.set_num_threads(1)
    session = PolicySession(ToyRecurrent(), seed=seed, rollback_depth=0)
    session.reset_(task='pick "the\n cup" ä')
    for step in range(steps):
        session.step(observations(step))
    session.snapshot(name)
    image = session.export(name)
    session.close()
    return image


def image_with(**buffers: torch.Tensor) -> CapsuleImage:
    """A capsule of nobody's policy with these buffers; ``__`` in a name stands for a dot."""
    made = []
    for name, tensor in buffers.items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        made.append(
            HostBuffer(
                name.replace("__", "."), tensor.dtype, tuple(tensor.shape), memoryview(data)
            )
        )
    state = Fingerprint(
        {
            "policy.family": "nobody's",
            **{f"state.{b.name}": describe(b.dtype, b.shape) for b in made},
        }
    )
    facts = CapsuleFacts(
        id="0123456789ab",
        name="made",
        parent_id="",
        created_ns=1_700_000_000 * 10**9,
        tick=7,
        generation=2,
        noise_key=2**64 - 1,
        host=HostRecord(step=5, episode=1, cursor=1, length=4, chunk=2, task="☕"),
        state_fingerprint=state,
        exec_fingerprint=Fingerprint({"state": state.id, "device": "cpu"}),
    )
    return CapsuleImage(facts, tuple(made))


def image_of_every_dtype() -> CapsuleImage:
    """One buffer of each element type, of several shapes."""
    buffers = {}
    for index, (name, dtype) in enumerate(DTYPES.items()):
        count = 6
        raw = torch.arange(count * dtype.itemsize, dtype=torch.uint8) % (
            2 if name == "BOOL" else 251
        )
        shape = [(6,), (2, 3), (1, 6, 1), (3, 2)][index % 4]
        buffers[f"b__{name.lower()}"] = raw.view(dtype).view(shape)
    return image_with(**buffers, scalar=torch.tensor(2.5))


def content_of(image: CapsuleImage) -> bytes:
    return b"".join(encode(image))


def meaning(image: CapsuleImage) -> Any:
    """What two images have in common if they are the same capsule; comparable."""
    facts = image.facts
    states = [list(f.fields.items()) for f in (facts.state_fingerprint, facts.exec_fingerprint)]
    rest = replace(facts, state_fingerprint=None, exec_fingerprint=None)  # type: ignore[arg-type]
    buffers = {b.name: (b.dtype, b.shape, bytes(b.data)) for b in image.buffers}
    block = image.rows
    rows = None if block is None else (block.buffers, block.row_bytes, bytes(block.data))
    return vars(rest), states, buffers, rows


def split(content: bytes) -> tuple[bytes, bytes]:
    """Header text without its padding, and data."""
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length].rstrip(b" "), content[8 + length :]


def join(header: bytes, data: bytes, sign: bool = True) -> bytes:
    """A file with this header; its digest is made right if ``sign`` is set."""
    if sign:
        header = re.sub(rb'"digest":"[^"]*"', b'"digest":"' + b"0" * 64 + b'"', header, count=1)
        digest = hashlib.sha256(header).hexdigest().encode()
        header = header.replace(b'"digest":"' + b"0" * 64, b'"digest":"' + digest, 1)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data
