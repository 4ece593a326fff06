"""ACT checkpoints run through the registry, and all that they remember is in the capsule.

Whether the numbers are LeRobot's is for ``test_lerobot_oracle.py``; here is what must hold
besides: the conformance suite, capsules in the middle of a chunk and of an ensemble, refusals.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from act_files import CAMERA, SMALL, VARIANTS, observations, write_act
from lerobot_files import ACTION, FRONT, STATE, edit_json, edit_tensors, feature

from flashrt_ros.errors import CheckpointError, SpecError
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.policy import PlanKind
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy


def features(variant: str) -> dict[str, Any]:
    found: dict[str, Any] = {**SMALL, **VARIANTS[variant]}["input_features"]
    return found


LARGE = ("deep and dilated", "resnet34")


@pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=[pytest.mark.slow] * (v in LARGE)) for v in VARIANTS]
)
def test_conforms(tmp_path: Path, variant: str) -> None:
    policy = load_policy(write_act(tmp_path, **VARIANTS[variant]))
    assert policy.family == "chunked.act"
    ensembles = "ensemble" in variant or "newest" in variant
    assert policy.plan_kind is (PlanKind.ADVANCES if ensembles else PlanKind.BESIDE)
    ports = {port.key: port.shape for port in policy.ports().observations}
    assert ports == {name: tuple(f["shape"]) for name, f in features(variant).items()}
    report = check_policy(policy)
    assert report.ok, str(report)
    # With a plan in each step, the next row is always the second of the last chunk.
    inert = {"chunk.cursor"} if ensembles else set()
    assert set(report.inert) == {"noise.key", "noise.counter"} | inert


@pytest.mark.parametrize("variant", ["vectors", "camera", "ensemble"])
def test_a_capsule_in_the_middle_goes_on_to_the_last_bit(tmp_path: Path, variant: str) -> None:
    session = PolicySession(load_policy(write_act(tmp_path, **VARIANTS[variant])))
    rows = list(itertools.islice(observations(features(variant)), 24))
    for row in rows[:6]:  # the second chunk has been begun
        session.step(row)
    session.snapshot("middle")
    first = [session.step(row).values for row in rows[6:18]]
    digest = session.state_digest()
    for row in rows[18:]:
        session.step(row)
    unlike = [session.step(row).values for row in rows[6:18]]
    session.restore("middle")
    again = [session.step(row).values for row in rows[6:18]]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert session.state_digest() == digest
    # The control: without the restore the same observations lead elsewhere.
    assert not torch.equal(torch.stack(first), torch.stack(unlike))


@pytest.mark.parametrize("version", ["0.6", "old"])
def test_every_version_gives_the_same_actions(tmp_path: Path, version: str) -> None:
    sessions = [
        PolicySession(load_policy(write_act(tmp_path / v, v, **CAMERA))) for v in ("0.4", version)
    ]
    for row in itertools.islice(observations(CAMERA["input_features"]), 6):
        one, other = (session.step(row).values for session in sessions)
        assert torch.equal(one, other)


def test_other_weights_or_statistics_are_another_state(tmp_path: Path) -> None:
    """A capsule must not be restored into a policy that would act otherwise on it."""
    ids = {PolicySession(load_policy(write_act(tmp_path / "a"))).state_id}
    ids.add(PolicySession(load_policy(write_act(tmp_path / "b", seed=1))).state_id)
    ids.add(PolicySession(load_policy(write_act(tmp_path / "c", pre_norm=True))).state_id)
    write_act(tmp_path / "d")
    name = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    edit_tensors(tmp_path / "d" / name, lambda t: t[f"{ACTION}.mean"].add_(1))
    ids.add(PolicySession(load_policy(tmp_path / "d")).state_id)
    assert len(ids) == 4
    ids.add(PolicySession(load_policy(write_act(tmp_path / "e"))).state_id)
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_obs_steps": 2}, "n_obs_steps: expected a whole number from 1 to 1, found 2"),
        ({"n_action_steps": 7}, "n_action_steps: expected a whole number from 1 to 6, found 7"),
        ({"temporal_ensemble_coeff": 0.1}, "n_action_steps: expected .* from 1 to 1, found 4"),
        ({"temporal_ensemble_coeff": "x"}, "temporal_ensemble_coeff: expected a finite number"),
        (
            {"temporal_ensemble_coeff": -99.0, "n_action_steps": 1},
            "temporal_ensemble_coeff: expected one whose weights",
        ),
        ({"vision_backbone": "resnet9"}, "vision_backbone: expected one of resnet18.*'resnet9'"),
        ({"feedforward_activation": "glu"}, "expected one of relu, gelu, found 'glu'"),
        ({"dim_model": 15}, "dim_model: expected a multiple of n_heads .2., found|dim_model"),
        ({**CAMERA, "dim_model": 18}, "dim_model: expected a multiple .* of 4, found 18"),
        ({"dim_model": 10**9}, "dim_model: expected a whole number from 1 to 65536"),
        ({"pre_norm": "yes"}, "pre_norm: expected true or false, found 'yes'"),
        (
            {**CAMERA, "replace_final_stride_with_dilation": True},
            "replace_final_stride_with_dilation: expected false with resnet18",
        ),
        ({"input_features": {STATE: feature("STATE", 3)}}, "expected images, or one of type ENV"),
        (
            {"input_features": {FRONT: feature("VISUAL", 1, 32, 48)}},
            "expected .* images of 3 channels, found 'VISUAL of .1, 32, 48.'",
        ),
        (
            {"input_features": {**SMALL["input_features"], "force": feature("STATE", 2)}},
            "'force': expected 'observation.state' of type STATE",
        ),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    edit_json(write_act(tmp_path) / "config.json", lambda values: values.update(changed))
    with pytest.raises(CheckpointError, match=words):
        load_policy(tmp_path)


@pytest.mark.parametrize("key", sorted(set(SMALL) - {"dropout", "kl_weight", "type"}))
def test_a_missing_key(tmp_path: Path, key: str) -> None:
    edit_json(write_act(tmp_path) / "config.json", lambda values: values.pop(key))
    optional = {
        "n_vae_encoder_layers",
        "pretrained_backbone_weights",
        "replace_final_stride_with_dilation",
        "temporal_ensemble_coeff",
        "use_vae",
    }
    if key in optional:
        load_policy(tmp_path)
        return
    with pytest.raises(CheckpointError, match=f"'{key}' is missing"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.action_head.bias"), "'model.action_head.bias' .* is missing"),
        (lambda t: t.update({"model.x": torch.ones(1)}), "'model.x' is left over"),
        (lambda t: t["model.action_head.bias"].fill_(float("nan")), "expected finite values"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, change: Any, words: str) -> None:
    edit_tensors(write_act(tmp_path) / "model.safetensors", change)
    with pytest.raises(CheckpointError, match=words):
        load_policy(tmp_path)


def test_a_configuration_of_other_sizes_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    def grow(values: dict[str, Any]) -> None:
        values.update(dim_model=65536, dim_feedforward=65536, n_encoder_layers=256)

    edit_json(write_act(tmp_path) / "config.json", grow)
    with pytest.raises(CheckpointError, match=r"does config\.json belong to it"):
        load_policy(tmp_path)  # hundreds of terabytes otherwise


def test_wrong_observations_are_refused_and_change_nothing(tmp_path: Path) -> None:
    session = PolicySession(load_policy(write_act(tmp_path, **CAMERA)))
    row = next(observations(CAMERA["input_features"]))
    before = session.state_bytes()
    image = row[FRONT]
    with pytest.raises(SpecError, match=r"expected shape \(3, 32, 48\), found \(32, 48, 3\)"):
        session.step({**row, FRONT: image.permute(1, 2, 0)})
    with pytest.raises(SpecError, match=f"'observation.images.top': .* it has .*{FRONT}"):
        session.step({STATE: row[STATE], "observation.images.top": image})
    assert session.state_bytes() == before
    session.step(row)
