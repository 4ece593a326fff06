"""Makes programs of a policy: a .pt2 for each of its calls, a manifest, the initial state."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn
from torch.utils._pytree import tree_structure

from flashrt_ros.errors import FlashRTError, StorageError, UnsupportedError
from flashrt_ros.policies.program.manifest import (
    INITIAL,
    Call,
    Manifest,
    describe,
    save_manifest,
)
from flashrt_ros.policies.program.policy import ProgramPolicy, load
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import Role, StateLayout
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.policy import PlanKind, Policy

Buffers = dict[str, torch.Tensor]


def export_policy(policy: Policy, directory: Path, rate_hz: float | None = None) -> ProgramPolicy:
    """Writes a policy as programs that need none of its code.

    Each call is traced over copies of the buffers; a program takes the buffers that the call
    reads and returns those that it writes.

    Args:
        policy: On the CPU.
        directory: Made if it is not there; must be empty.
        rate_hz: Control steps a second that it is meant for.

    Returns:
        The policy as it is loaded back.

    Raises:
        UnsupportedError: The policy does what a program cannot.
        StorageError: The directory is not empty, or writing failed.
    """
    layout = complete_layout(policy)
    _check(policy, layout)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise StorageError(f"{directory}: expected an empty directory")
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error}") from None
    policy.module().to("cpu").eval()
    state, inputs, outputs = _buffers(layout)
    with torch.no_grad():
        policy.reset_(state)
    initial = {s.spec.name: state[s.spec.name].clone() for s in layout.state}
    planned = {"plan": policy.plan, "adopt": policy.adopt}
    calls = {"act": policy.act, **({} if policy.plan_kind is PlanKind.NONE else planned)}
    described = {}
    for name, call in calls.items():
        reads, writes, program = _trace(policy, call, state, inputs, outputs)
        described[name] = Call(f"{name}.pt2", reads, writes)
        _save(program, directory / f"{name}.pt2")
    used = {name for call in described.values() for name in (*call.reads, *call.writes)}
    buffers = tuple(
        spec
        for spec in layout.specs
        if spec.name in used
        or spec in policy.layout()
        or spec.name not in (noise.KEY, noise.COUNTER)
    )
    manifest = Manifest(
        name=policy.family,
        plan_kind=policy.plan_kind,
        chunk_size=policy.chunk_size,
        n_action_steps=policy.n_action_steps,
        act_observes=policy.act_observes,
        buffers=buffers,
        ports=policy.ports(),
        calls=described,
        origin=describe(policy),
        rate_hz=rate_hz,
    )
    own = {k: v for k, v in initial.items() if k not in (noise.KEY, noise.COUNTER)}
    try:
        (directory / INITIAL).write_bytes(save(own))
        save_manifest(directory, manifest)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error}") from None
    return load(directory)


def _check(policy: Policy, layout: StateLayout) -> None:
    has = {
        "buffers that grow by rows": bool(layout.capacity),
        "acts of several shapes": bool(policy.act_shapes()),
        "acts that are replayed": policy.act_replays > 1,
        "a task": bool(policy.task_inputs()),
    }
    found = [words for words, there in has.items() if there]
    if found:
        raise UnsupportedError(
            f"policy {policy.family!r}: has {', '.join(found)}, which a program has not yet"
        )


def _buffers(layout: StateLayout) -> tuple[Buffers, Buffers, Buffers]:
    def made(*roles: Role) -> Buffers:
        return {
            spec.name: torch.zeros(spec.shape, dtype=spec.dtype)
            for spec in layout.specs
            if spec.role in roles
        }

    return made(Role.STATE), made(Role.INPUT), made(Role.OUTPUT, Role.SCRATCH)


class _Traced(nn.Module):
    """One call of a policy as a function of its buffers."""

    def __init__(
        self,
        module: nn.Module,
        call: Callable[..., None],
        groups: Sequence[Sequence[str]],
        writes: Sequence[str],
    ) -> None:
        super().__init__()
        self.module = module
        self._call, self._groups, self._writes = call, groups, writes

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns what the call writes, and leaves its arguments alone."""
        given = iter(tensors)
        state, inputs, outputs = ({name: next(given) for name in group} for group in self._groups)
        state = {name: tensor.clone() for name, tensor in state.items()}
        outputs = {name: tensor.clone() for name, tensor in outputs.items()}
        self._call(state, inputs, outputs)
        return tuple({**state, **outputs}[name] for name in self._writes)


