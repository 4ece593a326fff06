"""Any policy: its plan and its act, captured and plain, and whole control steps.

On a LeRobot checkpoint LeRobot's own control steps are timed in turn with ours, if it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from flashrt_ros.bench import lerobot_peer
from flashrt_ros.bench.fast import add_deviation
from flashrt_ros.bench.harness import Case, Options, Samples, affordable, interleave
from flashrt_ros.bench.report import Result, Row, make_row
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.checkpoint import read_config
from flashrt_ros.policies.lerobot.families import is_lerobot, runs_in_lerobot
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.buffers import Arena
from flashrt_ros.runtime.derived import derived_names
from flashrt_ros.runtime.device import Device, Lane, open_device
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.policy import PlanKind, Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing.episode import Episodes, Observation

BUDGET_S = 30.0
"""About what the rounds take together; at least ``FEWEST`` are made, whatever they take."""
FEWEST, MOST = 7, 300


def run(options: Options) -> Result:
    """Measures the policy of the options.

    Raises:
        InvalidArgumentError: None was named.
    """
    if not options.policy:
        raise InvalidArgumentError("policy: expected --policy, the name or directory of a policy")
    policy = load_policy(options.policy, numerics=options.numerics)
    device = open_device(options.device)
    policy.module().to(device.torch_device).eval()
    policy.probe(device.torch_device)
    result = Result("policy", f"{policy.family}, {parameters_of(policy) / 1e6:.1f} M parameters")
    observation, following = observations_of(policy)
    with torch.no_grad():
        peer = _peer(options, result)
        calls = calls_of(policy, device, observation, options.warm())
        if peer is not None:
            theirs, floor = _peer_plan(peer, device, observation, options.warm())
            calls = {**theirs, **calls}
        else:
            floor = ""
        _measure(result, options, device, calls, floor)
        add_deviation(result, policy, options, device.torch_device)
    layout = complete_layout(policy)
    capsule_bytes = layout.fixed_bytes + 2 * layout.capacity * layout.row_bytes
    session = PolicySession(
        policy,
        options.device,
        rollback_depth=0,
        store_bytes=max(1 << 20, 2 * capsule_bytes),
        warm_up=options.warm(),
    )
    steps = _steps(session.reset_, session.step, observation, following)
    if peer is not None:
        theirs = _steps(peer.reset, peer.step, observation, following)
        _measure(result, options, device, {**_named("LeRobot", theirs), **steps}, "LeRobot: ")
    else:
        _measure(result, options, device, steps, "")
    session.close()
    options.say("")
    result.notes += [
        "plan, adopt, act: wall, until the work is done on the device.",
        "step: observation in, action out; the first of an episode plans, the second does not.",
    ]
    return result


def parameters_of(policy: Policy) -> int:
    """Returns how many numbers its weights are, once each."""
    derived = derived_names(policy.module())
    return sum(
        weight.numel()
        for name, weight in policy.module().named_parameters()
        if not name.startswith(derived)
    )


def observations_of(policy: Policy) -> list[Observation]:
    """Returns two random ones that follow each other."""
    layout = complete_layout(policy)
    ports = policy.ports()
    dtypes = {port.key: layout.find(port.buffer).dtype for port in ports.observations}
    return Episodes(ports, dtypes, None).make(0, 2)


def calls_of(
    policy: Policy, device: Device, observation: Observation, warm_up: int
) -> dict[str, Case]:
    """Returns each call of the policy at the start of an episode, over buffers of their own.

    On CUDA each is there twice, captured and plain.
    """
    arena = Arena(complete_layout(policy), device)
    for port in policy.ports().observations:
        arena.inputs[port.buffer].copy_(observation[port.key])
    buffers = (arena.state, arena.inputs, arena.outputs)
    plain: dict[str, Callable[[], None]] = {"act": lambda: policy.act(*buffers)}
    if policy.plan_kind is not PlanKind.NONE:
        plain = {
            "plan": lambda: policy.plan(*buffers),
            "adopt": lambda: policy.adopt(*buffers),
            **plain,
        }
    with device.bind(Lane.CONTROL):
        policy.reset_(arena.state)
        initial = arena.fixed.clone()
        device.synchronize()

    def begin() -> None:
        # State that grows would be full after as many calls.
        device.copy_(arena.fixed, initial)

    cases = {}
    for name, call in plain.items():
        if device.torch_device.type == "cuda":
            may = name == "plan" and policy.may_run_plain
            captured = GraphPlan(name, call, device, may_run_plain=may)
            captured.prepare(max(1, warm_up), begin)
            cases[name] = Case(captured.replay, begin)
            cases[f"{name}, not captured"] = Case(call, begin)
        else:
            cases[name] = Case(call, begin)
    return cases


def _peer_plan(
    peer: lerobot_peer.LeRobotPeer, device: Device, observation: Observation, warm_up: int
) -> tuple[dict[str, Case], str]:
    """LeRobot's network by itself, on CUDA also captured; and the name of what is the floor."""
    call = peer.network(observation)
    cases = {"LeRobot: plan": Case(call)}
    if device.torch_device.type != "cuda":
        return cases, "LeRobot: "
    captured = GraphPlan("LeRobot", lambda: (call(), None)[1], device)
    captured.prepare(max(1, warm_up))
    return {**cases, "LeRobot, captured: plan": Case(captured.replay)}, "LeRobot, captured: "


