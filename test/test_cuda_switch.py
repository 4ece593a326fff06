"""Captured graphs follow their addresses to other physical memory, whatever nodes they have.

That is what previews on a GPU rest on, and it is nowhere promised for each kind of node. Nor may
an exchange disturb what other streams do, leave an address without memory after a failure (any
access would then spoil the context of the whole process), or lose memory.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from preview_rig import KINDS, branched, everything
from torch import nn
from torch.nn import attention, functional
from toy_policies import ToyRecurrent, observations

from flashrt_ros.bench.neighbour import Neighbour
from flashrt_ros.errors import FlashRTError, InternalError, NoMemoryError
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.device import LIVE, Device, Lane, StateMemory, mapped_state, open_device
from flashrt_ros.runtime.session import PolicySession

pytestmark = pytest.mark.cuda
MIB = 1 << 20
HALF = 4 * MIB
Body = Callable[[], None]
Make = Callable[[torch.Tensor, torch.Tensor], Body]


def memcpy(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice

    def body() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        to, fro = out_N.data_ptr(), seen_N.data_ptr()
        assert int(runtime.cudaMemcpyAsync(to, fro, HALF, kind, stream)[0]) == 0

    return body


def memcpy_by_the_host(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
    host_N = torch.zeros(HALF, dtype=torch.uint8, pin_memory=True)

    def body() -> None:
        host_N.copy_(seen_N, non_blocking=True)
        out_N.copy_(host_N, non_blocking=True)

    return body


def memset(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
    runtime = pytest.importorskip("cuda.bindings.runtime")

    def body() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        at = out_N.data_ptr() + HALF // 2
        assert int(runtime.cudaMemsetAsync(at, 7, HALF // 2, stream)[0]) == 0

    return body


def elementwise(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
    seen, out = seen_N.view(torch.float32), out_N.view(torch.float32)

    def body() -> None:
        out.copy_(seen).mul_(3.0).add_(1.0)

    return body


def triton(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
    assert noise.triton_found()
    state = {noise.KEY: seen_N[:8].view(torch.int64), noise.COUNTER: seen_N[256:264]}
    state[noise.COUNTER] = state[noise.COUNTER].view(torch.int64)
    return lambda: noise.normal_(out_N.view(torch.float32), state)


def matmul(dtype: torch.dtype) -> Make:
    def make(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
        size = 512
        seen = seen_N.view(dtype)
        one, other = seen[: size * size], seen[size * size : 2 * size * size]
        out = out_N.view(dtype)[: size * size].view(size, size)

        def body() -> None:
            torch.mm(one.view(size, size), other.view(size, size), out=out)

        return body

    return make


def convolution(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
    assert torch.backends.cudnn.is_available()
    seen = seen_N.view(torch.float32)
    image, weight = seen[: 3 * 224 * 224].view(1, 3, 224, 224), seen[-32 * 27 :].view(32, 3, 3, 3)
    out = out_N.view(torch.float32)

    def body() -> None:
        found = functional.conv2d(image, weight, stride=2, padding=1)
        out[: found.numel()].copy_(found.view(-1))

    return body


def recurrent(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
    torch.manual_seed(1)
    net = nn.GRU(64, 64).cuda()
    seen, out = seen_N.view(torch.float32), out_N.view(torch.float32)

    def body() -> None:
        found, _ = net(seen[: 16 * 64].view(16, 1, 64), seen[4096:4160].view(1, 1, 64))
        out[: found.numel()].copy_(found.view(-1))

    return body


def attends(backend: attention.SDPBackend) -> Make:
    def make(seen_N: torch.Tensor, out_N: torch.Tensor) -> Body:
        seen = seen_N.view(torch.bfloat16)
        q, k, v = seen[: 3 * 8 * 256 * 64].view(3, 1, 8, 256, 64).unbind(0)
        out = out_N.view(torch.bfloat16)

        def body() -> None:
            with attention.sdpa_kernel(backend):
                found = functional.scaled_dot_product_attention(q, k, v)
            out[: found.numel()].copy_(found.reshape(-1))

        return body

    return make


NODES: dict[str, Make] = {
    "memcpy": memcpy,
    "memcpy by the host": memcpy_by_the_host,
    "memset": memset,
    "elementwise": elementwise,
    "triton": triton,
    "cublas float32": matmul(torch.float32),
    "cublas bfloat16": matmul(torch.bfloat16),
    "cudnn convolution": convolution,
    "cudnn gru": recurrent,
    "attention math": attends(attention.SDPBackend.MATH),
    "attention efficient": attends(attention.SDPBackend.EFFICIENT_ATTENTION),
    "attention flash": attends(attention.SDPBackend.FLASH_ATTENTION),
    "attention cudnn": attends(attention.SDPBackend.CUDNN_ATTENTION),
}


@pytest.fixture(name="device")
def _device() -> Device:
    return open_device("cuda")


def randomise(section_N: torch.Tensor, seed: int) -> None:
    """Numbers of a moderate size in bfloat16 and float32 alike."""
    generator = torch.Generator("cuda").manual_seed(seed)
    numbers = torch.randn(section_N.numel() // 2, generator=generator, device="cuda")
    section_N.view(torch.bfloat16).copy_(numbers)
    torch.cuda.synchronize()


@torch.no_grad()
@pytest.mark.parametrize("node", NODES)
def test_a_captured_graph_follows_its_addresses(node: str, device: Device) -> None:
    state = device.allocate_state(2 * HALF, 0, 3)
    assert "mapping" in state.words
    body = NODES[node](state.fixed[:HALF], state.fixed[HALF:])
    for number, each in enumerate((state, *state.sets)):
        randomise(each.fixed, number)
    first = [each.fixed.clone() for each in (state, *state.sets)]
    torch.cuda.synchronize()
    with device.bind(Lane.CONTROL):
        replay = device.compile(body, 2, lambda: None)
        # What the graph makes of each state, at home: the states go in and out by copies.
        expected = []
        for content in (first[1], first[2], first[3], first[0]):
            device.copy_(state.fixed, content)
            replay()
            device.synchronize()
            expected.append(state.fixed.clone())
            device.synchronize()
        assert not torch.equal(expected[3], first[0])  # it does something
        device.copy_(state.fixed, first[0])
        for number in (0, 1, 2, 1):
            device.copy_(state.sets[number].fixed, first[number + 1])
            state.place(number, 0, 0)
            replay()
            device.synchronize()
            assert torch.equal(state.fixed, expected[number])
            device.synchronize()
        state.place_live()
        device.synchronize()
        assert torch.equal(state.fixed, first[0])  # never touched
        assert torch.equal(state.sets[1].fixed, expected[1])  # kept what was done to it
        # The control: without an exchange the same graph gives something else.
        replay()
        device.synchronize()
        assert torch.equal(state.fixed, expected[3])
        assert not any(torch.equal(state.fixed, other) for other in expected[:3])
    del replay
    state.close()


@pytest.fixture(name="pieces")
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_state, "ROW_PIECE_BYTES", 4 * MIB)
    monkeypatch.setattr(mapped_state, "LEAST_ROW_PIECES", 2)


class Failing:
    """Lets calls of the driver fail: the real ones are not made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from flashrt_ros.runtime.device.virtual_memory import CudaVirtualMemory

        self.left: dict[str, int] = {}
        call = CudaVirtualMemory._call

        def sometimes(memory: Any, name: str, *arguments: Any) -> Any:
            if name in self.left:
                self.left[name] -= 1
                if not self.left[name]:
                    del self.left[name]
                    raise InternalError(f"{name} fails as told")
            return call(memory, name, *arguments)

        monkeypatch.setattr(CudaVirtualMemory, "_call", sometimes)


