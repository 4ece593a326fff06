"""The as-of sampler: which message counts at a moment, and in which words one does not.

A stale, missing or broken input that passed as an observation would move a robot on a guess.
"""

from __future__ import annotations

import numpy as np
import pytest
from contract_examples import MS, contract_dict, joint_state, point

from flashrt_ros.contract import Contract, Sampler


@pytest.fixture
def sampler() -> Sampler:
    return Sampler(Contract.from_dict(contract_dict()))


def test_names_decide_where_a_value_goes(sampler: Sampler) -> None:
    message = joint_state(["b", "spare", "a"], [2, 9, 1], [20, 90, 10])
    assert sampler.put("joint_states", message, 0).fault == ""
    sample = sampler.sample(0)
    assert sample.faults == ()
    assert sample.observations["observation.state"].tolist() == [1, 2, 10, 20]
    assert sample.measured is not None
    assert sample.measured.tolist() == [1, 2]
    assert sample.observations["observation.state"].dtype == np.float32


def test_stale_and_missing_are_faults_in_words(sampler: Sampler) -> None:
    assert sampler.sample(0).faults == ("observation.state (joint_states): no message",)
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [3, 4]), 0)
    assert sampler.sample(100 * MS).faults == ()
    (fault,) = sampler.sample(153 * MS).faults
    assert fault == "observation.state (joint_states): stale 153 ms > 100 ms"
    assert "observation.state" not in sampler.sample(153 * MS).observations


def test_optional_input_fills_and_flags(sampler: Sampler) -> None:
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [3, 4]), 0)
    assert sampler.sample(0).observations["observation.cue"].tolist() == [-1, -1, 0]
    sampler.put("cue", point(5, 6), 10 * MS)
    assert sampler.sample(70 * MS).observations["observation.cue"].tolist() == [5, 6, 1]
    late = sampler.sample(71 * MS)
    assert late.observations["observation.cue"].tolist() == [-1, -1, 0]
    assert late.faults == ()
    assert [stamp.present for stamp in late.stamps] == [True, False]
