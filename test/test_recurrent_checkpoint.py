"""Pins the policy directory: what is saved comes back bit for bit, and nothing else is accepted.

Weights that are loaded into the wrong shape, or a setting that is dropped in silence, make another
policy of the same name.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flashrt_ros.errors import CheckpointError, StorageError
from flashrt_ros.policies.recurrent import RecurrentPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig, VectorConfig
from flashrt_ros.policies.recurrent_network import RecurrentNetwork
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession

CONFIG = RecurrentConfig(
    (VectorConfig("observation.state", 3, ("a", "b", "c"), "rad"),),
    VectorConfig("action", 2, normalisation="min_max"),
    hidden_size=8,
    encoder_sizes=(4,),
    head_sizes=(6,),
    head="gmm",
    horizon=10,
)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[RecurrentPolicy, Path]:
    network = RecurrentNetwork(CONFIG)
    network.measure_(torch.randn(20, 3), torch.randn(20, 2))
    policy = RecurrentPolicy(CONFIG, network)
    policy.save(tmp_path / "policy")
    return policy, tmp_path / "policy"


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_what_is_saved_comes_back(tmp_path: Path, cell: str) -> None:
    network = RecurrentNetwork(replace(CONFIG, cell=cell))
    network.measure_(torch.randn(20, 3), torch.randn(20, 2))
    policy = RecurrentPolicy(network.config, network)
    policy.save(tmp_path)
    loaded = load_policy(str(tmp_path))
    assert loaded.config() == policy.config()
    expected, found = network.state_dict(), loaded.module().state_dict()
    assert list(expected) == list(found)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    sessions = PolicySession(policy), PolicySession(loaded)
    assert sessions[0].state_id == sessions[1].state_id
    rows = torch.randn(4, 3)
    one, other = ([s.step({"observation.state": row}).values for row in rows] for s in sessions)
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    # Saving again over the old files leaves no third one.
    policy.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_other_weights_are_another_policy(saved: tuple[RecurrentPolicy, Path]) -> None:
    policy, directory = saved
    with torch.no_grad():
        policy.module().head.bias[0] += 1e-6
    assert PolicySession(policy).state_id != PolicySession(load_policy(directory)).state_id


def test_a_configuration_survives_its_text() -> None:
    for config in (CONFIG, replace(CONFIG, cell="lstm", open_loop=True, tanh=True, min_std=0.5)):
        text = json.dumps(config.to_dict())
        assert RecurrentConfig.from_dict(json.loads(text)) == config


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_cut_file_is_refused(saved: tuple[RecurrentPolicy, Path], keep: int) -> None:
    path = saved[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model.safetensors: expected a safetensors file"):
        load_policy(saved[1])


def test_a_missing_file_is_named(saved: tuple[RecurrentPolicy, Path]) -> None:
    (saved[1] / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: cannot be read .No such file"):
        load_policy(saved[1])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("head.bias", None, r"missing keys \['head.bias'\], unknown keys \[\]"),
        ("extra", torch.zeros(1), r"missing keys \[\], unknown keys \['extra'\]"),
        ("head.bias", torch.zeros(3), r"'head.bias': expected shape \(25,\).*found \(3,\)"),
        ("head.bias", torch.zeros(25, dtype=torch.float64), "of torch.float64"),
        ("head.bias", torch.full((25,), float("nan")), "'head.bias': expected finite values"),
        ("action_normaliser.max", torch.full((2,), -9.0), "action: statistics 'min' and 'max'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    saved: tuple[RecurrentPolicy, Path], key: str, value: torch.Tensor | None, words: str
) -> None:
    path = saved[1] / "model.safetensors"
    weights = load_file(path)
    weights.pop(key, None)
    save_file(weights if value is None else {**weights, key: value}, path)
    with pytest.raises(CheckpointError, match=words):
        load_policy(saved[1])


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("hidden_sizes",), 3, r"unknown keys \['hidden_sizes'\]; expected exactly"),
        (("hidden_size",), None, r"missing keys \['hidden_size'\]"),
        (("hidden_size",), 9, "'recurrence.weight_ih_l0': expected shape"),
        (("hidden_size",), "8", "hidden_size: expected a whole number"),
        # Found before a network of that size (terabytes) is made.
        (("hidden_size",), 1 << 20, "'recurrence.weight_ih_l0': expected shape"),
        (("hidden_size",), 1 << 40, "hidden_size: expected a whole number of at most"),
        (("action", "size"), 1 << 31, "action: size: expected a whole number of at most"),
        (("n_layers",), 1 << 31, "n_layers: expected a whole number of at most 256"),
        (("horizon",), 10**30, "horizon: expected a whole number of at most"),
        (("head_sizes",), 6, "head_sizes: expected a list, found 6"),
        (("observations",), {}, "observations: expected a list"),
        (("observations", 0, "size"), 0, "observation.state: size: expected a whole number"),
        (("observations", 0, "colour"), "red", r"observations.0: .*unknown keys \['colour'\]"),
        (("action",), [], r"action: expected an object, found \[\]"),
        (("action", "names"), "ab", "action: names: expected a list"),
        (("cell",), "rnn", "cell: expected one of"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    saved: tuple[RecurrentPolicy, Path], path: tuple[str | int, ...], value: object, words: str
) -> None:
    file = saved[1] / "config.json"
    config = json.loads(file.read_text())
    place = config
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        load_policy(saved[1])


def test_a_network_without_statistics_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"observation.state: statistic 'mean'.*set the stat"
    ):
        RecurrentPolicy(CONFIG).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_directory_that_cannot_be_written_says_so(
    saved: tuple[RecurrentPolicy, Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file: cannot be written"):
        saved[0].save(tmp_path / "file")
