"""The fast arithmetic calculates the same, and is refused where it does not come near enough.

In float32 everything that it folds, fuses and batches must leave the actions as they are but for
the last bits; in float16 within the limit that it promises. The guard is tried with weights that
were spoilt by a known amount: a guard that always agrees would pass everything else. What only a
GPU has is in ``test_cuda_fast.py``.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from act_files import write_act
from diffusion_files import write
from fast_policies import NAMES, fast_predictor, write_named
from lerobot_files import ACTION, STATE, edit_json
from safetensors.torch import save_file

from flashrt_ros.bench.fast import recorded
from flashrt_ros.errors import CheckpointError, InvalidArgumentError, UnsupportedError
from flashrt_ros.policies.fast import deviation
from flashrt_ros.policies.fast.norm import windows
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.buffers import Role
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.fingerprint import exec_fingerprint, state_fingerprint
from flashrt_ros.runtime.session import PolicySession

CPU = torch.device("cpu")


def strayed(predictor: Any, count: int = 2) -> deviation.Deviation:
    found = predictor.compare(count, CPU)
    assert found is not None
    assert found.observations == count
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_calculates_the_same(name: str, tmp_path: Path) -> None:
    directory = write_named(tmp_path, name)
    assert strayed(fast_predictor(directory, torch.float32)).share < 2e-5
    half = strayed(fast_predictor(directory, torch.float16))
    assert 2e-5 < half.share < deviation.LIMIT, half.words


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("act: camera", "backbone.blocks.0.convs.0.weight"),
        ("diffusion: camera", "encoders.0.out.weight"),
        ("diffusion: ddim", "unet.film_weight"),
        ("diffusion: shift alone", "unet.grow.0.bias"),
    ],
)
def test_the_guard_finds_what_was_spoilt(name: str, weight: str, tmp_path: Path) -> None:
    predictor = fast_predictor(write_named(tmp_path, name), torch.float32)
    strayed(predictor).check()
    tensors = {**dict(predictor._fast.named_parameters()), **dict(predictor._fast.named_buffers())}
    with torch.no_grad():
        tensors[weight].add_(0.5)
    found = strayed(predictor)
    with pytest.raises(UnsupportedError, match=r"at most 1 %, found: fast actions strayed .* use"):
        found.check()


def test_the_share_is_of_the_range(tmp_path: Path) -> None:
    predictor = fast_predictor(write_act(tmp_path), torch.float32)
    normaliser = predictor._normaliser
    std, width = normaliser.action.get_buffer("std"), normaliser.width_A
    with torch.no_grad():
        predictor._fast.head.bias[1] += 0.05 * width[1] / std[1]
    found = strayed(predictor)
    assert found.share == pytest.approx(0.05, rel=1e-3)
    assert found.element == "element 1"


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    predictor = fast_predictor(write_act(tmp_path), torch.float32)
    with torch.no_grad():
        predictor._fast.head.bias[0] = float("nan")
    with pytest.raises(UnsupportedError, match="found: fast actions strayed"):
        strayed(predictor).check()


def test_an_element_that_never_moved_is_passed_over(tmp_path: Path) -> None:
    predictor = fast_predictor(write_act(tmp_path), torch.float32)
    predictor._normaliser.width_A[1] = 0
    with torch.no_grad():
        predictor._fast.head.bias[1] += 1
    strayed(predictor).check()


def test_random_observations_are_as_the_statistics_say(tmp_path: Path) -> None:
    predictor = fast_predictor(write(tmp_path, cameras=1), torch.float32)
    seen = list(
        itertools.islice(
            deviation.random_observations(predictor.observations(), predictor._normaliser), 200
        )
    )
    state = torch.stack([row[STATE] for row in seen])
    low, high = (predictor._normaliser.of(STATE).get_buffer(name) for name in ("min", "max"))
    assert bool((state >= low - 1e-5).all())
    assert bool((state <= high + 1e-5).all())
    assert bool((state.amax(0) - state.amin(0) > 0.9 * (high - low)).all())
    image = seen[0]["observation.images.front"]
    assert 0 <= image.min() < 0.1 < 0.9 < image.max() <= 1


def test_on_a_cpu_it_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'fast' is for GPUs.*found device 'cpu'"):
        PolicySession(load_policy(write_act(tmp_path), numerics="fast"))


def test_who_has_no_fast_arithmetic() -> None:
    for name in ("cue_reach", "flashrt_ros.policies.attention:make"):
        with pytest.raises(
            UnsupportedError, match=r"expected 'exact', found 'fast'.*act and diff"
        ):
            load_policy(name, numerics="fast")
    with pytest.raises(InvalidArgumentError, match=r"\['exact', 'fast'\], found 'quick'"):
        load_policy("cue_reach", numerics="quick")


def test_guidance_needs_gradients(tmp_path: Path) -> None:
    directory = write(tmp_path)
    guided = {"rtc_config": {"enabled": True}}
    edit_json(directory / "config.json", lambda values: values.update(guided))
    load_policy(directory)
    with pytest.raises(UnsupportedError, match="no gradients, which rtc_config needs"):
        load_policy(directory, numerics="fast")


def test_an_action_of_unknown_range_is_refused(tmp_path: Path) -> None:
    predictor = fast_predictor(write_act(tmp_path), torch.float32)
    predictor._normaliser.width_A = None
    with pytest.raises(UnsupportedError, match="no statistics of it; use 'exact'"):
        predictor.compare(1, CPU)


@pytest.mark.parametrize("name", ["act: camera", "diffusion: camera"])
def test_the_state_is_the_same_and_the_execution_is_not(name: str, tmp_path: Path) -> None:
    directory = write_named(tmp_path, name)
    ids, execs = [], []
    for numerics in ("exact", "fast"):
        policy = load_policy(directory, numerics=numerics)
        state = state_fingerprint(policy, complete_layout(policy))
        ids.append(state.id)
        execs.append(exec_fingerprint(state, open_device("cpu"), numerics=policy.numerics))
        assert [s.role for s in policy.layout() if s.name == ACTION] == [Role.OUTPUT]
    assert ids[0] == ids[1]
    difference = execs[0].difference(execs[1])
    assert difference is not None
    assert difference[0] == "policy.numerics"
    assert difference[1] == "exact"
    assert difference[2].startswith("fast")


def test_windows() -> None:
    x_LC = torch.arange(1.0, 7.0).view(3, 2)
    found = windows(x_LC, 3, torch.float32)
    assert found.tolist() == [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 0, 0]]
    assert windows(x_LC, 3, torch.float32, stride=2).tolist() == [
        found[0].tolist(),
        [3, 4, 5, 6, 0, 0],
    ]


def test_recorded_observations(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path / "policy", cameras=1, environment=0))
    front, path = "observation.images.front", tmp_path / "seen.safetensors"
    state, images = torch.rand(5, 4), torch.full((5, 3, 48, 56), 51, dtype=torch.uint8)
    save_file({STATE: state, front: images}, path)
    rows = list(recorded(path, policy))
    assert len(rows) == 5
    assert torch.equal(rows[3][STATE], state[3])
    assert torch.equal(rows[3][front], torch.full((3, 48, 56), 0.2))
    for bad, words in (
        ({STATE: state}, f"'{front}': expected a tensor of .* found nothing"),
        ({STATE: state[:, :3].contiguous(), front: images}, r"'N', 4\], found \[5, 3\]"),
        ({STATE: state[:4].contiguous(), front: images}, r"same number .* found \[4, 5\]"),
    ):
        save_file(bad, path)
        with pytest.raises(CheckpointError, match=words):
            recorded(path, policy)
