"""Recordings are computed again to the last bit, whatever kind of policy and whatever verbs.

Each policy is driven through random verbs, late plans, jumps in time, unsafe starts and other
tasks by the node's own control step; then its recording must reproduce whole. Each finding has a
recording that was tampered with in one place.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import xxhash

pytest.importorskip("flashrt_ros.msg")

from contract_examples import contract_dict
from stormy import KINDS, Make, Stormy
from tape import Row

from flashrt_ros.contract import Contract
from flashrt_ros.errors import InvalidArgumentError, NotFoundError
from flashrt_ros.evaluate.reproduce.finding import Lost, Reproduction, Verdict
from flashrt_ros.evaluate.reproduce.work import reproduce
from flashrt_ros.ros.records import EventKind
from flashrt_ros.runtime.policy import PlanKind, Policy


@pytest.fixture
def stormy(tmp_path: Path) -> Iterator[Callable[..., Stormy]]:
    made: list[Stormy] = []

    def make(kind: Make, seed: int, **changes: Any) -> Stormy:
        made.append(Stormy(kind, random.Random(seed), tmp_path / "capsules", **changes))
        return made[-1]

    yield make
    for each in made:
        each.close()


def again(life: Stormy, kind: Make, bag: Path, folder: Path | None = None) -> Reproduction:
    return reproduce(bag, kind(), life.rig.contract, folder)


CONFIG = Path(__file__).parents[1] / "config"
REPORT = json.loads((CONFIG / "evaluate.schema.json").read_text())
SCHEMA = REPORT["properties"]["reproduction"]["items"]
SEEDS = {"rows": (1,), "beside with noise": (0, 1, 2)}


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(kind, seed, id=f"{name}, {seed}")
        for name, kind in KINDS.items()
        for seed in SEEDS.get(name, (0, 1))
    ],
)
def test_whatever_happens_is_reproduced(
    kind: Make, seed: int, stormy: Callable[..., Stormy], tmp_path: Path
) -> None:
    # Unsafe starts lead up to what is wanted, or are refused and their steps taken back.
    how = {"max_distance": 6.0} if seed == 1 else {"max_distance": 0.05, "ramp_s": 0.1}
    how = {
        "start": {**contract_dict()["start"], **how},
        "on_time_jump": ("hold", "reset")[seed == 1],
    }
    ahead = (3, -1, 0)[seed] if kind().plan_kind is PlanKind.BESIDE else 0
    life = stormy(kind, seed, plan_ahead=ahead, **how)
    life.rig.options.publish_state_digest = seed == 1
    life.live(50)
    bag = life.tape.write(tmp_path / "bag")
    alone = again(life, kind, bag)
    assert alone.verdict is Verdict.REPRODUCED, alone.text()
    found = again(life, kind, bag, tmp_path / "capsules")
    assert found.verdict is Verdict.REPRODUCED, found.text()
    assert found.reproduced == found.steps == len(life.rig.out.steps) > 100
    assert found.changes == []
    json.dumps(found.to_dict(), allow_nan=False)
    assert {"restore", "reset", "snapshot", "fork"} <= found.verbs.keys()
    records = life.rig.out.steps
    assert any(step.ramp_from.size for step in records) == (seed != 1), "ramps were done again"
    if ahead:
        assert any(s.plan is not None and s.plan.tick < s.tick for s in records)


class Cut:
    """A life of which a recording is tampered with."""

    kind = KINDS["beside with a history"]

    def __init__(self, life: Stormy, folder: Path) -> None:
        self.life, self.folder = life, folder
        self._bags = 0

    def find(
        self,
        edit: Callable[[Row], Row | None] = lambda row: row,
        make: Make = kind,
        capsules: bool = False,
        contract: Contract | None = None,
    ) -> Reproduction:
        self._bags += 1
        bag = self.life.tape.write(self.folder / f"bag{self._bags}", edit)
        folder = self.folder / "capsules" if capsules else None
        return reproduce(bag, make(), contract or self.life.rig.contract, folder)

    def rows(self, name: str) -> list[Row]:
        return [row for row in self.life.tape.rows if row.topic.endswith(name)]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    folder = tmp_path_factory.mktemp("cut")
    life = Stormy(Cut.kind, random.Random(5), folder / "capsules")
    life.live(25)
    yield Cut(life, folder)
    life.close()


def test_one_weight(cut: Cut) -> None:
    def other() -> Policy:
        policy = Cut.kind()
        weight = next(iter(policy.module().parameters()))
        weight.data[0, 0] = torch.nextafter(weight.data[0, 0], torch.tensor(9.0))
        return policy

    found = cut.find(make=other)
    assert found.verdict is Verdict.DIFFERS
    assert [change.what for change in found.changes] == ["policy.weights"]
    first = found.first
    assert first is not None
    assert first.what == "predicted"
    assert first.recorded != first.computed
    assert first.inputs
    jsonschema.validate(found.to_dict(), SCHEMA)
    words = found.text()
    assert "DIFFERS" in words
    assert "changed: policy.weights" in words
    assert cut.find().verdict is Verdict.REPRODUCED, "control"
    assert any(step.limited_from.size for step in cut.life.tape.steps), "limits were done again"


def used(cut: Cut) -> Row:
    """An input message in the middle that a plan was made from."""
    steps = [s for s in cut.life.tape.steps if s.adopted]
    stamp = steps[len(steps) // 2].observations[0]
    (row,) = (
        row
        for row in cut.rows("/joint_states")
        if xxhash.xxh3_64_intdigest(row.cdr) == stamp.digest
    )
    return row


def test_one_byte_of_an_input(cut: Cut) -> None:
    victim = used(cut)
    changed = bytearray(victim.cdr)
    changed[-20] ^= 1
    found = cut.find(lambda row: row._replace(cdr=bytes(changed)) if row is victim else row)
    assert found.verdict is Verdict.INCOMPLETE
    (gap,) = found.gaps
    assert gap.lost is Lost.INPUT
    assert "was changed: the one with its header stamp has xxh3" in gap.words
    assert found.reproduced + gap.steps == found.steps
    assert gap.steps


def test_an_input_that_the_recorder_lost(cut: Cut) -> None:
    victim = used(cut)
    found = cut.find(lambda row: None if row is victim else row)
    assert found.verdict is Verdict.INCOMPLETE
    jsonschema.validate(found.to_dict(), SCHEMA)
    (gap,) = found.gaps
    (message,) = gap.inputs
    assert (gap.lost, message.topic) == (Lost.INPUT, "/joint_states")
    assert message.digest == f"{xxhash.xxh3_64_intdigest(victim.cdr):016x}"
    place = cut.rows("/joint_states").index(victim)
    assert message.sequence == place + 1
    assert f"message {place + 1} with xxh3 {message.digest} is not there" in found.text()


def test_a_message_that_no_step_used_is_not_missed(cut: Cut) -> None:
    """The control of the two tests before."""
    wanted = {
        stamp.digest
        for step in cut.life.tape.steps
        for stamp in [*step.observations, *step.act_observations]
    }
    spare = [
        row for row in cut.rows("/joint_states") if xxhash.xxh3_64_intdigest(row.cdr) not in wanted
    ]
    assert spare
    assert cut.find(lambda row: None if row in spare else row).verdict is Verdict.REPRODUCED


@pytest.mark.parametrize("kind", ["RESET", "RESTORE", "ROLLBACK", "SNAPSHOT", "FORK"])
def test_a_verb_that_the_recorder_lost(cut: Cut, kind: str) -> None:
    rows = cut.rows("/capsule_event")
    of_kind = [row for row in rows[:-1] if row.decoded().kind == EventKind[kind]]
    victim = of_kind[len(of_kind) // 2]
    found = cut.find(lambda row: None if row is victim else row)
    assert found.verdict is not Verdict.REPRODUCED
    number = victim.decoded().sequence
    lost = [gap for gap in found.gaps if gap.lost is Lost.EVENT]
    assert any(f"message {number} of the topic" in gap.words for gap in lost)
    changes = kind in ("RESET", "RESTORE", "ROLLBACK")
    assert any("a verb that led from generation" in gap.words for gap in lost) == changes


def test_a_step_that_the_recorder_lost(cut: Cut) -> None:
    rows = [row for row in cut.rows("/policy_step") if row.decoded().step > 2]
    victim = rows[len(rows) // 2]
    found = cut.find(lambda row: None if row is victim else row)
    assert found.verdict is Verdict.INCOMPLETE
    gap = found.gaps[0]
    assert (gap.lost, gap.words) == (Lost.STEP, f"tick {victim.decoded().tick}")
    assert f"policy_step lost: tick {victim.decoded().tick + 1}" in found.text()


def test_one_bit_of_a_recorded_action(cut: Cut) -> None:
    rows = cut.rows("/policy_step")
    victim = rows[len(rows) // 2]
    step = victim.decoded()
    before = step.action.tobytes()
    other = (step.action.view(np.uint64) ^ np.uint64(1)).tobytes()
    assert victim.cdr.count(before) == (2 if before == step.predicted.tobytes() else 1)
    raw = victim.cdr.replace(before, other, 1)
    found = cut.find(lambda row: row._replace(cdr=raw) if row is victim else row)
    assert found.verdict is Verdict.DIFFERS
    assert found.differing == 1
    assert found.first is not None
    assert found.first.where.tick == step.tick
    assert found.first.what == "action"
    assert "the policy's own action is equal" in found.first.words


def test_without_provenance_it_is_said_that_nothing_can_be_compared(cut: Cut) -> None:
    found = cut.find(lambda row: None if row.topic.endswith("/provenance") else row)
    assert found.verdict is Verdict.REPRODUCED
    assert any("/policy/provenance: none recorded" in words for words in found.remarks)


@pytest.mark.parametrize("damaged", ["~", "[]"])
@pytest.mark.parametrize("field", ["state_facts", "contract"])
def test_a_damaged_document_among_the_provenance_is_not_used(
    field: str, damaged: str, cut: Cut
) -> None:
    (victim,) = cut.rows("/provenance")
    text = getattr(victim.decoded(), field).encode()
    raw = victim.cdr.replace(text, damaged.encode().ljust(len(text)))
    found = cut.find(lambda row: row._replace(cdr=raw) if row is victim else row)
    assert found.verdict is Verdict.REPRODUCED
    assert any(f"/policy/provenance: {field} is damaged" in words for words in found.remarks)


@pytest.mark.parametrize(
    "name", ["/policy_step", "/capsule_event", "/provenance", "/joint_states"]
)
def test_messages_that_two_recorders_wrote_count_once(name: str, cut: Cut) -> None:
    rows = cut.life.tape.rows
    cut.life.tape.rows = [row for row in rows for _ in range(1 + row.topic.endswith(name))]
    try:
        found = cut.find()
    finally:
        cut.life.tape.rows = rows
    assert found.verdict is Verdict.REPRODUCED, found.text()
    assert found.reproduced == len(cut.life.tape.steps)
    told = f"/policy{name}: {len(cut.rows(name))} messages are there twice"
    assert (told in found.remarks) == (name != "/joint_states")


def test_a_recording_that_begins_late_goes_on_from_what_is_known(cut: Cut) -> None:
    steps = cut.life.tape.steps
    resets = [s.tick for s in steps if s.step == 0 and not s.capsule and s.tick > 10]
    assert resets

    rows = cut.life.tape.rows
    first = next(r for r in cut.rows("/policy_step") if r.decoded().tick == 5)
    early = rows[: rows.index(first)]
    found = cut.find(lambda row: None if row in early else row)
    assert found.verdict is Verdict.INCOMPLETE
    assert found.gaps[0].lost is Lost.START
    assert 0 < found.reproduced < found.steps


def test_a_saved_capsule_is_a_beginning(stormy: Callable[..., Stormy], tmp_path: Path) -> None:
    kind = KINDS["advances with noise"]
    life = stormy(kind, 0)
    rig = life.rig
    rig.tick(20)
    rig.ask("snapshot", name="here")
    assert life.later("save_capsule", name="here", file="here")
    begun = len(life.tape.rows)
    rig.tick(20)
    rows = life.tape.rows
    life.tape.rows = [row for row in rows[begun:] if not row.topic.endswith("provenance")]
    bag = life.tape.write(tmp_path / "late")
    without = again(life, kind, bag)
    assert (without.reproduced, without.gaps[0].lost) == (0, Lost.START)
    with_folder = again(life, kind, bag, tmp_path / "capsules")
    assert with_folder.verdict is Verdict.REPRODUCED, with_folder.text()
    assert with_folder.steps == len(life.tape.steps) > 10


def test_saved_capsules_are_compared_with_what_was_computed(cut: Cut) -> None:
    life = cut.life
    life.rig.ask("snapshot", name="kept")
    assert life.later("save_capsule", name="kept", file="kept")
    found = cut.find(capsules=True)
    assert found.verdict is Verdict.REPRODUCED
    assert found.capsules

    def other() -> Policy:
        policy = Cut.kind()
        next(iter(policy.module().parameters())).data.mul_(1.5)
        return policy

    strange = cut.find(make=other, capsules=True)
    assert strange.verdict is Verdict.DIFFERS
    assert strange.capsules == 0, "control"


def test_another_contract(cut: Cut) -> None:
    fields = json.loads(cut.life.rig.contract.document)
    fields["actions"][0]["max_step"] = 0.01
    found = cut.find(contract=Contract.from_dict(fields))
    assert found.verdict is Verdict.DIFFERS
    assert found.first is not None
    assert found.first.what == "action"
    (change,) = found.changes
    assert change.what == "contract: actions[0].max_step"
    fields = json.loads(cut.life.rig.contract.document)
    names = fields["observations"][0]["parts"][0]["names"]
    names.reverse()
    assert cut.find(contract=Contract.from_dict(fields)).verdict is Verdict.DIFFERS


def test_two_configures_in_one_recording(stormy: Callable[..., Stormy], tmp_path: Path) -> None:
    kind = KINDS["beside with noise"]
    lives = [stormy(kind, seed) for seed in (3, 4)]
    lives[1].rig.now_ns += 10**12
    for life in lives:
        life.live(10)
    lives[0].tape.rows += lives[1].tape.rows
    found = again(lives[0], kind, lives[0].tape.write(tmp_path / "bag"))
    assert found.verdict is Verdict.REPRODUCED, found.text()
    assert found.steps == sum(len(life.rig.out.steps) for life in lives)


def test_of_several_nodes_one_is_named(stormy: Callable[..., Stormy], tmp_path: Path) -> None:
    kind = KINDS["advances with noise"]
    left, right = stormy(kind, 6), stormy(kind, 7)
    for life in (left, right):
        life.live(5)
    right.tape.rows = [
        row._replace(topic=row.topic.replace("/policy/", "/right/policy/"))
        for row in right.tape.rows
    ]
    left.tape.rows += right.tape.rows
    bag = left.tape.write(tmp_path / "bag")
    with pytest.raises(InvalidArgumentError, match="those of /policy, /right/policy; say --node"):
        again(left, kind, bag)
    for node, life in (("/policy", left), ("right/policy", right)):
        found = reproduce(bag, kind(), node=node)
        assert found.verdict is Verdict.REPRODUCED, found.text()
        assert found.steps == len(life.rig.out.steps)
    with pytest.raises(NotFoundError, match="no /other/policy_step"):
        reproduce(bag, kind(), node="other")


def test_what_is_no_recording_of_ours_is_refused(cut: Cut) -> None:
    with pytest.raises(NotFoundError, match="expected a recording of our node with ~/policy_step"):
        cut.find(lambda row: None if row.topic.endswith("/policy_step") else row)
