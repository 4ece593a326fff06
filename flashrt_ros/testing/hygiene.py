"""Checks of what a policy declares, and of what it touches while it runs."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable

import numpy as np
import torch

from flashrt_ros.errors import FlashRTError
from flashrt_ros.policies.walk import attribute_digests, changes, tensor_digest, weight_digests
from flashrt_ros.runtime.buffers import ROWS_LENGTH, ROWS_SPEC, BufferSpec, Role
from flashrt_ros.runtime.engine import CONSUMED, DELAY, complete_layout
from flashrt_ros.runtime.host_read import HostReads
from flashrt_ros.runtime.noise import NOISE_SPECS
from flashrt_ros.runtime.policy import PlanKind, Port
from flashrt_ros.testing.foreign_write import ForeignWrites
from flashrt_ros.testing.outside import OutsideReads
from flashrt_ros.testing.rig import Rig, committed, difference
from flashrt_ros.testing.subject import Subject


def specs(subject: Subject) -> list[str]:
    """Layout, ports, plan and configuration, without running anything."""
    policy = subject.policy
    declared = policy.layout()
    wrong = [item for item in declared if not isinstance(item, BufferSpec)]
    if wrong:
        return [f"layout(): expected BufferSpec, found {wrong[0]!r}"]
    problems = []
    if declared != policy.layout():
        problems.append("layout(): a second call declares other buffers")
    by_name = {spec.name: spec for spec in declared}
    for own in (*NOISE_SPECS, ROWS_SPEC):
        if by_name.get(own.name, own) != own:
            problems.append(f"{own.name}: expected {own}, found {by_name[own.name]}")
    ports = policy.ports()
    for port in ports.observations:
        problems += _port(port, by_name, Role.INPUT)
    problems += _port(ports.action, by_name, Role.OUTPUT)
    action = by_name.get(ports.action.buffer)
    if action and (len(action.shape) != 1 or action.dtype != torch.float32):
        problems.append(
            f"action: expected a float32 buffer of shape (A,), "
            f"found {action.dtype} of shape {action.shape}"
        )
    keys = [port.key for port in ports.observations]
    if len(set(keys)) != len(keys):
        problems.append(f"ports(): expected different keys, found {keys}")
    fed = {CONSUMED, DELAY, *policy.task_inputs(), *(port.buffer for port in ports.observations)}
    for spec in declared:
        if spec.role is Role.INPUT and spec.name not in fed:
            problems.append(f"{spec.name}: an input that no port feeds")
    if not 1 <= policy.n_action_steps <= policy.chunk_size:
        problems.append(
            f"n_action_steps: expected 1 to chunk_size ({policy.chunk_size}), "
            f"found {policy.n_action_steps}"
        )
    if not isinstance(policy.family, str) or not policy.family:
        problems.append(f"family: expected a name, found {policy.family!r}")
    try:
        json.dumps(policy.config(), allow_nan=False)
    except (TypeError, ValueError) as error:
        problems.append(f"config(): expected JSON values: {error}")
    if not problems:
        try:
            complete_layout(policy)
        except FlashRTError as error:
            problems.append(str(error))
    return problems


def _port(port: Port, by_name: dict[str, BufferSpec], role: Role) -> list[str]:
    spec = by_name.get(port.buffer)
    if spec is None:
        return [f"port {port.key!r}: no buffer {port.buffer!r} is declared"]
    problems = []
    if spec.role is not role:
        problems.append(f"port {port.key!r}: expected a buffer of role {role}, found {spec.role}")
    if spec.shape != port.shape:
        problems.append(f"port {port.key!r}: shape {port.shape}, but its buffer has {spec.shape}")
    if port.names and len(port.names) != port.shape[0]:
        problems.append(f"port {port.key!r}: {len(port.names)} names for shape {port.shape}")
    return problems


def runs(subject: Subject) -> list[str]:
    """One plain episode, with observations of about unit size."""
    rig = Rig(subject.policy, subject.device, captured=False)
    rig.reset()
    for step, observation in enumerate(subject.episode()):
        action_A = rig.step(observation)
        if not bool(torch.isfinite(action_A).all()):
            return [f"step {step}: expected a finite action, found {action_A.tolist()}"]
    return []


def addresses(subject: Subject) -> list[str]:
    """Identity and address of each buffer, over a plain episode."""
    rig = Rig(subject.policy, subject.device, captured=False)
    before = rig.addresses()
    rig.reset()
    rig.run(subject.episode())
    after = rig.addresses()
    return [
        f"{name}: is another tensor, or elsewhere in memory, after an episode; write in place"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def inputs(subject: Subject) -> list[str]:
    """Digests of the inputs around each call."""
    rig = Rig(subject.policy, subject.device, captured=False)
    return _around(subject, rig, rig.inputs, lambda call: True, "writes to input")


def beside(subject: Subject) -> list[str]:
    """Digests of the state around each plan."""
    if subject.policy.plan_kind is not PlanKind.BESIDE:
        return []
    rig = Rig(subject.policy, subject.device, captured=False)
    return _around(subject, rig, rig.state, lambda call: call == "plan", "writes to state")


def append_only(subject: Subject) -> list[str]:
    """Digests of the committed rows around each call, and their number."""
    policy = subject.policy
    rig = Rig(policy, subject.device, captured=False)
    if not rig.layout.capacity:
        return []
    most = {
        "plan": policy.rows_per_plan,
        "adopt": policy.rows_per_plan,
        "act": policy.rows_per_act,
    }
    before: dict[str, str] = {}
    length = 0
    found: dict[str, None] = {}

    def rows(end: int) -> dict[str, str]:
        slots = {slot.spec.name: slot.view(rig.rows[:end]) for slot in rig.layout.rows}
        return {name: tensor_digest(tensor) for name, tensor in slots.items()}

    def watch(call: str, done: bool) -> None:
        nonlocal before, length
        if not done:
            length = committed(rig.state)
            before = rows(length)
            return
        if call == "reset_":
            return
        found.update(
            {
                f"{call} rewrites committed rows of {name}; only append": None
                for name in changes(before, rows(length))
            }
        )
        risen = committed(rig.state) - length
        if not 0 <= risen <= most[call]:
            found[f"{call}: {ROWS_LENGTH} rises by {risen}, expected 0 to {most[call]}"] = None

    rig.watch = watch
    for index in (0, 1):
        rig.reset()
        rig.run(subject.episode(index))
    return list(found)


def _around(
    subject: Subject,
    rig: Rig,
    buffers: dict[str, torch.Tensor],
    applies: Callable[[str], bool],
    verb: str,
) -> list[str]:
    before: dict[str, str] = {}
    found: dict[str, None] = {}

    def watch(call: str, done: bool) -> None:
        if not applies(call):
            return
        digests = {name: tensor_digest(tensor) for name, tensor in buffers.items()}
        if done:
            found.update({f"{call} {verb} {name}": None for name in changes(before, digests)})
        before.clear()
        before.update(digests)

    rig.watch = watch
    rig.reset()
    rig.run(subject.episode())
    return list(found)


def attributes(subject: Subject) -> list[str]:
    """Everything that is reachable from the policy, before and after an episode."""
    policy, module = subject.policy, subject.policy.module()
    rig = Rig(policy, subject.device, captured=False)
    rig.reset()
    rig.run(subject.episode(1)[:2])
    # Taken after two steps: a constant that is made once, at first use, holds no episode.
    before = attribute_digests(policy, module)
    rig.reset()
    rig.run(subject.episode())
    _provoke(rig, subject)
    after = attribute_digests(policy, module)
    found = changes(before, after)
    more = [f"and {len(found) - 8} more"] if len(found) > 8 else []
    return [
        f"{path}: {before.get(path, 'absent')} became {after.get(path, 'absent')}; "
        "keep it in a state buffer"
        for path in found[:8]
    ] + more


def _provoke(rig: Rig, subject: Subject) -> None:
    """Observations far outside the usual, for what is kept only then."""
    for factor in (0, 1000):
        # An observation of truth values or counts stays what it is; a policy may refuse.
        with contextlib.suppress(Exception):
            rig.run(
                [
                    {k: v * factor if v.is_floating_point() else v for k, v in observation.items()}
                    for observation in subject.episode()[:3]
                ]
            )


def parameters(subject: Subject) -> list[str]:
    """Bytes of all weights, before and after an episode."""
    module = subject.policy.module()
    before = weight_digests(module)
    rig = Rig(subject.policy, subject.device, captured=False)
    rig.reset()
    rig.run(subject.episode())
    return [f"{name} has other bytes" for name in changes(before, weight_digests(module))]


def host(subject: Subject) -> list[str]:
    """Operations that wait for the device, over a plain episode."""
    rig = Rig(subject.policy, subject.device, captured=False)
    reads = HostReads()
    rig.watch = reads.watch
    with reads:
        rig.reset()
        rig.run(subject.episode())
    # A plan that may be called instead may read: it is not captured then.
    plain = ("plan",) if subject.policy.may_run_plain else ()
    return [
        f"{call}: {words}; a captured graph cannot do that"
        for call, words in reads.found
        if call not in plain
    ]


def foreign(subject: Subject) -> list[str]:
    """Writes to tensors that are no buffers, over a plain episode."""
    rig = Rig(subject.policy, subject.device, captured=False)
    writes = ForeignWrites((*rig.state.values(), *rig.inputs.values(), *rig.outputs.values()))
    rig.watch = writes.watch
    with writes:
        rig.reset()
        rig.run(subject.episode())
    return [
        f"{call}: {words}: no buffer of its layout; what is kept there is in no capsule"
        for call, words in writes.found
    ]


def outside(subject: Subject) -> list[str]:
    """Clocks, entropy and files, over a plain episode."""
    rig = Rig(subject.policy, subject.device, captured=False)
    reads = OutsideReads()
    rig.watch = reads.watch
    rig.reset()
    rig.run(subject.episode()[:2])
    reads.enabled = True
    rig.run(subject.episode()[2:])
    return [f"{call}: {words}; a continuation could not repeat it" for call, words in reads.found]


def global_rng(subject: Subject) -> list[str]:
    """State of torch's, Python's and numpy's global generators, and whether it matters."""
    rig = Rig(subject.policy, subject.device, captured=False)
    traces, problems = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        before = _generators(subject)
        rig.reset()
        traces.append(rig.run(subject.episode()))
        moved = changes(before, _generators(subject))
        problems = [f"{name}'s global generator moved" for name in moved]
    differs = difference(*traces)
    if differs:
        problems.append(f"seeding the global generators changes the run, {differs}")
    return problems


def _generators(subject: Subject) -> dict[str, str]:
    # numpy's words are an array, whose text leaves most of them out.
    kind, words, *rest = np.random.get_state(legacy=True)
    states = {
        "torch": tensor_digest(torch.get_rng_state()),
        "python": str(hash(random.getstate())),
        "numpy": f"{kind} {np.asarray(words).tobytes().hex()} {rest}",
    }
    if subject.captures:
        states["cuda"] = tensor_digest(torch.cuda.get_rng_state(subject.device.torch_device))
    return states
