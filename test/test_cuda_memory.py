"""A GPU without a byte left: what was allocated at configure goes on, and refusals are refusals.

Other processes take memory whenever they like. A verb that asked the driver for some would then
fail in the middle, or take the arm with it.

Tests that run beside these on the same GPU may fail for want of memory: run these alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from toy_policies import ToyRecurrent, observations

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.runtime.session import PolicySession

pytestmark = pytest.mark.cuda


@contextmanager
def nothing_left() -> Iterator[None]:
    """Takes all memory of the GPU that can be had, down to pieces of 2 MiB."""
    torch.cuda.synchronize()
    taken = []
    size = torch.cuda.mem_get_info()[0]
    while size >= 2 << 20:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            size //= 2
    try:
        yield
    finally:
        taken.clear()
        torch.cuda.empty_cache()


def test_verbs_and_steps_go_on_without_free_memory() -> None:
    session = PolicySession(ToyRecurrent(), device="cuda", rollback_depth=8)
    free = PolicySession(ToyRecurrent(), device="cuda", rollback_depth=8)
    wanted = [free.step(observations(step)).values.clone() for step in range(12)]
    with nothing_left():
        found = [session.step(observations(step)).values.clone() for step in range(6)]
        session.snapshot("cut")
        session.fork("cut", count=2)
        found += [session.step(observations(step)).values.clone() for step in range(6, 12)]
        session.restore("cut")
        again = [session.step(observations(step)).values.clone() for step in range(6, 12)]
        session.rollback(2)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(again, wanted[6:], strict=True))
    session.close()
    free.close()


def test_a_pool_that_is_used_up_refuses_and_the_session_goes_on() -> None:
    session = PolicySession(
        ToyRecurrent(), device="cuda", rollback_depth=0, store_bytes=16 << 10, spare_states=0
    )
    session.step(observations(0))

    def fill() -> None:
        for number in range(10_000):
            session.snapshot(f"pinned_{number}", pin=True)

    with nothing_left(), pytest.raises(NoMemoryError):
        fill()
    before = session.state_digest()
    session.step(observations(1))
    assert session.state_digest() != before
    session.close()


def test_a_second_session_is_refused_in_words_before_it_allocates() -> None:
    session = PolicySession(ToyRecurrent(), device="cuda")
    with nothing_left(), pytest.raises(NoMemoryError, match="does not fit"):
        PolicySession(ToyRecurrent(), device="cuda", store_bytes=1 << 30)
    session.step(observations(0))
    session.close()
