"""Normalisation is the checkpoint's, and a statistic that is not there is never passed over.

An action that was not brought back to its units would move a robot to the wrong place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lerobot_files import (
    ACTION,
    FRONT,
    MODES,
    STATE,
    edit_json,
    edit_tensors,
    feature,
    statistics,
    write_checkpoint,
)

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser, make_normaliser

ENV = "observation.environment_state"
INPUTS = {
    STATE: feature("STATE", 3),
    ENV: feature("ENV", 4),
    FRONT: feature("VISUAL", 3, 8, 12),
}
OUTPUTS = {ACTION: feature("ACTION", 2)}
STATS = statistics(INPUTS, OUTPUTS)
BEFORE, BEHIND = "policy_preprocessor.json", "policy_postprocessor.json"
BEFORE_STATS = "policy_preprocessor_step_3_normalizer_processor.safetensors"
BEHIND_STATS = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"


def write(directory: Path, version: str = "0.4", **modes: str) -> Path:
    config = {
        "type": "toy",
        "input_features": INPUTS,
        "output_features": OUTPUTS,
        "normalization_mapping": {**MODES, **modes},
    }
    return write_checkpoint(directory, config, {}, STATS, version)


def made(directory: Path) -> CheckpointNormaliser:
    return make_normaliser(read_checkpoint(directory))


def range_of(mode: str, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = {
        "MIN_MAX": ("min", "max"),
        "QUANTILES": ("q01", "q99"),
        "QUANTILE10": ("q10", "q90"),
    }[mode]
    return STATS[name][low], STATS[name][high]


@pytest.mark.parametrize("version", ["0.4", "0.6", "old"])
def test_mean_and_deviation(tmp_path: Path, version: str) -> None:
    normaliser = made(write(tmp_path, version))
    x, image = torch.rand(3), torch.rand(3, 8, 12)
    assert normaliser.modes() == {
        STATE: "mean_std",
        ENV: "identity",
        FRONT: "mean_std",
        ACTION: "mean_std",
    }
    found = STATS[STATE]
    assert torch.equal(normaliser.normalise(STATE, x), (x - found["mean"]) / (found["std"] + 1e-8))
    found = STATS[FRONT]
    expected = (image - found["mean"]) / (found["std"] + 1e-8)
    assert torch.equal(normaliser.normalise(FRONT, image), expected)
    assert torch.equal(normaliser.normalise(ENV, x), x)
    found = STATS[ACTION]
    y = torch.rand(5, 2)
    assert torch.equal(normaliser.restore(y), y * found["std"] + found["mean"])


@pytest.mark.parametrize("mode", ["MIN_MAX", "QUANTILES", "QUANTILE10"])
def test_ranges(tmp_path: Path, mode: str) -> None:
    normaliser = made(write(tmp_path, STATE=mode, ENV=mode, ACTION=mode, VISUAL="IDENTITY"))
    x = torch.rand(4)
    low, high = range_of(mode, ENV)
    assert torch.equal(normaliser.normalise(ENV, x), 2 * (x - low) / (high - low) - 1)
    low, high = range_of(mode, ACTION)
    torch.testing.assert_close(
        normaliser.restore(torch.tensor([-1.0, 1.0])), torch.stack([low[0], high[1]])
    )
    assert torch.equal(normaliser.normalise(FRONT, x), x)


def test_old_statistics_of_min_and_max(tmp_path: Path) -> None:
    normaliser = made(write(tmp_path, "old", ACTION="MIN_MAX"))
    low, high = range_of("MIN_MAX", ACTION)
    torch.testing.assert_close(normaliser.restore(torch.ones(2)), high)
    torch.testing.assert_close(normaliser.restore(-torch.ones(2)), low)


def test_the_epsilon_is_the_steps_own(tmp_path: Path) -> None:
    edit_json(write(tmp_path) / BEFORE, lambda v: v["steps"][3]["config"].update(eps=0.5))
    x, found = torch.rand(3), STATS[STATE]
    assert torch.equal(
        made(tmp_path).normalise(STATE, x), (x - found["mean"]) / (found["std"] + 0.5)
    )


def test_only_some_observations(tmp_path: Path) -> None:
    def only(value: Any) -> None:
        value["steps"][3]["config"]["normalize_observation_keys"] = [STATE]

    edit_json(write(tmp_path) / BEFORE, only)
    modes = made(tmp_path).modes()
    assert (modes[STATE], modes[FRONT]) == ("mean_std", "identity")


def test_flat_statistics_of_images(tmp_path: Path) -> None:
    def flatten(tensors: Any) -> None:
        for name in ("mean", "std"):
            tensors[f"{FRONT}.{name}"] = tensors[f"{FRONT}.{name}"].flatten()

    image = torch.rand(3, 8, 12)
    expected = made(write(tmp_path)).normalise(FRONT, image)
    edit_tensors(tmp_path / BEFORE_STATS, flatten)
    assert torch.equal(made(tmp_path).normalise(FRONT, image), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("file", "key"), [(BEFORE_STATS, f"{FRONT}.std"), (BEHIND_STATS, f"{ACTION}.mean")]
)
def test_statistics_that_are_no_numbers(tmp_path: Path, file: str, key: str, value: float) -> None:
    edit_tensors(write(tmp_path) / file, lambda tensors: tensors[key].fill_(value))
    name, statistic = key.rsplit(".", 1)
    with pytest.raises(CheckpointError, match=f"'{name}'.*'{statistic}'.*expected finite values"):
        made(tmp_path)


@pytest.mark.parametrize(
    ("file", "name"), [(BEFORE_STATS, STATE), (BEFORE_STATS, FRONT), (BEHIND_STATS, ACTION)]
)
@pytest.mark.parametrize("statistics", [["mean"], ["mean", "std", "count"]])
def test_missing_statistics(tmp_path: Path, file: str, name: str, statistics: list[str]) -> None:
    def drop(tensors: Any) -> None:
        for statistic in statistics:
            del tensors[f"{name}.{statistic}"]

    edit_tensors(write(tmp_path) / file, drop)
    with pytest.raises(CheckpointError, match=f"'{name}': statistic 'mean' .* is missing"):
        made(tmp_path)


@pytest.mark.parametrize("group", ["normalize_inputs", "unnormalize_outputs"])
def test_an_old_checkpoint_without_statistics(tmp_path: Path, group: str) -> None:
    def drop(tensors: Any) -> None:
        for name in [name for name in tensors if name.startswith(group)]:
            del tensors[name]

    edit_tensors(write(tmp_path, "old") / "model.safetensors", drop)
    with pytest.raises(CheckpointError, match=f"{group}: .* statistic 'mean' .* is missing"):
        made(tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (BEFORE, lambda c: c["norm_map"].update(STATE="LOG"), "expected one of IDENTITY.*'LOG'"),
        (BEFORE, lambda c: c["features"].pop(STATE), "expected STATE of .3,. .*found no such"),
        (BEFORE, lambda c: c["features"][STATE].update(shape=[4]), "found STATE of .4,."),
        (BEFORE, lambda c: c.pop("norm_map"), "'norm_map' is missing"),
        (BEFORE, lambda c: c.update(eps=-1), "eps: expected a finite number of at least 0"),
        (BEHIND, lambda c: c["norm_map"].update(ACTION="LOG"), "'action'.*found 'LOG'"),
    ],
)
def test_a_wrong_step(tmp_path: Path, file: str, change: Any, words: str) -> None:
    at = {BEFORE: 3, BEHIND: 0}[file]
    edit_json(write(tmp_path) / file, lambda value: change(value["steps"][at]["config"]))
    with pytest.raises(CheckpointError, match=words):
        made(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda v: v["steps"].insert(3, {"registry_name": "image_crop_resize_processor"}),
            r"steps\[3\] \(image_crop_resize_processor\): this step is not known here",
        ),
        (lambda v: v["steps"].pop(3), "expected one step 'normalizer_processor'.*found 0"),
        (lambda v: v["steps"].append(v["steps"][3]), "'normalizer_processor'.*found 2"),
        (
            lambda v: v["steps"][2]["config"].update(float_dtype="bfloat16"),
            "float_dtype: expected null or float32, found 'bfloat16'",
        ),
    ],
)
def test_steps_that_nobody_would_run(tmp_path: Path, change: Any, words: str) -> None:
    edit_json(write(tmp_path) / BEFORE, change)
    with pytest.raises(CheckpointError, match=words):
        made(tmp_path)


@pytest.mark.parametrize("missing", [BEFORE, BEHIND])
def test_one_processor_alone(tmp_path: Path, missing: str) -> None:
    (write(tmp_path) / missing).unlink()
    with pytest.raises(CheckpointError, match=f"but {missing} is missing"):
        made(tmp_path)
