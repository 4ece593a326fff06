"""The session on an NVIDIA GPU: the same promises as on CPU, and those that only CUDA can break.

No device memory is taken after construction, a captured plan does what the plain call does, the
noise integers are those of the CPU, and planner and control thread work at the same time.
"""

from __future__ import annotations

import statistics
import time

import pytest
import session_checks as checks
import torch
from toy_policies import ToyChunk, ToyRecurrent, observations

from flashrt_ros.runtime import noise, philox
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.device import Lane, open_device
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.policy import Buffers, Policy, Port, Ports
from flashrt_ros.runtime.session import PolicySession

pytestmark = pytest.mark.cuda
every_policy = pytest.mark.parametrize("make", checks.POLICIES)


@every_policy
def test_restore_is_exact_at_random_cut_points(make: checks.MakePolicy) -> None:
    checks.check_restore_is_exact(make, "cuda", cut_points=100, steps=200, seed=1)


@every_policy
def test_controls_differ(make: checks.MakePolicy) -> None:
    checks.check_controls_differ(make, "cuda")


@every_policy
def test_forks_are_independent(make: checks.MakePolicy) -> None:
    checks.check_forks_are_independent(make, "cuda")


@every_policy
def test_rollback(make: checks.MakePolicy) -> None:
    checks.check_rollback(make, "cuda")


@every_policy
def test_seed_and_reset(make: checks.MakePolicy) -> None:
    checks.check_seed_and_reset(make, "cuda")


@every_policy
def test_verbs_and_steps_take_no_device_memory(make: checks.MakePolicy) -> None:
    session = PolicySession(make(), device="cuda", rollback_depth=8)
    for step in range(12):
        session.step(observations(step))
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    for round_ in range(5):
        for step in range(12):
            session.step(observations(step))
        session.snapshot("a", replace=True)
        session.fork("a", count=2)
        session.fork(None, count=2)
        session.restore("a", seed=round_)
        session.step(observations(1))
        session.rollback(1)
        session.rollback()
        session.state_digest()
        session.reset_()
    after = torch.cuda.memory_stats()
    for counter in ("allocation.all.allocated", "segment.all.allocated"):
        assert after[counter] == before[counter], counter
    session.close()


def test_close_frees_the_device_memory() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    session = PolicySession(ToyChunk(), device="cuda", store_bytes=512 << 20)
    session.step(observations(0))
    assert torch.cuda.memory_allocated() >= before + (512 << 20)
    session.close()
    # The weights stay with the policy, and cuBLAS keeps tens of MiB for each stream.
    assert torch.cuda.memory_allocated() < before + (256 << 20)


@every_policy
def test_captured_plan_equals_plain_call(make: checks.MakePolicy) -> None:
    captured = PolicySession(make(), device="cuda", seed=4)
    plain = PolicySession(make(), device="cuda", seed=4)
    policy = plain.policy
    state, inputs, outputs = plain.arena.state, plain.arena.inputs, plain.arena.outputs
    for step in range(20):
        expected = captured.step(observations(step)).values
        with plain.device.bind(Lane.CONTROL), torch.no_grad():
            for port in policy.ports().observations:
                value = observations(step).get(port.key)
                inputs[port.buffer].copy_(torch.tensor(value or [0.0] * port.shape[0]))
            if policy.plan_kind.value != "none" and step % policy.n_action_steps == 0:
                policy.plan(state, inputs, outputs)
                policy.adopt(state, inputs, outputs)
            policy.act(state, inputs, outputs)
            plain.device.synchronize()
        assert torch.equal(outputs["action_out"].cpu(), expected), f"step {step}"
        assert plain.state_bytes() == captured.state_bytes(), f"step {step}"
    captured.close()
    plain.close()


@pytest.mark.parametrize("key", [0, 1, 0xDEADBEEF12345678, 2**64 - 1])
@pytest.mark.parametrize("counter", [0, 1, 2**32 - 2, 2**40])
@pytest.mark.parametrize("numel", [1, 3, 4, 1023, 4096, 5001])
def test_noise_is_that_of_the_cpu(key: int, counter: int, numel: int) -> None:
    states = {}
    for device in ("cpu", "cuda"):
        states[device] = {
            noise.KEY: torch.tensor([noise.as_signed(key)], device=device),
            noise.COUNTER: torch.tensor([counter], device=device),
        }
    for offset in (0, 7):
        for draw_, dtype in (
            (noise.words_, torch.int32),
            (noise.uniform_, torch.float32),
            (noise.normal_, torch.float32),
        ):
            drawn = {}
            for device, state in states.items():
                out = torch.zeros(numel, dtype=dtype, device=device)
                draw_(out, state, offset=offset, advance=True)
                drawn[device] = out.cpu()
            if draw_ is noise.normal_:
                torch.testing.assert_close(drawn["cuda"], drawn["cpu"], rtol=1e-4, atol=1e-3)
                assert torch.isfinite(drawn["cuda"]).all()
            else:
                assert torch.equal(drawn["cuda"], drawn["cpu"])
    assert states["cuda"][noise.COUNTER].item() == states["cpu"][noise.COUNTER].item() > counter


