"""Pins what evaluation makes a session do, and that it does the same to the bit each time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from evaluate_bags import write_arm, write_contract, write_hold

from flashrt_ros.cli import main
from flashrt_ros.errors import CorruptError
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options
from flashrt_ros.evaluate.track import Track


@pytest.fixture
def options(tmp_path: Path) -> Options:
    policy = write_hold(tmp_path / "hold")
    contract = write_contract(tmp_path / "arm.yaml")
    return Options((Candidate("hold", str(policy)),), str(contract))


def run(options: Options, *paths: Path) -> list[Track]:
    evaluator = Evaluator(options)
    tracks = [evaluator.run(path).tracks[0] for path in paths]
    evaluator.close()
    return tracks


def test_a_policy_that_holds_predicts_the_state(tmp_path: Path, options: Options) -> None:
    (track,) = run(options, write_arm(tmp_path / "arm.mcap", 40, lead=8))
    assert track.steps == 40
    assert track.stepped_T.all()
    assert np.array_equal(track.predicted_TA, track.state_TA)
    # Without limits what would have been sent is what was predicted.
    assert np.array_equal(track.sent_TA[8:], track.predicted_TA[8:])
    assert np.abs(track.predicted_TA[8:] - track.recorded_TA[:-8]).max() < 1e-6


def test_the_hash_is_that_of_the_source_and_not_of_what_ran_before(
    tmp_path: Path, options: Options
) -> None:
    one, other = write_arm(tmp_path / "one.mcap", 40), write_arm(tmp_path / "other.mcap", 41)
    first, second, again = run(options, one, other, one)
    assert first.digest == again.digest
    assert first.digest != second.digest, "the control"


def test_a_saved_track_is_the_same(tmp_path: Path, options: Options) -> None:
    (track,) = run(options, write_arm(tmp_path / "arm.mcap", 20))
    track.save(tmp_path / "track.npz")
    found = Track.load(tmp_path / "track.npz")
    assert found.digest == track.digest
    assert found.fault_T == track.fault_T
    assert found.names == track.names
    assert np.array_equal(found.latency_ms_T, track.latency_ms_T)
    assert all(np.array_equal(found.ages_ms[k], v) for k, v in track.ages_ms.items())
    found.sent_TA[3] += 1e-12
    found.save(tmp_path / "track.npz")
    with pytest.raises(CorruptError, match="found another content"):
        Track.load(tmp_path / "track.npz")


def test_the_command_writes_a_report(tmp_path: Path, options: Options) -> None:
    bag = write_arm(tmp_path / "arm.mcap", 20)
    words = ["evaluate", str(bag), "--policy", options.candidates[0].path]
    words += ["--contract", options.contract, "--json", str(tmp_path / "out.json")]
    assert main(words) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["format"] == "flashrt_ros.evaluate"
    assert report["runs"][0]["stepped"] == 20
    assert report["runs"][0]["digest"] == run(options, bag)[0].digest
