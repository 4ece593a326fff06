"""Settings beside a checkpoint: other ways of running the same weights, and back.

A checkpoint with ``flashrt_ros.json`` must be, to the bit and to its state id, the one whose
``config.json`` says the same; taken away, it is as before. Keys that say what the network is may
not be changed there: weights would be read as what they are not.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from act_files import SMALL, VARIANTS, observations, write_act
from diffusion_files import config as diffusion_config
from diffusion_files import observations as diffusion_observations
from diffusion_files import write as write_diffusion

from flashrt_ros import cli
from flashrt_ros.errors import CheckpointError, StateMismatchError
from flashrt_ros.policies.lerobot.changes import CHANGEABLE, CHANGES
from flashrt_ros.policies.lerobot.families import FAMILIES
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession

ROWS = list(itertools.islice(observations(SMALL["input_features"]), 14))
SEEN = list(diffusion_observations(diffusion_config(), 14))


def change(directory: Path, **values: Any) -> Path:
    (directory / CHANGES).write_text(json.dumps(values))
    return directory


def actions(directory: Path, rows: list[dict[str, torch.Tensor]]) -> tuple[str, torch.Tensor]:
    session = PolicySession(load_policy(directory), seed=3)
    return session.state_id, torch.stack([session.step(row).values for row in rows])


def same(one: tuple[str, torch.Tensor], other: tuple[str, torch.Tensor]) -> bool:
    assert (one[0] == other[0]) == torch.equal(one[1], other[1])
    return one[0] == other[0]


def test_an_ensemble_is_switched_on_and_off_again(tmp_path: Path) -> None:
    trained = write_act(tmp_path / "queue")
    before = actions(trained, ROWS)
    ensemble = actions(change(trained, temporal_ensemble_coeff=0.01), ROWS)
    assert same(ensemble, actions(write_act(tmp_path / "e", **VARIANTS["ensemble"]), ROWS))
    assert not same(ensemble, before)
    (trained / CHANGES).unlink()
    assert same(actions(trained, ROWS), before)


def test_an_ensemble_that_was_trained_is_switched_off(tmp_path: Path) -> None:
    trained = write_act(tmp_path / "ensemble", **VARIANTS["ensemble"])
    queue = change(trained, temporal_ensemble_coeff=None, n_action_steps=4)
    assert same(actions(queue, ROWS), actions(write_act(tmp_path / "queue"), ROWS))


def test_a_capsule_of_the_one_is_refused_by_the_other(tmp_path: Path) -> None:
    trained = write_act(tmp_path / "model")
    with_queue = PolicySession(load_policy(trained))
    with_queue.snapshot("cut")
    image = with_queue.export("cut")
    other = PolicySession(load_policy(change(trained, temporal_ensemble_coeff=0.01)))
    with pytest.raises(StateMismatchError, match=r"temporal_ensemble|n_action_steps"):
        other.import_(image, "cut", allow_inexact=True)
    (trained / CHANGES).unlink()
    PolicySession(load_policy(trained)).import_(image, "cut")


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_scheduler_type": "DDIM", "num_inference_steps": 3},
        {"n_action_steps": 2},
        {"rtc_config": {"enabled": True, "execution_horizon": 5}},
    ],
)
def test_another_sampler(tmp_path: Path, changed: dict[str, Any]) -> None:
    options = {"noise_scheduler_type": "DDPM", "num_inference_steps": 6}
    trained = write_diffusion(tmp_path / "trained", **options)
    before = actions(trained, SEEN)
    other = write_diffusion(tmp_path / "other", **options)
    values = {**json.loads((other / "config.json").read_text()), **changed}
    (other / "config.json").write_text(json.dumps(values))
    found = actions(change(trained, **changed), SEEN)
    assert same(found, actions(other, SEEN))
    assert not same(found, before)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dim_model": 32}, "expected keys that may differ .*_ensemble_coeff; found 'dim_model'"),
        ({"n_action_steps": 7}, "n_action_steps: expected a whole number from 1 to 6, found 7"),
        ({"temporal_ensemble_coeff": "x"}, "temporal_ensemble_coeff: expected a finite number"),
        (
            {"temporal_ensemble_coeff": 0.1, "n_action_steps": 4},
            "n_action_steps: expected .* from 1 to 1, found 4",
        ),
        ({"temporal_ensemble_coeff": -99}, "temporal_ensemble_coeff: expected one whose weights"),
        ([], "expected a JSON object"),
    ],
)
def test_what_cannot_be_names_the_file(tmp_path: Path, changed: Any, words: str) -> None:
    path = write_act(tmp_path) / CHANGES
    path.write_text(json.dumps(changed))
    with pytest.raises(CheckpointError, match=f"{CHANGES}: {words}"):
        load_policy(tmp_path)


def test_a_chunk_that_is_too_short_for_so_many_steps_names_it_too(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{CHANGES}: n_action_steps: expected 1 to 15"):
        load_policy(change(write_diffusion(tmp_path), n_action_steps=16))


def test_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = change(write_act(tmp_path), temporal_ensemble_coeff=0.01)
    assert cli.main(["inspect", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert f"changed by {CHANGES}: temporal_ensemble_coeff: 0.01 instead of null" in shown
    assert f"changed by {CHANGES}: n_action_steps: 1 instead of 4" in shown


def test_a_policy_says_it_of_itself(tmp_path: Path) -> None:
    directory = write_act(tmp_path, new_in_0_9=1)
    assert load_policy(directory).origin == (
        f"{directory}/config.json: nothing reads the keys new_in_0_9",
    )
    said = load_policy(change(directory, temporal_ensemble_coeff=0.01)).origin
    assert said[:2] == (
        f"{directory}/{CHANGES}: temporal_ensemble_coeff is 0.01 instead of null",
        f"{directory}/{CHANGES}: n_action_steps is 1 instead of 4",
    )
    assert load_policy(write_act(tmp_path / "plain")).origin == ()


def test_every_family_says_what_may_be_changed() -> None:
    assert set(CHANGEABLE) == set(FAMILIES)