def test_cpu_and_cuda_agree_within_tolerance() -> None:
    sessions = [PolicySession(ToyRecurrent(), device=d, seed=9) for d in ("cpu", "cuda")]
    for step in range(50):
        cpu, cuda = (session.step(observations(step)).values for session in sessions)
        torch.testing.assert_close(cuda, cpu, rtol=1e-3, atol=1e-4)
    assert sessions[0].state_id == sessions[1].state_id
    assert sessions[0].exec_id != sessions[1].exec_id


def test_eager_noise_can_be_captured_and_is_the_same() -> None:
    """Where Triton is missing, eager kernels draw: in a captured graph, the same integers."""
    key = torch.tensor([noise.as_signed(2**63 + 5)], device="cuda")
    counter = torch.tensor([2**32 - 3], device="cuda")
    out = torch.zeros(4000, dtype=torch.int32, device="cuda")

    def draw() -> None:
        out.copy_(philox.draw_torch(counter, key, out.numel(), "words"))

    device = open_device("cuda")
    plan = GraphPlan("plan", draw, device)
    plan.prepare()
    out.zero_()
    torch.cuda.synchronize()
    with device.bind(Lane.CONTROL):
        plan.replay()
        device.synchronize()
    expected = torch.zeros(4000, dtype=torch.int32)
    noise.words_(expected, {noise.KEY: key.cpu(), noise.COUNTER: counter.cpu()})
    assert torch.equal(out.cpu(), expected)


def test_plans_run_beside_steps() -> None:
    checks.check_plans_run_beside_steps("cuda")


def test_a_plan_depends_on_its_boundary_alone() -> None:
    checks.check_plan_depends_on_its_boundary_alone("cuda")


class Block(Policy):
    """A state of a given size that every step changes at one place only."""

    family = "block"

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def config(self) -> dict[str, object]:
        return {"size_bytes": self.size_bytes}

    def module(self) -> torch.nn.Module:
        return torch.nn.Identity()

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("block", (self.size_bytes // 4,), torch.float32, Role.STATE),
            BufferSpec("seen", (4,), torch.float32, Role.INPUT),
            BufferSpec("out", (4,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        return Ports((Port("observation.state", "seen", (4,)),), Port("action", "out", (4,)))

    def reset_(self, state: Buffers) -> None:
        state["block"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["block"][:4].add_(inputs["seen"])
        outputs["out"].copy_(state["block"][:4])


@pytest.mark.parametrize("mebibytes", [64, 256])
def test_copy_times_beside_a_plain_memcpy(mebibytes: int) -> None:
    """Prints them; the benchmark asserts, not the test. Both bytes and lanes are the same."""
    size_bytes = mebibytes << 20
    session = PolicySession(
        Block(size_bytes), device="cuda", rollback_depth=0, store_bytes=3 * (size_bytes + 4096)
    )
    weight = session.layout.fixed_bytes
    left = torch.zeros(weight, dtype=torch.uint8, device="cuda")
    right = torch.zeros(weight, dtype=torch.uint8, device="cuda")
    session.snapshot("a")

    def plain() -> None:
        with session.device.bind(Lane.CONTROL):
            left.copy_(right, non_blocking=True)

    timed = {
        "memcpy": plain,
        "snapshot": lambda: session.snapshot("b", replace=True),
        "restore": lambda: session.restore("a"),
    }
    times_us: dict[str, list[float]] = {name: [] for name in timed}
    with session.device.bind(Lane.CONTROL):
        for _ in range(60):
            for name, call in timed.items():
                session.device.synchronize()
                start_ns = time.perf_counter_ns()
                call()
                session.device.synchronize()
                times_us[name].append((time.perf_counter_ns() - start_ns) / 1000)
    medians = {name: statistics.median(values[10:]) for name, values in times_us.items()}
    print()
    for name, median_us in medians.items():
        ratio = median_us / medians["memcpy"]
        print(f"{mebibytes} MiB {name}: {median_us:.1f} us, {ratio:.3f} of memcpy")
    session.restore("a")
    assert session.state_bytes() == bytes(weight)
    session.close()


def test_step_times() -> None:
    """Prints the host time of a replay and of a whole step."""
    session = PolicySession(ToyRecurrent(), device="cuda")
    seen = {k: torch.tensor(v).numpy() for k, v in observations(0).items()}
    replay_us, step_us = [], []
    for _ in range(300):
        with session.device.bind(Lane.CONTROL):
            session.device.synchronize()
            start_ns = time.perf_counter_ns()
            session._engine._act.replay()
            replay_us.append((time.perf_counter_ns() - start_ns) / 1000)
            session.device.synchronize()
        start_ns = time.perf_counter_ns()
        session.step(seen)
        step_us.append((time.perf_counter_ns() - start_ns) / 1000)
    print(f"\nGRU replay {statistics.median(replay_us[50:]):.1f} us of host time,")
    print(f"whole step {statistics.median(step_us[50:]):.1f} us with transfers and boundary")
    session.close()
