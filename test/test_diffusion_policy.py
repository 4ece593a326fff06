"""Pins a Diffusion Policy in operation: its history, its noise, its capsules, what it refuses.

The reference keeps a deque that is filled with the first observation, as the policy was trained;
here the history is state. A capsule that lacked it would plan from another past.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusion_files import CASES, ENVIRONMENT, STATE, config, drawn, observations, write
from lerobot_files import edit_json, edit_tensors, feature

from flashrt_ros.cli import main
from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.diffusion.checkpoint import make_predictor
from flashrt_ros.policies.diffusion.encoder import crop_centre
from flashrt_ros.policies.diffusion.predictor import NOISE, DiffusionPredictor
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.policy import Buffers
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

HEAVY = {"bottlenecks", "resized", "two cameras", "two encoders", "camera"}


def given(predictor: DiffusionPredictor, seed: int = 2) -> torch.Tensor:
    """Makes a predictor take this noise in every plan, in the place of what it draws."""
    shape = next(spec.shape for spec in predictor.layout() if spec.name == NOISE)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def draw_(noise_NBHA: torch.Tensor, state: Buffers) -> None:
        noise_NBHA.copy_(noise)

    predictor.draw_ = draw_  # type: ignore[method-assign]
    return noise


def reference(
    predictor: DiffusionPredictor, seen: list[dict[str, torch.Tensor]], noise: torch.Tensor
) -> torch.Tensor:
    """Actions as they come out of deques, with a queue that is refilled when it is empty."""
    network, config = predictor.module()["diffusion"], predictor._config
    normalise = predictor.module()["normaliser"].normalise
    restore = predictor.module()["normaliser"].restore
    past: deque[dict[str, torch.Tensor]] = deque(maxlen=config.n_obs_steps)
    queue: deque[torch.Tensor] = deque()
    actions = []
    for observation in seen:
        past.append(observation)
        while len(past) < config.n_obs_steps:
            past.append(observation)
        if not queue:
            rows = {
                name: normalise(name, torch.stack([o[name] for o in past])) for name in observation
            }
            images = [
                crop_centre(v, config.vision.kept_size) for k, v in rows.items() if "im" in k
            ]
            condition = network.condition(rows[STATE], images, rows.get(ENVIRONMENT))
            first = config.n_obs_steps - 1
            chunk = network.sample(condition, noise)[0, first : first + config.n_action_steps]
            queue.extend(restore(chunk))
        actions.append(queue.popleft())
    return torch.stack(actions)


@pytest.mark.parametrize("name", ["ddim", "one observation", "four observations", "two cameras"])
def test_actions_come_as_from_deques(name: str, tmp_path: Path) -> None:
    predictor = make_predictor(read_checkpoint(write(tmp_path, **CASES[name])))
    noise = given(predictor)
    seen = list(observations(config(**CASES[name]), 27))
    session = PolicySession(ChunkedPolicy(predictor, predictor.n_action_steps), rollback_depth=0)
    found = torch.stack([session.step(item).values for item in seen])
    with torch.no_grad():
        expected = reference(predictor, seen, noise)
        assert torch.equal(found, expected)
        # The control: without the observation of the step before the second plan.
        last = predictor.n_action_steps - 1
        dropped = reference(predictor, [*seen[:last], seen[0], *seen[last + 1 :]], noise)
    assert torch.equal(found, dropped) == (name == "one observation")


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEAVY])
def test_conforms(name: str, tmp_path: Path) -> None:
    report = check_policy(load_policy(write(tmp_path, **CASES[name])))
    assert report.ok, str(report)
    assert not report.inert


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(HEAVY))
def test_conforms_with_cameras(name: str, tmp_path: Path) -> None:
    seen = list(observations(config(**CASES[name]), 12))
    report = check_policy(load_policy(write(tmp_path, **CASES[name])), observations=seen)
    assert report.ok, str(report)
    assert not report.inert


def test_a_capsule_from_the_middle_of_a_chunk_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    options = {**CASES["four observations"], "noise_scheduler_type": "DDPM"}
    session = PolicySession(load_policy(write(tmp_path, **options)), seed=3)
    seen = list(observations(config(**options), 40))

    def run(first: int, last: int) -> torch.Tensor:
        return torch.stack([session.step(item).values for item in seen[first:last]])

    run(0, 9)
    session.snapshot("here")
    assert session.host.cursor == 4
    expected = run(9, 40)
    assert not torch.equal(run(9, 40), expected), "without a restore"
    session.restore("here")
    assert torch.equal(run(9, 40), expected)
    # Another place of another episode, with every buffer of another value.
    session.reset_(seed=9)
    run(20, 33)
    other = {name: tensor.clone() for name, tensor in session.arena.state.items()}
    for name, value in other.items():
        session.restore("here")
        session.arena.state[name].copy_(value)
        # The count only tells the first observation from later ones.
        assert torch.equal(run(9, 40), expected) == (name == "history.count"), name
    session.reset_(seed=3)
    session.snapshot("start")
    expected = run(0, 12)
    session.restore("start")
    session.arena.state["history.count"].fill_(1)
    assert not torch.equal(run(0, 12), expected)


def test_a_preview_is_the_chunk_that_a_restore_would_plan(tmp_path: Path) -> None:
    options = CASES["four observations"]
    policy = load_policy(write(tmp_path, **options))
    session = PolicySession(policy, seed=3, preview_sets=1)
    seen = list(observations(config(**options), 30))
    for item in seen[:5]:
        session.step(item)
    session.snapshot("here")
    for item in seen[5:15]:
        session.step(item)
    assert session.plan_due
    here, live = (session.preview([*source], seen[29])[0] for source in (["here"], []))
    before = session.state_digest()
    session.step(seen[29])
    assert torch.equal(session.arena.state["chunk.actions"], live.actions_HA)
    assert session.state_digest() != before
    session.restore("here")
    session.step(seen[29])
    assert torch.equal(session.arena.state["chunk.actions"], here.actions_HA)
    assert not torch.equal(here.actions_HA, live.actions_HA)


def test_noise_follows_the_seed_and_moves_on_with_each_plan(tmp_path: Path) -> None:
    options = {**CASES["ddpm"], "n_action_steps": 2}
    session = PolicySession(load_policy(write(tmp_path, **options)), seed=3)
    seen = next(observations(config(**options), 1))

    def episode(seed: int) -> list[list[float]]:
        session.reset_(seed=seed)
        return [session.step(seen).values.tolist() for _ in range(4)]

    first = episode(3)
    assert episode(3) == first
    assert episode(4) != first
    assert first[2:] != first[:2], "the same observation, but new noise"
    draws = 5 * 16 * 2
    assert session.arena.state["noise.counter"].item() == 2 * draws // 4


def test_images_are_kept_without_what_is_cropped_away(tmp_path: Path) -> None:
    shapes = {}
    for name in ("camera", "two cameras", "resized"):
        policy = load_policy(write(tmp_path / name.replace(" ", "_"), **CASES[name]))
        specs = {spec.name: spec.shape for spec in policy.layout()}
        shapes[name] = specs["history.observation.images.front"]
    assert shapes == {
        "camera": (1, 3, 37, 50),
        "two cameras": (2, 3, 48, 56),
        "resized": (1, 3, 48, 56),
    }


@pytest.mark.parametrize("version", ["0.4", "0.6", "old"])
def test_directories_of_every_age_give_the_same_actions(version: str, tmp_path: Path) -> None:
    runs = []
    for age in ("0.4", version):
        session = PolicySession(load_policy(write(tmp_path / f"of {age}", age)), seed=1)
        seen = observations(config(), 9)
        runs.append(torch.stack([session.step(item).values for item in seen]))
    assert torch.equal(*runs)


def test_it_is_made_for_inference(tmp_path: Path) -> None:
    """A batch norm that still trains would learn from the robot's camera."""
    options = {"cameras": 1, "use_group_norm": False}
    module = load_policy(write(tmp_path, **options)).module()
    assert any(isinstance(part, torch.nn.BatchNorm2d) for part in module.modules())
    assert not any(part.training for part in module.modules())


