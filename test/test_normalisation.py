"""Pins normalisation to LeRobot's formulas, written out here, and to being undone exactly enough.

Statistics come from LeRobot datasets; another epsilon or another place for it would move a robot.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.normalisation import STATISTICS, Normalisation, Normaliser

STATS = {
    "mean": [1.0, -2.0, 0.0],
    "std": [0.5, 4.0, 0.0],
    "min": [-1.0, 0.0, 3.0],
    "max": [1.0, 10.0, 3.0],
    "q01": [-0.5, 1.0, 7.0],
    "q99": [0.5, 9.0, 7.0],
    "q10": [-0.25, 2.0, 7.0],
    "q90": [0.25, 8.0, 7.0],
}
MODES = list(Normalisation)


def made(mode: Normalisation) -> Normaliser:
    return Normaliser(mode, 3).set_(STATS)


def expected(mode: Normalisation, x: torch.Tensor) -> torch.Tensor:
    stat = {name: torch.tensor(value) for name, value in STATS.items()}
    if mode is Normalisation.IDENTITY:
        return x
    if mode is Normalisation.MEAN_STD:
        return (x - stat["mean"]) / (stat["std"] + 1e-8)
    low, high = STATISTICS[mode]
    width = stat[high] - stat[low]
    width = torch.where(width == 0, torch.tensor(1e-8), width)
    return 2 * (x - stat[low]) / width - 1


@pytest.mark.parametrize("mode", MODES)
def test_formulas_are_those_of_lerobot(mode: Normalisation) -> None:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) * 5
    assert torch.equal(made(mode).normalise(x), expected(mode, x))


def test_the_inverse_has_no_epsilon_in_a_deviation() -> None:
    restored = made(Normalisation.MEAN_STD).restore(torch.ones(3))
    assert restored.tolist() == [1.5, 2.0, 0.0]


@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if "std" not in STATISTICS[mode] and STATISTICS[mode]]
)
def test_a_range_of_zero_maps_its_value_to_minus_one_and_back(mode: Normalisation) -> None:
    normaliser = made(mode)
    value = torch.tensor(STATS[STATISTICS[mode][0]])
    assert normaliser.normalise(value)[2] == -1
    assert normaliser.restore(torch.full((3,), -1.0))[2] == value[2]


@pytest.mark.parametrize("mode", MODES)
@given(values=st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=2))
def test_restore_undoes_normalise(mode: Normalisation, values: list[float]) -> None:
    # The constant third element cannot be undone, by design.
    x = torch.tensor([*values, 0.0])
    back = made(mode).restore(made(mode).normalise(x))
    torch.testing.assert_close(back[:2], x[:2], rtol=1e-5, atol=1e-4)


def test_statistics_are_measured() -> None:
    samples = torch.randn(1000, 3, generator=torch.Generator().manual_seed(1)) * 2 + 1
    for mode in MODES:
        normaliser = Normaliser(mode, 3).measure_(samples)
        normaliser.require("x")
    x = Normaliser(Normalisation.MEAN_STD, 3).measure_(samples).normalise(samples)
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(3))
    x = Normaliser(Normalisation.MIN_MAX, 3).measure_(samples).normalise(samples)
    torch.testing.assert_close(x.amin(0), -torch.ones(3))
    torch.testing.assert_close(x.amax(0), torch.ones(3))


@pytest.mark.parametrize("mode", MODES[1:])
def test_missing_statistics_are_refused(mode: Normalisation) -> None:
    name = STATISTICS[mode][1]
    with pytest.raises(InvalidArgumentError, match=f"needs the statistic '{name}'"):
        Normaliser(mode, 3).set_({key: value for key, value in STATS.items() if key != name})
    # Never set: NaN, which no value of a checkpoint can be.
    with pytest.raises(CheckpointError, match=f"here: statistic '{STATISTICS[mode][0]}'.*finite"):
        Normaliser(mode, 3).require("here")
    assert torch.isnan(Normaliser(mode, 3).normalise(torch.zeros(3))).all()


@pytest.mark.parametrize(
    ("mode", "changed", "words"),
    [
        (Normalisation.MEAN_STD, {"std": [1.0, -1.0, 1.0]}, "expected no negative value"),
        (Normalisation.MEAN_STD, {"mean": [0.0]}, r"expected shape \(3,\), found \(1,\)"),
        (Normalisation.MIN_MAX, {"max": [0.0, -1.0, 4.0]}, "expected min <= max"),
        (Normalisation.QUANTILES, {"q01": [0.0, float("inf"), 0.0]}, "expected finite values"),
    ],
)
def test_impossible_statistics_are_refused(
    mode: Normalisation, changed: dict[str, list[float]], words: str
) -> None:
    normaliser = Normaliser(mode, 3)
    with pytest.raises(InvalidArgumentError, match=words):
        normaliser.set_({**STATS, **changed})
    assert all(torch.isnan(buffer).all() for buffer in normaliser.buffers())
