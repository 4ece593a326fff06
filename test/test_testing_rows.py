"""The conformance suite on policies with rows: sound ones pass, each breach is found and named."""

from __future__ import annotations

import pytest
import torch
from ledger_policy import Beside, Ledger, Planned

from flashrt_ros.policies.attention import AttentionPolicy
from flashrt_ros.runtime.buffers import ROWS_LENGTH
from flashrt_ros.runtime.policy import Buffers
from flashrt_ros.testing import check_policy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


class Rewriting(Ledger):
    """Puts the newest stamp into the first row as well."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        state["tape"][0].add_(1)


class Seldom(Ledger):
    """Rewrites one bit of the row before the last, from the fourth row on."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        before_1 = (state[ROWS_LENGTH] - 2).clamp(min=0)
        late_1 = (state[ROWS_LENGTH] >= 4).to(torch.uint8)
        old_12 = state["mark"].index_select(0, before_1)
        state["mark"].index_copy_(0, before_1, old_12 ^ late_1)
        super().act(state, inputs, outputs)


class Cropping(Ledger):
    """Takes rows back, as no lineage can."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        state[ROWS_LENGTH].sub_((state[ROWS_LENGTH] > 5).to(torch.int64) * 2)


class Hasty(Ledger):
    """Appends more than it says."""

    rows_per_act = 1

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        state[ROWS_LENGTH].add_(1)


class Peeking(Ledger):
    """Adds up all rows there is room for, committed or not."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs["out"].add_(state["mark"].to(torch.float32).sum())


class Multiplying(AttentionPolicy):
    """Weighs rows that are not committed with zero, which does not remove what is no number."""

    family = "multiplying"

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        values_TLK = state["layers.0.v"]
        known_T = torch.arange(len(values_TLK), device=values_TLK.device) < state[ROWS_LENGTH]
        outputs["action"].add_((values_TLK * known_T.view(-1, 1, 1)).sum())


class EagerPlanner(Beside):
    """Appends in the plan already, which runs beside."""

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().plan(state, inputs, outputs)
        Ledger.act(self, state, inputs, outputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [Ledger, Planned, Beside])
def test_sound_policies_pass(make: type[Ledger], device: str) -> None:
    report = check_policy(make(120), device=device)
    assert report.ok, str(report)
    assert "append_only" in report.passed


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (Rewriting, "append_only", "act rewrites committed rows of tape; only append"),
        (Seldom, "append_only", "act rewrites committed rows of mark; only append"),
        (Cropping, "append_only", "rises by -"),
        (Hasty, "append_only", "act: rows.length rises by 2, expected 0 to 1"),
        (Peeking, "garbage", "random bytes change the run"),
        (Multiplying, "garbage", "random bytes change the run"),
        (EagerPlanner, "plan_kind", "plan writes to state tape"),
    ],
)
def test_breaches_are_found(make: type[Ledger], check: str, words: str) -> None:
    report = check_policy(make(capacity=120))
    assert any(words in problem for problem in report.failures.get(check, ())), str(report)


def test_episodes_fit_into_the_capacity_or_the_check_says_so() -> None:
    assert check_policy(Ledger(capacity=40)).steps == 6
    report = check_policy(Ledger(capacity=6))
    assert "larger capacity" in str(report)