def test_weights_of_a_compiled_network_are_read(tmp_path: Path) -> None:
    directory = write(tmp_path)
    expected = load_policy(directory).module().state_dict()

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".unet." in name]:
            tensors[name.replace(".unet.", ".unet._orig_mod.")] = tensors.pop(name)

    edit_tensors(directory / "model.safetensors", rename)
    found = load_policy(directory).module().state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    name = "diffusion.unet.mid_modules.0.conv1.block.0.weight"
    assert torch.equal(found[name], drawn(name.removeprefix("diffusion."), found[name]))


def test_keys_that_say_nothing_about_inference_are_no_unknown_ones(tmp_path: Path) -> None:
    extra = {"compile_model": True, "compile_mode": "x", "gradient_checkpointing": True, "new": 1}
    directory = write(tmp_path)
    edit_json(directory / "config.json", lambda values: values.update(extra))
    checkpoint = read_checkpoint(directory)
    make_predictor(checkpoint)
    assert checkpoint.unknown == ("new",)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"horizon": 15}, "horizon: expected a multiple of 4"),
    ({"n_action_steps": 16}, r"n_action_steps: expected 1 to 15 .*, found 16"),
    ({"noise_scheduler_type": "PNDM"}, "noise_scheduler_type: expected one of DDPM, DDIM"),
    ({"beta_schedule": "sigmoid"}, "beta_schedule: .* with DDIM, found 'sigmoid'"),
    ({"num_inference_steps": 101}, r"num_inference_steps: expected 1 to .*\(100\), found 101"),
    ({"prediction_type": "v_prediction"}, "prediction_type: expected one of epsilon, sample"),
    ({"vision_backbone": "vit_b_16"}, "vision_backbone: expected one of resnet18"),
    ({"down_dims": []}, "down_dims: expected at least one number"),
    ({"crop_ratio": 1.5}, "crop_ratio: expected a number above 0, at most 1, found 1.5"),
    ({"use_group_norm": "yes"}, "use_group_norm: expected true or false"),
    ({"down_dims": [16, 40]}, r"down_modules\.1\.0.*expected shape .*40.*belong to it"),
    ({"use_film_scale_modulation": False}, "cond_encoder.1.weight.*expected shape"),
    ({"down_dims": [1 << 20, 1 << 20]}, "expected shape"),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED)
