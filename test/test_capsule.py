"""Capsules, their names, and the fingerprints that decide whether one may be restored.

A fingerprint that misses a difference lets a robot continue from a state that means something
else; one that sees a difference where none matters makes capsules useless.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from toy_policies import ToyChunk, ToyRecurrent, observations

from flashrt_ros.errors import InvalidNameError, SpecError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.capsule import check_name, new_id
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.fingerprint import Fingerprint, state_fingerprint, weights_digest
from flashrt_ros.runtime.policy import Port, Ports
from flashrt_ros.runtime.session import PolicySession


@pytest.mark.parametrize("name", ["a", "0", "A.b-c_d", "x" * 128])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "-a", "_a", "a b", "a\n", "x" * 129, "ä", None, 3]
)
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidNameError, match="expected 1 to 128 letters"):
        check_name(name)  # type: ignore[arg-type]


def test_ids_are_names_too() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(id_) == 12 and check_name(id_) for id_ in ids)


def test_capsule_says_what_it_is() -> None:
    session = PolicySession(ToyRecurrent(), seed=3)
    session.reset_(task="pick")
    first = session.snapshot("first")
    session.step(observations(0))
    capsule = session.snapshot()
    assert capsule.name == f"capsule-{capsule.id}"
    assert capsule.parent_id == first.id
    assert first.parent_id == ""
    assert (capsule.tick, capsule.host.step, capsule.host.episode) == (1, 1, 1)
    assert capsule.host.task == "pick"
    assert capsule.generation == session.generation
    assert capsule.created_ns >= first.created_ns > 1_600_000_000 * 10**9
    assert capsule.size_bytes == session.layout.fixed_bytes
    assert (capsule.state_id, capsule.exec_id) == (session.state_id, session.exec_id)
    assert not capsule.automatic
    assert not capsule.pinned
    with pytest.raises(dataclasses.FrozenInstanceError):
        capsule.name = "other"  # type: ignore[misc]


def test_capsule_does_not_follow_the_live_state() -> None:
    session = PolicySession(ToyRecurrent())
    session.step(observations(0))
    capsule = session.snapshot("a")
    state = capsule.segment.bytes.clone()
    session.step(observations(1))
    session.host.task = "changed"
    assert torch.equal(capsule.segment.bytes, state)
    assert (capsule.host.step, capsule.host.task) == (1, "")
    session.restore("a")
    session.step(observations(1))
    assert capsule.host.step == 1


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_fingerprint_ids_differ_where_fields_do(fields: dict[str, str]) -> None:
    mine = Fingerprint(fields)
    assert Fingerprint(dict(fields)).id == mine.id
    assert mine.difference(Fingerprint(dict(fields))) is None
    more = Fingerprint({**fields, "long name": "x"})
    assert more.id != mine.id
    assert more.difference(mine) == ("long name", "x", "(absent)")
    assert mine.difference(more) == ("long name", "(absent)", "x")


def test_fingerprint_text_is_not_ambiguous() -> None:
    assert Fingerprint({"a": "b\nc: d"}).id != Fingerprint({"a": "b", "c": "d"}).id
    assert Fingerprint({"a": '","'}).id != Fingerprint({"a": "", "": ""}).id


def test_state_id_sees_policy_weights_and_buffers() -> None:
    def state_id(policy: ToyRecurrent | ToyChunk) -> str:
        return state_fingerprint(policy, complete_layout(policy)).id

    base = state_id(ToyRecurrent())
    assert state_id(ToyRecurrent()) == base

    class OtherFamily(ToyRecurrent):
        family = "other"

    class OtherDtype(ToyRecurrent):
        def layout(self) -> tuple[BufferSpec, ...]:
            return tuple(
                dataclasses.replace(s, dtype=torch.int32) if s.name == "count" else s
                for s in super().layout()
            )

    class MoreScratch(ToyRecurrent):
        def layout(self) -> tuple[BufferSpec, ...]:
            return (*super().layout(), BufferSpec("more", (9,), torch.float32, Role.SCRATCH))

    class OtherPace(ToyChunk):
        n_action_steps = 3

    nudged = ToyRecurrent()
    with torch.no_grad():
        weight = next(nudged.net.parameters())
        weight.view(-1)[-1] = torch.nextafter(weight.view(-1)[-1], torch.tensor(9.0))
    others = [ToyRecurrent(seed=1), ToyRecurrent(hidden=8), OtherFamily(), OtherDtype(), nudged]
    ids = [state_id(policy) for policy in others]
    assert len({base, *ids}) == len(others) + 1
    assert state_id(MoreScratch()) == base  # scratch is no state
    assert state_id(OtherPace()) != state_id(ToyChunk())


def test_weights_digest_covers_buffers_names_and_kinds() -> None:
    class Net(nn.Module):
        def __init__(self, name: str, value: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer(name, value, persistent=False)

    plain = weights_digest(Net("a", torch.zeros(4)))
    assert plain == weights_digest(Net("a", torch.zeros(4)))
    assert plain == weights_digest(Net("a", torch.zeros(8)[::2]))
    variants = [
        Net("b", torch.zeros(4)),
        Net("a", torch.zeros(2, 2)),
        Net("a", torch.zeros(4, dtype=torch.int32)),
        Net("a", torch.tensor([0.0, 0.0, 0.0, -0.0])),
        Net("a", torch.zeros(())),
        Net("a", torch.zeros(4, dtype=torch.bfloat16)),
        Net("a", torch.zeros(4, dtype=torch.bool)),
    ]
    digests = {weights_digest(net) for net in variants}
    assert len(digests) == len(variants)
    assert plain not in digests


def test_config_must_be_json() -> None:
    class Odd(ToyRecurrent):
        def config(self) -> dict[str, object]:
            return {"dtype": torch.float32}

    with pytest.raises(SpecError, match=r"config\(\) must hold JSON values only"):
        PolicySession(Odd())


def test_exec_id_sees_the_switches() -> None:
    base = PolicySession(ToyRecurrent())
    assert PolicySession(ToyRecurrent()).exec_id == base.exec_id
    torch.use_deterministic_algorithms(True)
    try:
        other = PolicySession(ToyRecurrent())
    finally:
        torch.use_deterministic_algorithms(False)
    assert other.state_id == base.state_id
    difference = base.exec_fingerprint.difference(other.exec_fingerprint)
    assert difference == ("torch.deterministic", "False", "True")


def test_layout_and_ports_must_agree() -> None:
    class Wrong(ToyRecurrent):
        def __init__(self, **changes: object) -> None:
            super().__init__()
            self.changes = changes

        def layout(self) -> tuple[BufferSpec, ...]:
            return (*super().layout(), *self.changes.get("specs", ()))  # type: ignore[misc]

        def ports(self) -> Ports:
            ports = self.changes.get("ports")
            return ports if isinstance(ports, Ports) else super().ports()

    good = ToyRecurrent().ports()
    key = BufferSpec("noise.key", (2,), torch.int64, Role.STATE)
    state = good.observations[0]
    cases: list[tuple[dict[str, object], str]] = [
        ({"specs": (key,)}, "'noise.key' belongs to the runtime"),
        ({"ports": Ports((Port("o", "nowhere", (4,)),), good.action)}, "no buffer 'nowhere'"),
        ({"ports": Ports((Port("o", "state_in", (3,)),), good.action)}, r"and shape \(3,\)"),
        ({"ports": Ports((Port("o", "rnn.h", (1, 16)),), good.action)}, "of role input"),
        ({"ports": Ports((state,), Port("action", "draw", (1, 3)))}, "of role output"),
        ({"ports": Ports((state, state), good.action)}, "declared twice"),
    ]
    for changes, words in cases:
        with pytest.raises(SpecError, match=words):
            PolicySession(Wrong(**changes))

    class Greedy(ToyChunk):
        n_action_steps = 7

    with pytest.raises(SpecError, match="n_action_steps <= chunk_size, found 7 and 6"):
        PolicySession(Greedy())