def _steps(
    reset: Callable[[], object],
    step: Callable[[Observation], object],
    observation: Observation,
    following: Observation,
) -> dict[str, Case]:
    def begin() -> None:
        reset()
        step(observation)

    return {
        "first step": Case(lambda: step(observation), reset),
        "second step": Case(lambda: step(following), begin),
    }


def _named(prefix: str, cases: dict[str, Case]) -> dict[str, Case]:
    return {f"{prefix}: {name}": case for name, case in cases.items()}


def _peer(options: Options, result: Result) -> lerobot_peer.LeRobotPeer | None:
    directory = Path(options.policy)
    if not directory.is_dir() or not is_lerobot(read_config(directory)):
        return None
    if not lerobot_peer.installed():
        result.notes.append("LeRobot is not installed, so its steps are not beside ours.")
        return None
    if runs_in_lerobot(read_config(directory)["type"]):
        result.notes.append("The network is LeRobot's own, so LeRobot is not beside it.")
        return None
    try:
        return lerobot_peer.LeRobotPeer(directory, options.device)
    except Exception as error:
        # An older LeRobot refuses what a newer one wrote; ours can be timed all the same.
        words = next(iter(str(error).strip().splitlines()), "")
        result.notes.append(
            f"LeRobot cannot load it, so its steps are not beside ours: {type(error).__name__}: "
            f"{words}"
        )
        return None


def _measure(
    result: Result, options: Options, device: Device, cases: dict[str, Case], floor: str
) -> None:
    """Adds a row for each case; what has a namesake behind ``floor`` is held against it."""
    rounds = options.rounds(affordable(cases, device, BUDGET_S / 2, FEWEST, MOST))
    options.say(f"timing {', '.join(cases)}, {rounds} times each")
    samples: dict[str, Samples] = interleave(cases, rounds, device, options.warm(1))
    # A captured plan is held against a captured one, steps of a GPU against LeRobot's as they are.
    most = 1.05 if device.torch_device.type != "cuda" else 1.02 if "captured" in floor else 1.0
    rows: dict[str, Row] = {}
    for name, found in samples.items():
        beside = rows.get(floor + name) if floor else None
        target = f"<= {most:g} x floor" if beside is not None else ""
        rows[name] = make_row(name, found.wall, floor=beside, target=target)
    if "act" in samples and device.torch_device.type == "cuda":
        rows["act, host"] = make_row("act, host", samples["act"].host, target="<= 50 us")
    result.rows += rows.values()
    eager = rows.get("LeRobot: plan")
    if eager is not None:
        ratio = eager.p50 / rows["plan"].p50
        result.notes.append(f"LeRobot's plan as it is takes {ratio:.2f} times ours.")
