"""The memory forecast is what a session really takes, and a refusal names figures that work.

A store that is too large for the machine must be refused with figures before anything is taken:
on a CPU the system hands out memory that is not there and ends the process later, on a robot; on a
GPU the allocation would fail half-way. A forecast that forgets a buffer is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chunk_predictors import Looking
from hypothesis import given
from hypothesis import strategies as st
from paged_memory import paged
from toy_policies import ToyAdvancing, ToyChunk, ToyRecurrent

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.hardware.memory import Memory, available_bytes, in_words
from flashrt_ros.policies.attention import AttentionPolicy
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.ros.trial import Trial
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.device.cpu import CpuDevice
from flashrt_ros.runtime.device.cuda import CudaDevice
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.forecast import Forecast, Item, make_forecast
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.runtime.store import MAX_CAPSULES

GIB = 1 << 30


class Ledger:
    """Counts what every CPU device hands out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[int] = []
        allocate = CpuDevice.allocate

        def counted(device: CpuDevice, size_bytes: int) -> torch.Tensor:
            self.taken.append(size_bytes)
            return allocate(device, size_bytes)

        monkeypatch.setattr(CpuDevice, "allocate", counted)


def forecast(
    memory: Memory, pool: int = 10, rest: int = 5, depth: int = 4, host: int = 0
) -> Forecast:
    """A forecast in round numbers: a capsule weighs 100 bytes."""
    items = (
        Item("weights", 7, present=True),
        Item("state", rest),
        Item("pool", pool * 100, f"{pool} slots"),
        Item("mirrors", host, host=True),
    )
    return Forecast("toy", "cuda:0", memory, items, 100, pool * 100, depth)


def free(size_bytes: int | None, shared: bool = False) -> Memory:
    return Memory(size_bytes, size_bytes, shared)


def looking() -> Policy:
    """Its acts read observations, so that its plans need inputs of their own."""
    return ChunkedPolicy(Looking())


