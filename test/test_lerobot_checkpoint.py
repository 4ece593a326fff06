"""A LeRobot directory is read as it is, or refused in one sentence that names file and key.

It comes from another program and another machine: keys may be new, files cut off, and a file
named ``.safetensors`` may be a pickle that runs code.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lerobot_files import (
    ACTION,
    FRONT,
    STATE,
    edit_json,
    feature,
    statistics,
    write_checkpoint,
)

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint, read_checkpoint
from flashrt_ros.policies.lerobot.feature import Kind
from flashrt_ros.policies.registry import load_policy

INPUTS = {STATE: feature("STATE", 3), FRONT: feature("VISUAL", 3, 8, 12)}
OUTPUTS = {ACTION: feature("ACTION", 2)}
CONFIG = {
    "type": "toy",
    "input_features": INPUTS,
    "output_features": OUTPUTS,
    "chunk_size": 8,
    "coefficient": None,
    "sizes": [4, 5],
    "new_in_0.9": 1,
}
WEIGHTS = {"model.w": torch.arange(6.0).reshape(2, 3)}


def write(directory: Path, version: str = "0.4", **changed: Any) -> Path:
    stats = statistics(INPUTS, OUTPUTS)
    return write_checkpoint(directory, {**CONFIG, **changed}, WEIGHTS, stats, version)


@pytest.fixture(params=["0.4", "0.6", "old"])
def read(request: pytest.FixtureRequest, tmp_path: Path) -> LeRobotCheckpoint:
    return read_checkpoint(write(tmp_path, request.param))


def test_what_is_read(read: LeRobotCheckpoint) -> None:
    assert read.type == "toy"
    assert list(read.input_features) == [STATE, FRONT]
    assert read.input_features[FRONT].kind is Kind.VISUAL
    assert read.images[0].shape == (3, 8, 12)
    assert (read.action.kind, read.action.shape) == (Kind.ACTION, (2,))
    # Statistics among the weights are no weights.
    assert list(read.tensors()) == ["model.w"]
    assert torch.equal(read.tensors()["model.w"], WEIGHTS["model.w"])


def test_statistics_lie_in_steps_or_among_weights(tmp_path: Path) -> None:
    new = read_checkpoint(write(tmp_path / "new"))
    assert new.preprocessor is not None
    assert new.postprocessor is not None
    assert [step.name for step in new.preprocessor] == [
        "rename_observations_processor",
        "to_batch_processor",
        "device_processor",
        "normalizer_processor",
    ]
    assert f"{STATE}.mean" in new.preprocessor[3].tensors
    assert f"{ACTION}.std" in new.postprocessor[0].tensors
    assert not new.statistics_in_weights()
    old = read_checkpoint(write(tmp_path / "old", "old"))
    assert (old.preprocessor, old.postprocessor) == (None, None)
    assert "normalize_inputs.buffer_observation_state.mean" in old.statistics_in_weights()


def test_keys_are_typed_and_the_unread_ones_listed(read: LeRobotCheckpoint) -> None:
    assert read.settings.integer("chunk_size", at_least=1) == 8
    assert read.settings.number("coefficient", None) is None
    assert read.settings.integers("sizes", length=2) == (4, 5)
    assert read.settings.boolean("absent", True) is True
    assert read.unknown == ("new_in_0.9",)
    read.settings.ignore("new_*")
    assert read.unknown == ()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda s: s.integer("absent"), "'absent' is missing; expected a whole number"),
        (lambda s: s.integer("coefficient"), "coefficient: expected a whole number.*found None"),
        (lambda s: s.integer("chunk_size", at_least=9), "expected a whole number from 9.*found 8"),
        (lambda s: s.boolean("chunk_size"), "chunk_size: expected true or false, found 8"),
        (lambda s: s.number("type"), "type: expected a finite number, found 'toy'"),
        (lambda s: s.word("type", choices=("a", "b")), "type: expected one of a, b, found 'toy'"),
        (lambda s: s.integers("sizes", length=3), r"expected a list of 3 whole.*found \[4, 5\]"),
        (lambda s: s.integers("sizes", None, at_least=5), "of at least 5 or null, found"),
        (lambda s: s.mapping("sizes"), "sizes: expected an object"),
    ],
)
def test_a_needed_key_is_refused_by_name(tmp_path: Path, ask: Any, words: str) -> None:
    settings = read_checkpoint(write(tmp_path)).settings
    with pytest.raises(CheckpointError, match=words) as caught:
        ask(settings)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("input_features"), "'input_features' is missing"),
        (lambda v: v.update(input_shapes=v.pop("input_features")), "before 2025"),
        (lambda v: v["input_features"].update({STATE: 3}), "'observation.state': expected an obj"),
        (
            lambda v: v["input_features"][STATE].update(type="S"),
            "type: expected one of STATE.*'S'",
        ),
        (lambda v: v["input_features"][STATE].update(shape=[2, 2]), "expected one number"),
        (lambda v: v["input_features"][STATE].update(shape=[-1]), "expected positive whole"),
        (lambda v: v["input_features"][FRONT].update(shape=[8, 12, 3]), "channels come last"),
        (lambda v: v["input_features"][FRONT].update(shape=[3, 1 << 20, 1 << 20]), "at most"),
        (lambda v: v.update(use_peft=True), "found a PEFT adapter; merge it"),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, change: Any, words: str) -> None:
    edit_json(write(tmp_path) / "config.json", change)
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(tmp_path)


def test_an_action_of_another_name_is_refused(tmp_path: Path) -> None:
    read = read_checkpoint(write(tmp_path, output_features={"move": feature("ACTION", 2)}))
    with pytest.raises(
        CheckpointError, match=r"expected 'action' of type ACTION, found \['move'\]"
    ):
        _ = read.action


@pytest.mark.parametrize("text", ["", "[]", "{", '{"type": "toy", "type": "act"}', "[" * 100000])
def test_what_is_no_configuration(tmp_path: Path, text: str) -> None:
    (write(tmp_path) / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: expected"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.update(steps=1), "steps: expected a list, found 1"),
        (lambda v: v["steps"].append(1), r"steps\[4\]: expected an object, found 1"),
        (lambda v: v["steps"][0].pop("registry_name"), r"steps\[0\]: registry_name: expected"),
        (lambda v: v["steps"][3].update(state_file="../a.safetensors"), "expected the plain name"),
        (lambda v: v["steps"][3].update(state_file="a.safetensors"), "cannot be read .No such"),
        (lambda v: v["steps"][3].update(config=[]), "config: expected an object"),
    ],
)
def test_a_wrong_processor(tmp_path: Path, change: Any, words: str) -> None:
    edit_json(write(tmp_path) / "policy_preprocessor.json", change)
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(tmp_path)


class Trap:
    """A pickle that would leave a trace if it were loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["pickle", "torch.save"])