def test_settings_that_do_not_fit_are_named(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    directory = write(tmp_path)
    edit_json(directory / "config.json", lambda values: values.update(changed))
    with pytest.raises(CheckpointError, match=words):
        load_policy(directory)


@pytest.mark.parametrize("key", ["horizon", "use_group_norm", "clip_sample", "beta_end"])
def test_a_setting_that_is_missing_is_named(key: str, tmp_path: Path) -> None:
    """Defaults of one LeRobot are not those of the next."""
    directory = write(tmp_path)
    edit_json(directory / "config.json", lambda values: values.pop(key))
    with pytest.raises(CheckpointError, match=f"{key!r} is missing"):
        load_policy(directory)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({}, "expected 'observation.state' of type STATE"),
        ({STATE: feature("STATE", 4)}, "expected an image or the environment's state"),
        (
            {STATE: feature("STATE", 4), "observation.touch": feature("STATE", 2)},
            "'observation.touch' of type STATE: a diffusion policy reads",
        ),
        (
            {STATE: feature("STATE", 4), "observation.images.depth": feature("VISUAL", 1, 48, 56)},
            "'observation.images.depth': expected an image of 3 channels",
        ),
        (
            {
                STATE: feature("STATE", 4),
                "observation.images.a": feature("VISUAL", 3, 48, 56),
                "observation.images.b": feature("VISUAL", 3, 56, 48),
            },
            "'observation.images.b': expected .* one size with the others",
        ),
    ],
)
def test_features_that_it_cannot_read_are_named(
    features: dict[str, Any], words: str, tmp_path: Path
) -> None:
    directory = write(tmp_path)
    edit_json(directory / "config.json", lambda values: values.update(input_features=features))
    with pytest.raises(CheckpointError, match=words):
        load_policy(directory)


def test_the_commands_take_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(tmp_path)
    assert main(["inspect", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert "history.observation.state" in shown
    assert "diffusion.noise" in shown
    assert main(["check", str(directory)]) == 0
    assert json.loads((directory / "config.json").read_text())["type"] == "diffusion"