@pytest.mark.parametrize("make", [ToyRecurrent, ToyChunk, ToyAdvancing, looking])
@pytest.mark.parametrize("store_bytes", [1 << 16, 100_001])
def test_forecast_is_what_the_session_takes(
    make: Callable[[], Policy], store_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(monkeypatch)
    session = PolicySession(make(), store_bytes=store_bytes, rollback_depth=3, spare_states=1)
    Trial(session)  # as the node does
    assert sum(ledger.taken) == session.forecast.needed_bytes
    assert session.forecast.slots == session.store.pool.slots
    session.close()
    # The control: without the node's copy the sums differ.
    other = PolicySession(make(), store_bytes=store_bytes, rollback_depth=3)
    assert other.forecast.needed_bytes < session.forecast.needed_bytes


@pytest.mark.parametrize("sets", [0, 1, 3])
def test_spare_states_are_counted(sets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(monkeypatch)
    policy = AttentionPolicy(capacity=50)
    session = PolicySession(policy, store_bytes=1 << 17, rollback_depth=3, preview_sets=sets)
    taken = sum(ledger.taken)
    ledger.taken.clear()
    without = PolicySession(policy, store_bytes=1 << 17, rollback_depth=3, preview_sets=0)
    more_bytes = session.forecast.needed_bytes - without.forecast.needed_bytes
    assert taken - sum(ledger.taken) == more_bytes
    without.close()
    # Copies park the live state meanwhile, so they need one more.
    state_bytes = session.layout.fixed_bytes + 50 * session.layout.row_bytes
    found = {item.name: item.size_bytes for item in session.forecast.items}
    assert found.get("preview", 0) == (sets + bool(sets)) * state_bytes
    session.close()
    with paged() as memory:
        mapped = PolicySession(policy, store_bytes=1 << 17, rollback_depth=3, preview_sets=sets)
        found = {item.name: item.size_bytes for item in mapped.forecast.items}
        pieces_bytes = sum(memory._handles.values())
        assert found.get("preview", 0) == (pieces_bytes - state_bytes if sets else 0)
        mapped.close()
    few = replace(session.forecast, memory=free(100))
    with pytest.raises(NoMemoryError) as caught:
        few.check()
    assert ("; preview_sets 0 takes " in str(caught.value)) == bool(sets)


def test_named_snapshots_fit_beside_a_full_ring() -> None:
    session = PolicySession(ToyRecurrent(), store_bytes=1 << 14, rollback_depth=5)
    fit = session.forecast.named_snapshots
    assert 0 < fit == session.forecast.slots - 5
    for _ in range(5):
        session.step({"observation.state": [0.0] * 4})
    boundaries = [c.id for c in session.store.list() if c.automatic]
    for index in range(fit):
        session.snapshot(f"s{index}")
        session.fork(f"s{index}", count=2)
    assert [c.id for c in session.store.list() if c.automatic] == boundaries
    assert len(boundaries) == 5
    session.snapshot("one-more")  # the control: this one takes a boundary's place
    assert [c.id for c in session.store.list() if c.automatic] != boundaries


def test_the_number_of_names_is_bounded() -> None:
    assert forecast(free(None), pool=100_000).named_snapshots == MAX_CAPSULES


def test_weights_count_where_they_are_not_yet() -> None:
    policy = ToyRecurrent()
    sizes = [p.numel() * p.element_size() for p in policy.module().parameters()]
    device = open_device("cpu")
    layout = complete_layout(policy)
    here = make_forecast(policy, layout, device, 1 << 16, 3)
    device.torch_device = torch.device("meta")
    elsewhere = make_forecast(policy, layout, device, 1 << 16, 3)
    assert elsewhere.needed_bytes - here.needed_bytes == sum(sizes)


def test_refusal_comes_before_anything_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(monkeypatch)
    moved: list[object] = []
    policy = ToyRecurrent()
    monkeypatch.setattr(policy.net, "to", lambda device: moved.append(device) or policy.net)
    with pytest.raises(NoMemoryError) as caught:
        PolicySession(policy, store_bytes=1 << 50)
    assert (ledger.taken, moved) == ([], [])
    words = str(caught.value)
    for expected in ("'toy_recurrent' does not fit", "1024.0 TiB needed", " free", "pool 1024.0"):
        assert expected in words
    lower = re.search(rf"lower store_bytes from {1 << 50} to at most (\d+), or free", words)
    assert lower is not None
    # The figure is one that is let through.
    layout = complete_layout(policy)
    make_forecast(policy, layout, open_device("cpu"), int(lower[1]) // 2, 64).check()
    PolicySession(policy, store_bytes=1 << 20)
    assert ledger.taken
    assert moved


def test_a_store_without_room_for_the_ring_says_both_ways_out() -> None:
    with pytest.raises(NoMemoryError, match=r"at least 500 .* found 450; raise .* to at most 3"):
        replace(forecast(free(10_000)), store_bytes=450).check()
    with pytest.raises(NoMemoryError, match=r"found 99; raise store_bytes$"):
        replace(forecast(free(10_000)), store_bytes=99).check()


def test_the_last_byte_decides() -> None:
    forecast(free(1005)).check()
    with pytest.raises(NoMemoryError):
        forecast(free(1004)).check()
    assert forecast(free(1005)).tight
    assert not forecast(free(2000)).tight


def test_unknown_memory_refuses_nothing() -> None:
    unknown = forecast(free(None), pool=10**12)
    unknown.check()
    assert "free memory unknown" in unknown.line()
    assert not unknown.tight


def test_integrated_gpu_has_one_memory_and_says_so() -> None:
    own, one = forecast(free(1100), host=100), forecast(free(1100, shared=True), host=100)
    own.check()
    assert one.needed_bytes - own.needed_bytes == 100
    with pytest.raises(NoMemoryError, match="device and host share one memory"):
        one.check()
    assert "share" not in own.line()


@given(
    free_bytes=st.integers(0, 5000),
    pool=st.integers(1, 200),
    rest=st.integers(0, 3000),
    data=st.data(),
)
def test_what_a_refusal_proposes_fits(
    free_bytes: int, pool: int, rest: int, data: st.DataObject
) -> None:
    depth = data.draw(st.integers(0, pool - 1))
    asked = forecast(free(free_bytes), pool, rest, depth)
    try:
        asked.check()
    except NoMemoryError as error:
        words = str(error)
    else:
        assert asked.needed_bytes <= free_bytes
        return
    store = re.search(r"store_bytes from \d+ to (?:at most )?(\d+)", words)
    lower = re.search(r"rollback_depth from \d+ to at most (\d+)", words)
    if store is None:
        assert "without any rollback it still takes" in words
        assert rest + 100 > 0.9 * free_bytes
        return
    depth = int(lower[1]) if lower else depth
    forecast(free(free_bytes), int(store[1]) // 100, rest, depth).check()


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (64 << 20, "64.0 MiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes_in_words(size_bytes: int, words: str) -> None:
    assert in_words(size_bytes) == words


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4096 kB\n"}
V2 = {"proc/self/cgroup": "0::/robot/node\n"}
STAT = "anon 5\ninactive_file 512\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MEMINFO, 4096 * 1024),
        ({**MEMINFO, **V2, "sys/fs/cgroup/robot/node/memory.max": "max\n"}, 4096 * 1024),
        (
            {
                **MEMINFO,
                **V2,
                "sys/fs/cgroup/robot/memory.max": "10000\n",
                "sys/fs/cgroup/robot/memory.current": "4000\n",
                "sys/fs/cgroup/robot/memory.stat": STAT,
            },
            6512,  # a limit further up counts as well
        ),
        (
            {
                **MEMINFO,
                **V2,
                "sys/fs/cgroup/memory.max": "5000\n",
                "sys/fs/cgroup/memory.current": "6000\n",
            },
            0,  # in a container its group is at the top
        ),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "9:cpu:/x\n4:memory:/x\n0::/\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "8000\n",
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "3000\n",
                "sys/fs/cgroup/memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 9\n",
            },
            5009,
        ),
    ],
    ids=["unknown", "no groups", "no limit", "limit above", "container", "version 1"],
)
def test_memory_of_the_host(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert available_bytes(write(tmp_path, files)) == expected


def test_memory_of_this_host_is_known() -> None:
    memory = open_device("cpu").memory()
    assert memory.free_bytes is not None
    assert memory.shared


def gpu(monkeypatch: pytest.MonkeyPatch, integrated: bool = False) -> CudaDevice:
    """A GPU that need not be there: 1000 bytes free, of 300 given back 100 to torch alone."""
    figures = {"mem_get_info": (1000, 4000), "memory_reserved": 300, "memory_allocated": 200}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, figure=figure: figure)
    monkeypatch.setattr("flashrt_ros.runtime.device.cuda.available_bytes", lambda: 7000)
    device = object.__new__(CudaDevice)
    device.name, device.torch_device = "cuda:0", torch.device("cuda", 0)
    device.integrated = integrated
    return device


def test_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu(monkeypatch).memory() == Memory(1100, 7000, shared=False)
    assert gpu(monkeypatch, integrated=True).memory() == Memory(7000, 7000, shared=True)
    # A system that does not say what is available: then what the driver says.
    thor = gpu(monkeypatch, integrated=True)
    monkeypatch.setattr("flashrt_ros.runtime.device.cuda.available_bytes", lambda: None)
    assert thor.memory() == Memory(1100, None, shared=True)


@pytest.mark.parametrize("integrated", [False, True])
def test_forecast_of_a_gpu(integrated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ToyRecurrent()
    layout = complete_layout(policy)
    found = make_forecast(policy, layout, gpu(monkeypatch, integrated), 1 << 16, 3)
    sizes = {item.name: item.size_bytes for item in found.items}
    assert sizes["weights"] > 0
    assert not any(item.present for item in found.items)
    assert sizes["workspaces"] == CudaDevice.workspace_bytes > 0
    assert sizes["mirrors"] == layout.input_bytes + 3 * 4
    # Mirrors and staging lie in the host's memory, which is the device's own where they are one.
    host_bytes = 0 if integrated else sizes["mirrors"] + sizes["staging"]
    assert found.needed_bytes == sum(sizes.values()) - host_bytes
    with pytest.raises(NoMemoryError, match="without any rollback it still takes"):
        found.check()


@pytest.mark.cuda
def test_memory_of_a_gpu_comes_back() -> None:
    """A second session after the first: torch keeps the memory, and the forecast knows it."""
    memory = open_device("cuda").memory()
    assert memory.free_bytes is not None
    size_bytes = memory.free_bytes // 2
    for _ in range(3):
        session = PolicySession(ToyRecurrent(), device="cuda", store_bytes=size_bytes)
        session.close()
    with pytest.raises(NoMemoryError, match="lower store_bytes"):
        PolicySession(ToyRecurrent(), device="cuda", store_bytes=memory.free_bytes + GIB)
