"""Time to first token of a random hybrid: cold, beside transformers, and by restore and suffix.

A prompt is a context and a suffix of 64 tokens. Cold, all of it is taken in; or else a capsule of
the context is restored, whose rows another episode has overwritten meanwhile, and the suffix is
taken in behind it. The floor of that is one copy of the capsule's bytes and one replay of the
captured pass over the suffix. Contexts are multiples of the largest pass, so both ways cut the
prompt into the same passes and must end in the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from flashrt_ros.bench.harness import Case, Options, affordable, contiguous_copy, interleave
from flashrt_ros.bench.hybrids import (
    CAPSULE,
    make_model,
    open_stream,
    prompt,
    setting_of,
    settle,
    words_of,
)
from flashrt_ros.bench.report import Count, Curve, Point, Result, Row, make_row
from flashrt_ros.bench.transformers_peer import TransformersPeer, in_a_line, open_peer
from flashrt_ros.policies.hybrid.tokens import COUNT, TOKENS, TokenPolicy, TokenStream
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.graph import GraphPlan

SUFFIX = 64
COMPARED = 64
"""Greedy tokens, the first included, that are compared."""
ROUNDS, FEWEST, MOST = 60, 3, 30
BUDGET_S = 8.0
"""About what the cold prompts of one length take together."""
CURVE = "time to first token by context"
COLD, WHOLE, RESTORED = "cold", "cold, with the suffix", "restore + suffix"
COPY, PASS, FLOOR, RESTORE = "copy", "captured suffix", "copy + captured suffix", "restore"
COLD_TARGET, RESTORED_TARGET = "<= 1 x floor", "<= 1.15 x floor"
PAPER = {2048: 3.9, 16384: 27.0}
"""Cold over restored, of another model on another GPU (arXiv 2606.20537)."""


def run(options: Options) -> Result:
    """Measures every length."""
    setting = setting_of(options)
    with torch.no_grad():
        options.say("making the model")
        model = make_model(setting, options)
        result = Result("ttft", f"first token of a prompt: {words_of(model, setting.size)}")
        result.curves.append(Curve(CURVE, "tokens of the context", "ms"))
        stream = open_stream(model, options, setting, setting.contexts[-1], 0)
        device = stream.session.device
        with device.bind(Lane.CONTROL):
            peer = open_peer(result, model, device.torch_device, stream.session.layout.capacity)
            lengths = [_Length(stream, n, options) for n in setting.contexts]
            _compare(result, lengths)
            for length in lengths:
                length.measure(result, options, peer)
        stream.session.close()
    options.say("")
    result.notes += [
        f"A prompt is a context and a suffix of {SUFFIX} tokens; ours in passes of"
        f" {', '.join(map(str, setting.shapes))} tokens.",
        "Until the first token is on the host; of transformers from token ids on the device on,"
        " of ours from a list.",
    ]
    return result


class _Length:
    """One context, and what is timed and compared of it.

    Args:
        stream: Shared by all lengths; each call begins with a reset.
        context: Tokens.
        options: How to measure.
    """

    def __init__(self, stream: TokenStream, context: int, options: Options) -> None:
        self.stream, self.context = stream, context
        policy = stream.session.policy
        assert isinstance(policy, TokenPolicy)
        self._policy = policy
        given = prompt(policy.model, context + SUFFIX, seed=context)
        self.given, self.suffix = given[:context], given[context:]
        self._warm_up, self._cuda = options.warm(), options.cuda
        row_bytes = stream.session.layout.row_bytes
        self.capsule_bytes = stream.session.layout.fixed_bytes + context * row_bytes

    def compare(self) -> tuple[bool, bool, bool]:
        """Whether tokens and bytes are those of a cold run, and whether they differ unrestored."""
        session = self.stream.session
        # The noise key is state, too, and an episode's own.
        session.reset_(seed=0)
        cold = self._run([*self.given, *self.suffix])
        self._keep()
        session.reset_()
        session.restore(CAPSULE)
        restored = self._run(self.suffix)
        session.reset_(seed=0)
        unrestored = self._run(self.suffix)
        return restored[0] == cold[0], restored[1] == cold[1], unrestored[0] != cold[0]

    def _run(self, tokens: list[int]) -> tuple[list[int], str]:
        """The first token and those behind it, and a digest of the state at the first."""
        first = self.stream.prefill(tokens)
        digest = self.stream.session.state_digest()
        return [first, *self.stream.decode(COMPARED - 1)], digest

    def _keep(self) -> None:
        self.stream.session.reset_(seed=0)
        self.stream.prefill(self.given)
        self.stream.session.snapshot(CAPSULE, replace=True)

    def measure(self, result: Result, options: Options, peer: TransformersPeer | None) -> None:
        """Adds the rows of this length."""
        self._keep()
        device = self.stream.session.device
        warm = self._warm_cases()
        rounds = options.rounds(ROUNDS)
        options.say(f"timing restores behind {self.context} tokens, {rounds} times each")
        samples = interleave(warm, rounds, device, options.warm(), device_times=False)
        cold = self._cold_cases(result, peer)
        options.say(f"timing prompts of {self.context} tokens")
        interleave(cold, 1, device, 0, device_times=False)
        rounds = affordable(cold, device, BUDGET_S, FEWEST, MOST, device_times=False)
        rounds = options.rounds(rounds)
        samples |= interleave(cold, rounds, device, options.warm(0), device_times=False)
        found = {name: [us / 1e3 for us in sample.wall] for name, sample in samples.items()}
        self._add(result, found, peer)

    def _warm_cases(self) -> dict[str, Case]:
        session = self.stream.session
        copy = contiguous_copy(session.device, self.capsule_bytes)[1]
        replay, before = self._pass()

        def least() -> None:
            copy()
            replay()

        def restored() -> None:
            session.restore(CAPSULE)
            self.stream.prefill(self.suffix)

        return {
            COPY: Case(copy),
            PASS: Case(replay, before),
            FLOOR: Case(least, before),
            # After a reset no row counts as there, so a restore copies all of them.
            RESTORE: Case(lambda: session.restore(CAPSULE), session.reset_),
            RESTORED: Case(restored, session.reset_),
        }

    def _pass(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The replay of one pass over the suffix, and what puts state and inputs before it."""
        session, policy = self.stream.session, self._policy
        arena = session.arena
        tokens_T = torch.tensor(self.suffix, device=session.device.torch_device)

        def before() -> None:
            session.restore(CAPSULE)
            arena.inputs[TOKENS][:SUFFIX].copy_(tokens_T)
            arena.inputs[COUNT].fill_(SUFFIX)
            settle(session)

        shape = next(shape for shape in policy.act_shapes() if shape.rows == SUFFIX)
        act = partial(shape.act, arena.state, arena.inputs, arena.outputs)
        plan = GraphPlan(shape.name, act, session.device)
        plan.prepare(self._warm_up, before)
        return plan.replay, before

    def _cold_cases(self, result: Result, peer: TransformersPeer | None) -> dict[str, Case]:
        session, whole = self.stream.session, [*self.given, *self.suffix]
        cases = {}
        for way in peer.ways if peer is not None else ():
            assert peer is not None
            call = peer.prefill(way, self.given)
            try:
                call()
            except Exception as error:
                result.notes.append(f"{way}: no prompt of {self.context}: {in_a_line(error)}")
            else:
                cases[way] = Case(call)
        cases[COLD] = Case(lambda: self.stream.prefill(self.given), session.reset_)
        cases[WHOLE] = Case(lambda: self.stream.prefill(whole), session.reset_)
        return cases

    def _add(
        self, result: Result, found: dict[str, list[float]], peer: TransformersPeer | None
    ) -> None:
        rows: dict[str, Row] = {}

        def add(name: str, floor: str = "", target: str = "", drawn: bool = True) -> None:
            size_bytes = self.capsule_bytes if name in (COPY, RESTORE) else 0
            point = Point(CURVE, name, self.context) if drawn else None
            case, held = f"{self.context}: {name}", rows.get(floor)
            rows[name] = make_row(case, found[name], "ms", size_bytes, held, target, point)

        ways = [way for way in (peer.ways if peer is not None else ()) if way in found]
        for way in ways:
            add(way)
        # The way with kernels comes first.
        add(COLD, ways[0] if ways else "", COLD_TARGET if ways else "")
        add(WHOLE, drawn=False)
        add(COPY, drawn=False)
        add(RESTORE, COPY, drawn=False)
        add(PASS, drawn=False)
        add(FLOOR)
        add(RESTORED, FLOOR, RESTORED_TARGET)
        result.rows += rows.values()
        ratio = rows[WHOLE].p50 / rows[RESTORED].p50
        paper = PAPER.get(self.context) if self._cuda else None
        words = f"; the paper has {paper:g}, of another model and GPU" if paper else ""
        result.notes.append(f"{self.context}: cold / restored {ratio:.3g}{words}.")


def _compare(result: Result, lengths: list[_Length]) -> None:
    found = [length.compare() for length in lengths]
    tokens, bits, controls = (sum(column) for column in zip(*found, strict=True))
    count = len(lengths)
    result.counts += [
        Count(f"restore + suffix: {COMPARED} tokens as cold", tokens, count, "all"),
        Count("restore + suffix: state as cold, byte for byte", bits, count, "all"),
        Count("control, suffix without restore: other tokens", controls, count, ">= 1"),
    ]
