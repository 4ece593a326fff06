"""Our ACT gives LeRobot's actions to the last bit, on the CPU in float32, step after step.

LeRobot writes the checkpoint and runs it with its own processors and its deque or ensembler; we
read the same directory. Where our networks or normalisation differed by one rounding, 200 steps of
random observations would show it. The control is one observation that is another.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from act_files import SMALL, VARIANTS, observations, write_act
from lerobot_files import FRONT, MODES, STATE, statistics
from lerobot_oracle import Oracle, oracle, save

from flashrt_ros.policies.lerobot.changes import CHANGES
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession

pytestmark = oracle

FEW = 16
STEPS = {"camera": 200, "ensemble": 200, "vectors": 200}


def saved(directory: Path, **changed: Any) -> tuple[Path, dict[str, Any]]:
    settings = {**SMALL, **changed}
    stats = statistics(settings["input_features"], settings["output_features"])
    return save(directory, settings, stats), settings["input_features"]


def ours(directory: Path, rows: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    session = PolicySession(load_policy(directory))
    return torch.stack([session.step(row).values for row in rows])


@pytest.mark.parametrize("variant", VARIANTS)
def test_actions_are_bit_equal(tmp_path: Path, variant: str) -> None:
    directory, inputs = saved(tmp_path, **VARIANTS[variant])
    rows = list(itertools.islice(observations(inputs), STEPS.get(variant, FEW)))
    # LeRobot looks at the state's device even where the policy has no state.
    seen = [{STATE: torch.zeros(3), **row} for row in rows]
    expected = Oracle(directory).run(seen)
    found = ours(directory, rows)
    assert torch.equal(found, expected)
    # The control: from the step of another observation on, or from the next plan on.
    rows[5] = {name: value + 0.01 for name, value in rows[5].items()}
    rows[4] = rows[8] = rows[5]
    changed = ours(directory, rows)
    assert torch.equal(changed[:4], expected[:4])
    assert not torch.equal(changed[4:12], expected[4:12])


def test_an_ensemble_with_images_over_200_steps(tmp_path: Path) -> None:
    directory, inputs = saved(tmp_path, **{**VARIANTS["camera"], **VARIANTS["ensemble"]})
    rows = list(itertools.islice(observations(inputs), 200))
    assert torch.equal(ours(directory, rows), Oracle(directory).run(rows))


def test_another_coefficient_gives_other_actions(tmp_path: Path) -> None:
    directory, inputs = saved(tmp_path, **VARIANTS["ensemble"])
    rows = list(itertools.islice(observations(inputs), 20))
    expected = Oracle(directory).run(rows)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "temporal_ensemble_coeff": 0.02}))
    assert not torch.equal(ours(directory, rows), expected)


def test_an_ensemble_that_is_switched_on_beside_a_checkpoint(tmp_path: Path) -> None:
    directory, inputs = saved(tmp_path, **VARIANTS["camera"])
    rows = list(itertools.islice(observations(inputs), 30))
    queue = ours(directory, rows)
    (directory / CHANGES).write_text(json.dumps({"temporal_ensemble_coeff": 0.01}))
    found = ours(directory, rows)
    assert torch.equal(found, Oracle(directory, **VARIANTS["ensemble"]).run(rows))
    assert not torch.equal(found, queue)


@pytest.mark.parametrize("mode", ["MIN_MAX", "QUANTILES", "QUANTILE10", "IDENTITY"])
def test_normalisation_is_bit_equal(tmp_path: Path, mode: str) -> None:
    directory, inputs = saved(
        tmp_path, **VARIANTS["camera"], normalization_mapping=dict.fromkeys(MODES, mode)
    )
    rows = list(itertools.islice(observations(inputs), FEW))
    assert torch.equal(ours(directory, rows), Oracle(directory).run(rows))


def test_constant_elements_are_bit_equal(tmp_path: Path) -> None:
    """A joint that never moved in the data has a range of zero, and a deviation of zero."""
    for mode in ("MIN_MAX", "MEAN_STD"):
        settings = {**SMALL, "normalization_mapping": dict.fromkeys(("STATE", "ACTION"), mode)}
        stats = statistics(settings["input_features"], settings["output_features"])
        for found in stats.values():
            for low, high in (("min", "max"), ("q01", "q99")):
                found[high][0] = found[low][0]
            found["std"][0] = 0.0
        directory = save(tmp_path / mode, settings, stats)
        rows = list(itertools.islice(observations(settings["input_features"]), FEW))
        for row in rows:  # as the sensor would give it
            row[STATE][0] = stats[STATE]["min" if mode == "MIN_MAX" else "mean"][0]
        assert torch.equal(ours(directory, rows), Oracle(directory).run(rows))


@pytest.mark.parametrize("variant", ["vectors", "everything", "pre-norm", "resnet34"])
def test_lerobot_reads_what_our_writer_writes(tmp_path: Path, variant: str) -> None:
    """So the tests that run without LeRobot read what LeRobot would have written."""
    theirs, inputs = saved(tmp_path / "theirs", **VARIANTS[variant])
    theirs_ = json.loads((theirs / "config.json").read_text())
    version = "0.6" if "pretrained_revision" in theirs_ else "0.4"
    changed = {**VARIANTS[variant], "use_vae": False}
    written = write_act(tmp_path / "written", version, **changed)
    assert {p.name for p in written.iterdir()} == {p.name for p in theirs.iterdir()}
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        assert json.loads((written / name).read_text()) == json.loads((theirs / name).read_text())
    ours_ = json.loads((written / "config.json").read_text())
    assert set(ours_) == set(theirs_) - {"optimizer_weight_decay", "optimizer_lr_backbone"}
    rows = list(itertools.islice(observations(inputs), FEW))
    assert torch.equal(ours(written, rows), Oracle(written).run(rows))


def test_images_of_our_port_are_those_of_lerobot(tmp_path: Path) -> None:
    """Channels first and from 0 to 1: other images would make other actions, without a word."""
    directory, inputs = saved(tmp_path, **VARIANTS["camera"])
    row = next(observations(inputs))
    expected = Oracle(directory).step(row)
    assert torch.equal(ours(directory, [row])[0], expected)
    assert not torch.equal(ours(directory, [{**row, FRONT: row[FRONT] * 255}])[0], expected)
