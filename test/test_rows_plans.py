"""Rows that plans append: on the control thread, and beside it, where adoption does.

A plan beside reads live rows without a copy, so what overtakes it must throw its chunk away.
"""

from __future__ import annotations

import threading

import pytest
import session_checks as checks
from ledger_policy import Beside, Planned

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.runtime.session import PolicySession

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
on_devices = pytest.mark.parametrize("device", DEVICES)


@on_devices
def test_plans_that_advance_state_append_rows(device: str) -> None:
    session = PolicySession(Planned(9), device=device, rollback_depth=8)
    lengths = []
    for step in range(8):
        session.step({"told": [1 + step % 2, step]})
        lengths.append(session.host.rows)
    assert lengths == [1, 1, 2, 2, 3, 3, 4, 4]
    state = session.state_bytes()
    session.snapshot("a")
    for step in range(4):
        session.step({"told": [2, step]})
    before = session.state_bytes()
    with pytest.raises(NoMemoryError, match="room for 2 more rows, found 8 of 9"):
        session.step({"told": [1, 1]})
    assert session.state_bytes() == before
    session.rollback()
    assert session.state_bytes() == state
    session.close()


@on_devices
def test_plans_beside_read_rows_and_adoption_appends_them(device: str) -> None:
    session = PolicySession(Beside(60), device=device, rollback_depth=8)
    expected = 0
    for round_ in range(20):
        ticket = session.begin_plan({"told": [2, round_ + 1]})
        planner = threading.Thread(target=session.run_plan, args=(ticket,))
        planner.start()
        planner.join()
        assert session.adopt(ticket)
        assert session.host.rows == 2 * (round_ + 1)
        if round_ == 10:
            state = session.state_bytes()
            session.snapshot("a", pin=True)
        stamp = round_ + 1 + 2 * expected
        expected += stamp
        checks.settle(session)
        assert session.arena.state["tape"][session.host.rows - 1, 0].item() == stamp % (1 << 32)
        session.act()
        session.act()
    # A plan that a restore overtakes is never adopted, whatever it read meanwhile.
    ticket = session.begin_plan({"told": [2, 1]})
    session.restore("a")
    session.run_plan(ticket)
    assert not session.adopt(ticket)
    assert session.state_bytes() == state
    session.close()
