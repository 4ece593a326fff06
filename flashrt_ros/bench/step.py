"""Host and wall time of one control step: captured, plain, and through a whole session."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flashrt_ros.bench.harness import Case, Options, Samples, interleave
from flashrt_ros.bench.policies import observations, recurrent
from flashrt_ros.bench.report import Result, Row, make_row
from flashrt_ros.runtime.buffers import Arena
from flashrt_ros.runtime.device import Device, open_device
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

SIZES = ((1, 128), (2, 400), (2, 1000))
"""Layers and widths of the GRU; the last two are those of robomimic's configurations."""
REPLAY_TARGET = "host p50 <= 40 us on CUDA"


def run(options: Options) -> Result:
    """Measures each size in turn."""
    result = Result("step", "one control step of a GRU policy, 14 observations, 7 actions")
    device = open_device(options.device)
    for layers, width in SIZES[:1] if options.quick else SIZES:
        result.rows += _measure(options, device, layers, width)
    result.notes += [
        "host: until the call returns; wall: until the action is there.",
        "session.step adds checks, observation in, action out and the rollback boundary.",
    ]
    return result


def _measure(options: Options, device: Device, layers: int, width: int) -> list[Row]:
    policy = recurrent(hidden_size=width, n_layers=layers)
    act, plain = _plans(policy, device, options.warm())
    cuda = device.torch_device.type == "cuda"
    session = PolicySession(
        recurrent(hidden_size=width, n_layers=layers),
        options.device,
        rollback_depth=8,
        warm_up=options.warm(),
    )
    stream = observations(64)
    count = 0

    def step() -> None:
        nonlocal count
        session.step(stream[count % len(stream)])
        count += 1

    cases = {"empty": Case(_empty(device)), "act": Case(act), "session.step": Case(step)}
    if cuda:
        cases["act, not captured"] = Case(plain)
    with torch.no_grad():
        samples = interleave(cases, options.rounds(1000), device, options.warm(20))
    session.close()
    return _rows(f"GRU {layers}x{width}", samples, cuda)


def _rows(name: str, samples: dict[str, Samples], cuda: bool) -> list[Row]:
    floor_name = "empty replay" if cuda else "empty call"
    hosts = make_row(f"{name}: {floor_name}, host", samples["empty"].host)
    walls = make_row(f"{name}: {floor_name}, wall", samples["empty"].wall)
    rows = [hosts, walls] if cuda else [walls]
    act = "act replay" if cuda else "act"
    if cuda:
        rows.append(
            make_row(
                f"{name}: {act}, host", samples["act"].host, floor=hosts, target=REPLAY_TARGET
            )
        )
    rows.append(make_row(f"{name}: {act}, wall", samples["act"].wall, floor=walls))
    if cuda:
        rows.append(
            make_row(
                f"{name}: act not captured, host", samples["act, not captured"].host, floor=hosts
            )
        )
        rows.append(
            make_row(
                f"{name}: act not captured, wall", samples["act, not captured"].wall, floor=walls
            )
        )
    rows.append(make_row(f"{name}: session.step, wall", samples["session.step"].wall, floor=walls))
    return rows


def _plans(
    policy: Policy, device: Device, warm_up: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns the captured act and the plain one, on buffers of their own."""
    layout = complete_layout(policy)
    arena = Arena(layout, device)
    policy.module().to(device.torch_device)

    def act() -> None:
        policy.act(arena.state, arena.inputs, arena.outputs)

    plan = GraphPlan("act", act, device)
    plan.prepare(warm_up, lambda: policy.reset_(arena.state))
    return plan.replay, act


def _empty(device: Device) -> Callable[[], object]:
    """Returns a plan of one kernel on one element, the least that can be replayed."""
    if device.torch_device.type == "cpu":
        return lambda: None
    one = device.allocate(256)
    plan = GraphPlan("empty", lambda: one[:1].fill_(1), device)  # type: ignore[arg-type]
    plan.prepare(3)
    return plan.replay