def test_a_pickle_in_disguise_is_not_loaded(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path) / "model.safetensors"
    trace = tmp_path / "trace"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Trap(trace)))
    else:
        torch.save({"w": Trap(trace)}, path)
    with pytest.raises(CheckpointError, match=r"found a .*pickle.*never is"):
        read_checkpoint(tmp_path).tensors()
    assert not trace.exists()
    if kind == "pickle":  # the control: the trap would have worked
        pickle.loads(path.read_bytes())
        assert trace.exists()


def test_a_good_file_may_begin_like_a_pickle(tmp_path: Path) -> None:
    """Its first byte is that of a length: of 32 files, one begins with that of a pickle."""
    for size in range(1, 120):
        write_checkpoint(tmp_path, CONFIG, {"w" * size: torch.ones(1)}, {})
        if (tmp_path / "model.safetensors").read_bytes()[:1] == b"\x80":
            break
    else:
        pytest.fail("no file began so")
    assert list(read_checkpoint(tmp_path).tensors()) == ["w" * size]


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: expected a safetensors file"):
        read_checkpoint(tmp_path).tensors()
    if keep == -1:
        with pytest.raises(CheckpointError, match=r"cut off: expected \d+ bytes, found \d+"):
            read_checkpoint(tmp_path).tensors()


def test_a_missing_file(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        read_checkpoint(tmp_path).tensors()


def test_the_registry_says_which_types_run(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(CheckpointError, match=r"expected a LeRobot policy of type .*found 'toy'"):
        load_policy(tmp_path)
    # Not LeRobot's at all: the message of our own families.
    (tmp_path / "config.json").write_text(json.dumps({"type": "toy"}))
    with pytest.raises(CheckpointError, match=r"found 'toy', expected one of .*recurrent"):
        load_policy(tmp_path)
