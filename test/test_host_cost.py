"""What a verb enqueues before its checks, and a step before its books, changes nothing if refused.

Both are ways to keep the host's work beside the device's. So a refused snapshot must leave the
store to the byte as it was, and a step that fails must leave the boundary before it in the ring.
"""

import copy
import dataclasses

import pytest
import session_checks as checks
import torch
from toy_policies import ToyRecurrent, observations

from flashrt_ros.errors import AlreadyExistsError, InternalError, InvalidNameError, PinnedError
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.session import PolicySession

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def held(session: PolicySession) -> tuple[object, ...]:
    store = session.store
    return (
        store.bytes_used,
        store.pool.free,
        store.removals,
        [capsule.id for capsule in store.list()],
        session.state_digest(),
        session.capsule_id,
        session.generation,
    )


def test_a_refused_snapshot_leaves_everything_as_it_was(device: str) -> None:
    session = PolicySession(ToyRecurrent(), device, rollback_depth=2)
    session.step(observations(0))
    session.snapshot("taken")
    session.snapshot("pinned", pin=True)
    before = held(session)
    assert session.store.pool.free  # so the copy is made ahead of the checks
    with pytest.raises(AlreadyExistsError, match="'taken' exists already"):
        session.snapshot("taken")
    with pytest.raises(InvalidNameError):
        session.snapshot("../outside")
    with pytest.raises(PinnedError, match="'pinned'"):
        session.snapshot("pinned", replace=True)
    assert held(session) == before
    session.snapshot("granted")
    assert held(session) != before  # what is compared does tell


def test_a_snapshot_without_a_free_slot_still_evicts(device: str) -> None:
    weight = PolicySession(ToyRecurrent(), device).layout.fixed_bytes
    session = PolicySession(ToyRecurrent(), device, store_bytes=3 * weight, rollback_depth=0)
    slots = session.store.pool.slots
    for index in range(slots):
        session.snapshot(f"c{index}")
    assert not session.store.pool.free
    with pytest.raises(AlreadyExistsError):
        session.snapshot("c1")
    assert len(session.store) == slots
    session.snapshot("more")
    assert session.last_evicted == ["c0"]
    # With one slot free again, nobody has to go.
    session.drop("c1")
    session.snapshot("ahead")
    assert session.last_evicted == []
    checks.settle(session)
    assert session.store.get("ahead").segment.bytes.equal(session.arena.fixed)


def test_a_boundary_is_in_the_ring_after_the_step_that_failed(device: str) -> None:
    session = PolicySession(ToyRecurrent(), device, rollback_depth=2)
    for index in range(5):
        session.step(observations(index))
    digest, ids = session.state_digest(), session._ring.ids()
    plan = session._engine._act
    replay = plan.replay

    def failing() -> None:
        replay()
        raise RuntimeError("the device is lost")

    plan.replay = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="lost"):
        session.step(observations(5))
    plan.replay = replay  # type: ignore[method-assign]
    with pytest.raises(InternalError, match="a step failed: the device is lost"):
        session.snapshot("torn")
    assert session._ring.ids()[:-1] == ids[1:]  # one more, and the oldest went
    newest = session._ring.boundaries()[-1]
    assert newest.host.step == 5
    session.restore(newest)
    assert session.state_digest() == digest


def test_a_failed_copy_gives_its_slot_back(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = PolicySession(ToyRecurrent(), device, rollback_depth=2)
    session.step(observations(0))
    session.snapshot("one")
    before = held(session)

    def broken(self: Device, dst: torch.Tensor, src: torch.Tensor) -> None:
        raise RuntimeError("no copy today")

    with monkeypatch.context() as patch:
        patch.setattr(type(session.device), "copy_", broken)
        with pytest.raises(RuntimeError, match="no copy today"):
            session.snapshot("two")
        with pytest.raises(RuntimeError, match="no copy today"):
            session.step(observations(1))
    session.restore("one")
    assert session.store.pool.free == before[1]


def test_the_ring_is_never_deeper_than_it_may_be(device: str) -> None:
    session = PolicySession(ToyRecurrent(), device, rollback_depth=3)
    for index in range(10):
        session.step(observations(index))
        assert len(session._ring.ids()) == min(index + 1, 3)
    free = session.store.pool.free
    session.step(observations(10))
    assert session.store.pool.free == free


def test_a_copied_host_record_has_every_field() -> None:
    values = {f.name: index + 1 for index, f in enumerate(dataclasses.fields(HostRecord))}
    record = HostRecord(**{**values, "task": "pour"})  # type: ignore[arg-type]
    copied = copy.copy(record)
    assert copied == record
    assert copied is not record
