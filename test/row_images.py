"""Capsules with rows for tests of files: of a real session, laid out as by another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from ledger_policy import Ledger

from flashrt_ros.runtime.capsule_image import CapsuleImage, RowBlock, RowBuffer
from flashrt_ros.runtime.session import PolicySession


def ledger(capacity: int = 40, **options: int) -> PolicySession:
    torch.set_num_threads(1)
    return PolicySession(Ledger(capacity), warm_up=0, **options)


def image_with_rows(steps: int = 5, name: str = "cut", first: int = 1) -> CapsuleImage:
    """A capsule of ``Ledger`` with two rows a step; ``first`` tells it from others."""
    session = ledger(rollback_depth=0)
    for step in range(steps):
        session.step({"told": [2, step + first]})
    session.snapshot(name)
    image = session.export(name)
    session.close()
    return image


def placed(image: CapsuleImage, row_bytes: int, *offsets: int) -> CapsuleImage:
    """The same rows, placed elsewhere within a longer row, in the order of the offsets."""
    assert image.rows is not None
    old_TB = image.rows.bytes_TB()
    new_TB = np.zeros((len(old_TB), row_bytes), np.uint8)
    rows = []
    for row, offset in zip(image.rows.buffers, offsets, strict=True):
        new_TB[:, offset : offset + row.size_bytes] = old_TB[:, row.offset : row.end]
        rows.append(RowBuffer(row.name, row.dtype, row.shape, offset))
    rows.sort(key=lambda row: row.offset)
    return replace(image, rows=RowBlock(tuple(rows), row_bytes, new_TB.reshape(-1).data))
