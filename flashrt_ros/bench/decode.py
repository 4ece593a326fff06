"""One greedy token of a random hybrid: ours beside transformers, and beside reading the weights.

Each step must read every weight once, so the floor is a kernel that does nothing but read as many
bytes. Every sample of ours decodes behind the same restored context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashrt_ros.bench.harness import Case, Options, Samples, interleave
from flashrt_ros.bench.hybrids import (
    CAPSULE,
    alike,
    make_model,
    open_stream,
    prompt,
    reading,
    setting_of,
    settle,
    weights_bytes,
    words_of,
)
from flashrt_ros.bench.random_hybrid import DRAFTS
from flashrt_ros.bench.report import Count, Result, Row, make_row
from flashrt_ros.bench.transformers_peer import TransformersPeer, in_a_line, open_peer
from flashrt_ros.policies.hybrid.decode import ACCEPTED
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.tokens import LIMIT, TokenStream
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.graph import GraphPlan

ROUNDS, SLOW_ROUNDS = 200, 20
TOKENS = 64
"""Greedy ones that are compared."""
BURST = 16
"""Tokens of a sample with drafts: how many a round commits differs."""
STEP, CAPTURED = "ours", "ours, the captured step alone"
DRAFTED = f"ours, {DRAFTS} drafts, per token"
STATIC = "StaticCache"
FLOOR_TARGET, PEER_TARGET = 2.0, 3.0


@dataclass
class _Held:
    """A stream that can go back to the end of one prompt."""

    stream: TokenStream

    def begin(self, given: list[int]) -> int:
        """Takes the prompt in; the first token behind it."""
        first = self.stream.prefill(given)
        self.stream.session.snapshot(CAPSULE)
        return first

    def back(self) -> None:
        self.stream.session.restore(CAPSULE)
        settle(self.stream.session)


def run(options: Options) -> Result:
    """Measures one size."""
    setting = setting_of(options)
    with torch.no_grad():
        options.say("making the model")
        model = make_model(setting, options)
        words = words_of(model, setting.size)
        result = Result("decode", f"one greedy token behind {setting.context}: {words}")
        plain = _Held(open_stream(model, options, setting, setting.context, 0))
        drafting = _Held(open_stream(model, options, setting, setting.context, DRAFTS))
        session = plain.stream.session
        with session.device.bind(Lane.CONTROL):
            peer = open_peer(result, model, session.device.torch_device, session.layout.capacity)
            given = prompt(model, setting.context, seed=1)
            tokens = _compare(result, model, plain, drafting, given)
            if peer is not None:
                _hold_against(result, model, peer, given, tokens)
            _time(result, options, model, (plain, drafting), peer, given)
        _explain(result, options, plain.stream)
        for held in (plain, drafting):
            held.stream.session.close()
    options.say("")
    return result


def _compare(
    result: Result, model: HybridModel, plain: _Held, drafting: _Held, given: list[int]
) -> list[int]:
    """Compares both streams; the tokens of the first."""
    tokens = [plain.begin(given), *plain.stream.decode(TOKENS - 1)]
    drafted = [drafting.begin(given), *drafting.stream.decode(TOKENS - 1)]
    exact = "all" if model.config.dtype == "float32" else ""
    found = alike(tokens, drafted)
    result.counts.append(Count("greedy tokens with drafts as without", found, TOKENS, exact))
    rounds = drafting.stream.session.arena.state[ACCEPTED].tolist()
    accepted = sum(count * times for count, times in enumerate(rounds))
    result.notes.append(
        f"{DRAFTS} drafts a round: {accepted} of {DRAFTS * sum(rounds)} were accepted,"
        f" {(TOKENS - 1) / sum(rounds):.2f} tokens a round."
    )
    return tokens


def _hold_against(
    result: Result, model: HybridModel, peer: TransformersPeer, given: list[int], tokens: list[int]
) -> None:
    exact = "all" if model.config.dtype == "float32" else ""
    for way in peer.ways:
        try:
            found = peer.forced(way, given, tokens)
        except Exception as error:
            result.notes.append(f"{way}: its tokens are not beside ours: {in_a_line(error)}")
            continue
        result.counts.append(
            Count(f"greedy tokens that are those of {way}", found.equal, found.count, exact)
        )
        result.notes.append(
            f"{way}: where it would have said another token, it prefers that to ours by at most"
            f" {found.behind:.3g} in its logits, whose standard deviation is {found.spread:.3g}."
        )


def _time(
    result: Result,
    options: Options,
    model: HybridModel,
    streams: tuple[_Held, _Held],
    peer: TransformersPeer | None,
    given: list[int],
) -> None:
    plain, drafting = streams
    device, size_bytes = plain.stream.session.device, weights_bytes(model)
    floors = reading(device, size_bytes, model.config.torch_dtype)
    cases = {name: Case(call) for name, call in floors.items()}
    if options.cuda:
        cases[CAPTURED] = _captured(plain, options)
    cases[STEP] = Case(lambda: plain.stream.decode(1), plain.back)
    cases[DRAFTED] = Case(lambda: drafting.stream.decode(BURST), drafting.back)
    slow: dict[str, Case] = {}
    if peer is not None:
        slow = _eager(result, peer, given)
        # Last, since a capture that fails leaves torch's allocator in disorder.
        cases |= _static(result, options, peer, given, plain.stream)
    rounds = options.rounds(ROUNDS if options.cuda else SLOW_ROUNDS)
    options.say(f"timing {', '.join(cases)}, {rounds} times each")
    samples = interleave(cases, rounds, device, options.warm())
    if slow:
        rounds = options.rounds(SLOW_ROUNDS)
        options.say(f"timing {', '.join(slow)}, {rounds} times each")
        samples |= interleave(slow, rounds, device, options.warm(), device_times=False)
    _add_rows(result, samples, size_bytes, list(floors))


def _captured(plain: _Held, options: Options) -> Case:
    """The act of the session alone: nothing crosses between host and device."""
    session = plain.stream.session
    policy, arena = session.policy, session.arena

    def back() -> None:
        plain.back()
        arena.inputs[LIMIT].fill_(1)

    def act() -> None:
        policy.act(arena.state, arena.inputs, arena.outputs)

    plan = GraphPlan("act", act, session.device)
    plan.prepare(options.warm(), back)
    return Case(plan.replay, back)


def _eager(result: Result, peer: TransformersPeer, given: list[int]) -> dict[str, Case]:
    cases = {}
    for way in peer.ways:
        try:
            call = peer.decode(way, given)
            call()
        except Exception as error:
            result.notes.append(f"{way}: no step: {in_a_line(error)}")
        else:
            cases[f"{way}, eager"] = Case(call)
    return cases


def _static(
    result: Result,
    options: Options,
    peer: TransformersPeer,
    given: list[int],
    stream: TokenStream,
) -> dict[str, Case]:
    """Steps of the peer over a static cache, captured where plans are."""
    # Each call takes a row, and each case is called twice a round.
    calls = 2 * (ROUNDS + options.warm()) + options.warm() + 2
    capacity = max(stream.session.layout.capacity, len(given) + calls)
    cases = {}
    for way in peer.ways:
        try:
            call = peer.decode(way, given, capacity)
            if options.cuda:
                plan = GraphPlan("transformers", call, stream.session.device)
                plan.prepare(options.warm())
                cases[f"{way}, {STATIC}, captured"] = Case(plan.replay)
            else:
                cases[f"{way}, {STATIC}"] = Case(call)
        except Exception as error:
            result.notes.append(f"{way}: no step over a StaticCache: {in_a_line(error)}")
    return cases


def _add_rows(
    result: Result, samples: dict[str, Samples], size_bytes: int, floors: list[str]
) -> None:
    on_device = bool(samples[floors[0]].device)

    def row(name: str, kind: str, floor: Row | None, share: int = 1, target: str = "") -> Row:
        values = [us / 1e3 / share for us in getattr(samples[name], kind)]
        label = name if floor else f"floor: as many bytes as weights, read by {name}"
        words = f", {kind}" if kind == "device" else ""
        return make_row(f"{label}{words}", values, "ms", floor=floor, target=target)

    kind = "device" if on_device else "wall"
    floor = min((row(name, kind, None) for name in floors), key=lambda found: found.p50)
    result.rows.append(floor)
    for name in samples:
        if name in floors:
            continue
        if name == CAPTURED:
            result.rows.append(row(name, "device", floor))
        target = f"large, on a GPU: <= {FLOOR_TARGET:g} x floor" if name == STEP else ""
        result.rows.append(row(name, "wall", floor, BURST if name == DRAFTED else 1, target))
    ours = next(found for found in result.rows if found.case == STEP)
    for found in result.rows:
        if found.case.startswith("transformers"):
            target = f"; the target is {PEER_TARGET:g}" if found.case.endswith("captured") else ""
            words = f"{found.case}: {found.p50 / ours.p50:.2f} times ours{target}."
            result.notes.append(words)
    result.notes.append(
        f"A token reads {size_bytes / 1e6:.4g} MB of weights, here at"
        f" {size_bytes / floor.p50 / 1e6:.0f} GB/s; its state is not counted in the floor."
    )


def _explain(result: Result, options: Options, stream: TokenStream) -> None:
    layout = stream.session.layout
    result.notes += [
        f"State: {layout.fixed_bytes / 1e6:.3g} MB that each token reads and writes, and"
        f" {layout.row_bytes} bytes a row; room for {layout.capacity} rows, in a StaticCache as"
        " well.",
        "wall, until the token is chosen on the device; ours alone until it is on the host, where"
        " it does not say otherwise.",
    ]
    if not options.cuda:
        result.notes.append(
            "On a CPU nothing is captured, and weights that fit into a cache are read from it."
        )