@pytest.mark.usefixtures("pieces")
def test_random_exchanges_with_failures(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(monkeypatch)
    rows = 18 * MIB + 512
    state = device.allocate_state(4096, rows, 2)
    assert "5 pieces" in state.words
    with device.bind(Lane.CONTROL):
        for number, each in ((LIVE, state), *enumerate(state.sets)):
            each.fixed.fill_(10 + number)
            each.rows.fill_(20 + number)
        choose, failures = random.Random(1), 0
        for _ in range(300):
            kept = state.kept(choose.randrange(rows))
            used, number = choose.randrange(kept, rows + 1), choose.randrange(2)
            if choose.random() < 0.4:
                call = choose.choice(("cuMemUnmap", "cuMemMap", "cuMemSetAccess"))
                failing.left[call] = choose.randrange(1, 5)
            try:
                state.place(number, kept, used)
                assert bool((state.fixed == 10 + number).all())
                assert bool((state.rows[:kept] == 19).all())
                assert bool((state.rows[kept:used] == 20 + number).all())
                if choose.random() < 0.5:
                    state.place_live()
            except FlashRTError:
                failures += 1
            failing.left.clear()
            if state.lost:
                state.place_live()
            if not state.away:
                assert bool((state.fixed == 9).all())
                assert bool((state.rows == 19).all())
        assert failures > 20
    state.close()


@pytest.mark.usefixtures("pieces")
def test_a_failing_start_keeps_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(monkeypatch)
    device.allocate_state(4096, 18 * MIB, 1).close()
    before = free_bytes()
    for call, most in (("cuMemCreate", 8), ("cuMemMap", 8), ("cuMemSetAccess", 2)):
        for at in range(1, most + 1):
            failing.left[call] = at
            state = device.allocate_state(4096, 18 * MIB, 1)
            # It goes on with copies, and says why.
            assert "by copies" in state.words
            assert f"{call} fails as told" in state.words
            state.close()
            del state
            assert free_bytes() == before, (call, at)
            device._unmappable = ""  # type: ignore[attr-defined]


def test_more_than_there_is_is_refused_with_figures(device: Device) -> None:
    before = free_bytes()
    total_bytes = torch.cuda.mem_get_info()[1]
    with pytest.raises(NoMemoryError, match=rf"could not allocate \d+ .* of {total_bytes} bytes"):
        device.allocate_state(total_bytes // 4 // MIB * MIB, 0, 7)
    assert free_bytes() == before
    assert float(torch.ones(4, device="cuda").sum()) == 4.0


def test_where_the_driver_lacks_the_calls_copies_do_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flashrt_ros.runtime.device.cuda import CudaDevice

    for kind in KINDS:
        mapped, see = branched(kind, "cuda")
        with monkeypatch.context() as patch:
            patch.setattr(CudaDevice, "_virtual_memory", lambda self: None)
            copied, _ = branched(kind, "cuda")
        assert "mapping" in mapped.arena.memory.words
        assert "copies" in copied.arena.memory.words
        assert mapped.exec_id == copied.exec_id
        before = everything(copied)
        pairs = zip(
            mapped.preview(["a", "b", "later"], see(3)),
            copied.preview(["a", "b", "later"], see(3)),
            strict=True,
        )
        for one, other in pairs:
            assert torch.equal(one.actions_HA, other.actions_HA)
        assert everything(copied) == before
        mapped.close()
        copied.close()


def free_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # one a stream, of which torch has 32
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.usefixtures("pieces")
def test_ten_thousand_exchanges_leak_nothing(device: Device) -> None:
    state = device.allocate_state(4096, 9 * MIB, 2)
    begun = 0, 0
    with device.bind(Lane.CONTROL):
        for turn in range(10_000):
            if turn == 20:
                begun = free_bytes(), handles()
            state.place(turn % 2, state.kept((turn % 9) * MIB), 9 * MIB)
            if turn % 3 == 0:
                state.place_live()
    assert (free_bytes(), handles()) == begun
    state.close()


def odd_ways(session: PolicySession, turn: int) -> Iterator[Any]:
    """Ends a session in one of several orders; what is yielded is held until the next turn."""
    session.step(observations(turn))
    session.snapshot("a")
    session.preview(["a"], observations(turn))
    held = (session.arena.fixed[3:], session.arena.memory.sets[0].fixed)
    if turn % 5 == 0:
        session.close()
    elif turn % 5 == 1:
        yield held  # the tensors outlive a closed session
        session.close()
    elif turn % 5 == 2:
        del held  # nobody closes it
    elif turn % 5 == 3:
        thread = threading.Thread(target=session.close)
        thread.start()
        thread.join()
        yield held
    else:
        yield session.arena.state  # held, and never closed


def test_two_hundred_sessions_leak_nothing() -> None:
    begun, held = (0, 0), []
    for turn in range(200):
        kept = list(odd_ways(PolicySession(ToyRecurrent(), device="cuda"), turn))
        for each in held:
            for tensor in each.values() if hasattr(each, "values") else each:
                tensor.cpu()  # still there
        held = kept
        del kept
        if turn % 20 == 19:
            held = []
            found = free_bytes(), handles()
            begun = begun if turn > 19 else found
            print(f"after {turn + 1} sessions: {found[0]} bytes free, {found[1]} open files")
    assert found == begun


def test_another_policy_notices_little(device: Device) -> None:
    """Its actions are what they are without; how long its steps took is printed."""
    session = PolicySession(ToyRecurrent(), device="cuda")
    alone = Neighbour(lambda step: session.step(observations(step)))
    time.sleep(0.5)
    alone.end()
    session.reset_(seed=0)
    state = device.allocate_state(256 * MIB, 0, 2)
    took_us: list[float] = []
    beside = Neighbour(lambda step: session.step(observations(step)))
    with device.bind(Lane.CONTROL):
        for turn in range(300):
            begun_ns = time.perf_counter_ns()
            state.place(turn % 2, 0, 0)
            took_us.append((time.perf_counter_ns() - begun_ns) / 1e3)
            time.sleep(0.002)
    beside.end()
    assert len(alone.actions) > 100
    assert len(beside.actions) > 100
    common = min(len(alone.actions), len(beside.actions))
    session.reset_(seed=0)
    fresh = [session.step(observations(step)).values for step in range(common)]
    assert torch.equal(torch.stack(beside.actions[:common]), torch.stack(fresh))
    for name, times in (
        ("step alone", alone.step_us),
        ("step beside exchanges", beside.step_us),
        ("exchange of 256 MiB beside it", took_us),
    ):
        times = sorted(times)
        p99 = times[len(times) * 99 // 100]
        middle = statistics.median(times)
        print(f"{name}: p50 {middle:.0f} us, p99 {p99:.0f} us, most {times[-1]:.0f} us")
    state.close()
    session.close()


@pytest.mark.parametrize("size_mib", [4, 256, 1024])
def test_time_of_an_exchange_is_printed(size_mib: int, device: Device) -> None:
    layouts: dict[str, tuple[int, int]] = {"fixed": (size_mib * MIB, 0)}
    if size_mib > 4:
        layouts["64 MiB fixed, the rest rows"] = (64 * MIB, (size_mib - 64) * MIB)
    for name, (fixed, rows) in layouts.items():
        state: StateMemory = device.allocate_state(fixed, rows, 2)
        took_us = []
        with device.bind(Lane.CONTROL):
            for turn in range(200):
                device.synchronize()
                begun_ns = time.perf_counter_ns()
                state.place(turn % 2, 0, rows)
                took_us.append((time.perf_counter_ns() - begun_ns) / 1e3)
        took_us.sort()
        print(f"{size_mib} MiB, {name}: p50 {took_us[100]:.0f} us, p99 {took_us[198]:.0f} us")
        assert (state.fixed[0] == state.sets[1].fixed[0]).all()
        state.close()
