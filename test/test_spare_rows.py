"""What a spare state holds of a lineage is not copied into it again, and never taken for another.

Rows are known by the segment that stores them, which may be cut short and grow anew with others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_memory import paged
from preview_rig import branched, by_restore, run

from flashrt_ros.runtime.device import Pieces
from flashrt_ros.runtime.device.cpu import CpuDevice


def test_a_spare_state_keeps_rows_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    copy_pieces, copy = CpuDevice.copy_pieces_, CpuDevice.copy_

    def pieces(device: CpuDevice, dst: Any, src: Any, given: Pieces) -> None:
        copied.append(int(given.sizes.sum()))
        copy_pieces(device, dst, src, given)

    def whole(device: CpuDevice, dst: torch.Tensor, src: torch.Tensor) -> None:
        copied.append(dst.nbytes)
        copy(device, dst, src)

    monkeypatch.setattr(CpuDevice, "copy_pieces_", pieces)
    monkeypatch.setattr(CpuDevice, "copy_", whole)
    with paged(1 << 20):  # one piece
        session, see = branched("rows by act", "cpu")
    fixed, row = session.layout.fixed_bytes, session.layout.row_bytes

    def copies(source: str | None) -> int:
        copied.clear()
        session.materialise(source)
        return (sum(copied) - fixed) // row

    assert copies("later") == 71  # nothing was there
    assert copies("later") == 0
    assert copies("a") == 0
    assert copies("later") == 11
    assert session.host.rows == 67
    assert copies(None) == 7
    session.snapshot("live")
    session.step(see(1))
    assert copies(None) == 2  # the first of them was not stored yet when it was copied
    assert copies(None) == 1
    # A segment is cut short and grows anew: what the spare state has of it is not what is there.
    run(session, see, 1, 4)
    session.snapshot("end")
    assert copies("end") == 4
    session.restore("live")
    for boundary in [c for c in session.store.list() if c.automatic]:
        session.drop(boundary.id)
    session.drop("end")
    run(session, see, 20, 24)
    session.snapshot("end")
    assert copies("end") == 71
    (found,) = session.preview(["end"], see(5))
    assert torch.equal(found.actions_HA, by_restore(session, "end", see(5)))
    session.close()