def _trace(
    policy: Policy,
    call: Callable[..., None],
    state: Buffers,
    inputs: Buffers,
    outputs: Buffers,
) -> tuple[tuple[str, ...], tuple[str, ...], Any]:
    """Names that are read, names that are written, and the program."""
    groups = (list(state), list(inputs), list(outputs))
    copies = [{k: v.clone() for k, v in group.items()} for group in (state, inputs, outputs)]
    before = {k: v._version for group in copies for k, v in group.items()}
    # A draw is not seen in the version of what it fills: numpy writes there.
    with torch.no_grad(), noise.traced(noise.drawn):
        call(*copies)
    writes = [k for g in (copies[0], copies[2]) for k, v in g.items() if v._version != before[k]]
    traced = _Traced(policy.module(), call, groups, writes).eval()
    given = tuple(tensor for group in (state, inputs, outputs) for tensor in group.values())
    try:
        with torch.no_grad(), noise.traced(_operator()), _quiet():
            program = torch.export.export(traced, given, strict=False)
        kept = _prune(program)
    except FlashRTError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise UnsupportedError(
            f"policy {policy.family!r}: torch.export cannot trace it: "
            f"{type(error).__name__}: {first}"
        ) from error
    names = [name for group in groups for name in group]
    return tuple(names[index] for index in kept), tuple(writes), program


def _prune(program: Any) -> list[int]:
    """Drops weights and inputs that nothing uses; the numbers of the inputs that are left."""
    graph, specs = program.graph_module.graph, program.graph_signature.input_specs
    graph.eliminate_dead_code()
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    kept, number = [], -1
    dropped = []
    for node, spec in zip(holders, list(specs), strict=True):
        user = spec.kind.name == "USER_INPUT"
        number += user
        if node.users:
            if user:
                kept.append(number)
            continue
        graph.erase_node(node)
        specs.remove(spec)
        if not user:
            dropped.append(spec.target)
    for target in dropped:
        if target not in [spec.target for spec in specs]:
            program.state_dict.pop(target, None)
            program.constants.pop(target, None)
    program.graph_module.recompile()
    # torch's own loader arranges arguments by this.
    signature = program.module_call_graph[0].signature
    signature.in_spec = tree_structure((tuple(kept), {}))
    signature.forward_arg_names = None
    # Of no meaning once inputs are gone, and pickled into the archive.
    program._example_inputs = None
    return kept


def _save(program: Any, path: Path) -> None:
    """Writes an archive; the sources' paths, which torch notes, stay behind."""
    for node in program.graph_module.graph.nodes:
        for key in ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack"):
            node.meta.pop(key, None)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, _quiet():
            made = Path(folder) / path.name
            torch.export.save(program, made)
            made.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}") from None


_OPERATORS: list[Any] = []


def _operator() -> noise.Draw:
    """The draw as an operator that a trace records."""
    if not _OPERATORS:

        @torch.library.custom_op("flashrt_ros::draw", mutates_args=())
        def draw(
            key: torch.Tensor, counter: torch.Tensor, offset: int, shape: list[int], kind: str
        ) -> torch.Tensor:
            return noise.drawn(key, counter, offset, shape, kind)

        @draw.register_fake
        def _(
            key: torch.Tensor, counter: torch.Tensor, offset: int, shape: list[int], kind: str
        ) -> torch.Tensor:
            dtype = torch.int32 if kind == "words" else torch.float32
            return key.new_empty(shape, dtype=dtype)

        _OPERATORS.append(draw)
    found: noise.Draw = _OPERATORS[0]
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within, torch does not warn of what it writes into an archive."""
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
