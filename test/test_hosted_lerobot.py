"""SmolVLA, pi0 and pi05 checkpoints: what the adapter makes of them, over a stand-in network.

Here is what is ours: features, noise, tokens and prompts, normalisation, refusals. Whether the
numbers of a real SmolVLA are LeRobot's is for ``test_hosted_oracle.py``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lerobot_stand_in
import numpy as np
import pytest
import torch
from language_files import CHUNK, LENGTH, WIDE, A, S, ids, write_language
from lerobot_files import FRONT, STATE, edit_json
from test_relative import make_relative

from flashrt_ros.errors import CheckpointError, InvalidArgumentError, UnsupportedError
from flashrt_ros.policies.hosted.instruction import TOKENS
from flashrt_ros.policies.hosted.predictor import NOISE
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint
from flashrt_ros.policies.lerobot.normalisation import make_normaliser
from flashrt_ros.policies.lerobot.processor import LANGUAGE
from flashrt_ros.policies.lerobot.summary import summary
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

KINDS = ("smolvla", "pi0", "pi05")


@pytest.fixture(autouse=True)
def _lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    lerobot_stand_in.install(monkeypatch)


def observation(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(S, generator=generator)
    return {STATE: state, FRONT: torch.rand(3, 12, 16, generator=generator)}


def test_only_exact(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="numerics: expected 'exact', found 'fast'"):
        load_policy(write_language(tmp_path, "pi0"), numerics="fast")


@pytest.mark.parametrize("kind", KINDS)
def test_conforms(tmp_path: Path, kind: str) -> None:
    policy = load_policy(write_language(tmp_path, kind))
    assert policy.family == f"chunked.hosted.{kind}"
    assert (policy.chunk_size, policy.n_action_steps) == (CHUNK, 4)
    assert {p.key: p.shape for p in policy.ports().observations} == {
        STATE: (S,),
        FRONT: (3, 12, 16),
    }
    report = check_policy(policy)
    assert report.ok, str(report)


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_gets_what_lerobot_s_processors_make(tmp_path: Path, kind: str) -> None:
    directory = write_language(tmp_path, kind)
    session = PolicySession(load_policy(directory), seed=2)
    session.reset_("lift_it", seed=2)
    seen = observation()
    action = session.step(seen).values
    normaliser = make_normaliser(read_checkpoint(directory), LANGUAGE)
    state = normaliser.normalise(STATE, seen[STATE])
    text = "lift_it\n"
    if kind == "pi05":
        padded = np.concatenate((state.numpy(), np.zeros(WIDE - S, np.float32)))
        bins = np.digitize(padded, np.linspace(-1, 1, 257)[:-1]) - 1
        text = f"Task: lift it, State: {' '.join(map(str, bins))};\nAction: "
    expected = ids(text)
    tokens = torch.tensor([expected + [0] * (len(session.arena.inputs[TOKENS]) - len(expected))])
    assert torch.equal(session.arena.inputs[TOKENS], tokens[0])
    network = lerobot_stand_in.FlowPolicy(None)
    batch = {
        STATE: state.unsqueeze(0),
        FRONT: seen[FRONT].unsqueeze(0),
        "observation.language.tokens": tokens,
        "observation.language.attention_mask": torch.arange(tokens.shape[1])[None] < len(expected),
    }
    noise = session.arena.outputs[NOISE]
    assert noise.shape == (1, CHUNK, WIDE)
    with torch.no_grad():
        chunk = network.predict_action_chunk(batch, noise=noise)
        other = network.predict_action_chunk({**batch, STATE: seen[STATE][None]}, noise=noise)
    assert torch.equal(action, normaliser.restore(chunk[0, 0]))
    assert not torch.equal(action, normaliser.restore(other[0, 0]))


def test_the_state_is_in_the_words_of_pi05_at_each_plan(tmp_path: Path) -> None:
    session = PolicySession(load_policy(write_language(tmp_path, "pi05")))
    said = []
    for seed in range(5):
        session.step(observation(seed))
        said.append(session.arena.inputs[TOKENS].tolist())
    assert said[0] == said[3]  # one chunk
    assert said[0] != said[4]


def test_relative_actions_go_with_it(tmp_path: Path) -> None:
    plain = load_policy(write_language(tmp_path / "plain", "pi0"))
    relative = load_policy(make_relative(write_language(tmp_path / "relative", "pi0")))
    seen = observation()
    one, other = (PolicySession(policy).step(seen).values for policy in (plain, relative))
    assert torch.equal(one + seen[STATE][:A], other)
    assert check_policy(relative).ok


def test_a_camera_that_never_was_is_no_port(tmp_path: Path) -> None:
    def add(value: Any) -> None:
        features = value["input_features"]
        features["observation.images.empty_camera_0"] = features[FRONT]

    directory = write_language(tmp_path, "pi0")
    edit_json(directory / "config.json", add)
    edit_json(
        directory / "policy_preprocessor.json",
        lambda value: add({"input_features": value["steps"][3]["config"]["features"]}),
    )
    assert len(load_policy(directory).ports().observations) == 2


def test_nothing_is_downloaded_and_the_environment_is_as_before(tmp_path: Path) -> None:
    load_policy(write_language(tmp_path, "pi0"))
    assert "HF_HUB_OFFLINE" not in os.environ


def test_without_lerobot_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lerobot_stand_in.remove(monkeypatch)
    with pytest.raises(UnsupportedError, match=r"'pi0' runs in LeRobot itself.*pip install"):
        load_policy(write_language(tmp_path, "pi0"))


def test_a_torchvision_of_another_torch_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(sys.modules["lerobot.policies.factory"], "get_policy_class", refuse)
    with pytest.raises(UnsupportedError, match=r"not installed whole \(operator torchvision::nms"):
        load_policy(write_language(tmp_path, "smolvla"))


def test_what_lerobot_raises_is_told_in_one_line(tmp_path: Path) -> None:
    directory = write_language(tmp_path, "smolvla", broken=True, vlm_model_name="somebody/model")
    with pytest.raises(CheckpointError) as caught:
        load_policy(directory)
    assert "OSError: somebody/model is not a local folder; if it misses" in str(caught.value)
    assert str(directory / "vlm") in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_obs_steps": 2}, "n_obs_steps: expected 1, found 2"),
        ({"memory_frames": 4}, "memory_frames: expected at most 1.*found 4"),
        ({"max_action_dim": 2}, "max_action_dim: expected a whole number from 3"),
        ({"chunk_size": 0}, "chunk_size"),
    ],
)
def test_what_is_not_run_here_is_refused(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_policy(write_language(tmp_path, "pi05", **changed))


def test_a_left_padding_is_refused(tmp_path: Path) -> None:
    directory = write_language(tmp_path, "pi0")
    edit_json(
        directory / "policy_preprocessor.json",
        lambda v: v["steps"][-1]["config"].update(padding_side="left"),
    )
    with pytest.raises(CheckpointError, match="padding_side: expected 'right', found 'left'"):
        load_policy(directory)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    directory = write_language(tmp_path, "pi0", tokenizer=False)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: expected the tokenizer"):
        load_policy(directory)


def test_without_the_library_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_language(tmp_path, "pi0")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnsupportedError, match="pip install tokenizers"):
        load_policy(directory)


@pytest.mark.parametrize("content", ["{}", "no JSON", '{"model": 3}'])
def test_a_damaged_tokenizer_is_one_error(tmp_path: Path, content: str) -> None:
    directory = write_language(tmp_path, "pi0")
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: expected a tokenizer"):
        load_policy(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_is_too_long_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    session = PolicySession(load_policy(write_language(tmp_path, kind)))
    most = (80 if kind == "pi05" else LENGTH) - len(ids("\n"))
    if kind == "pi05":
        most = 80 - len(ids("Task: , State: 200 200 200 200 128 128 128 128;\nAction: "))
    session.reset_("x" * most)
    with pytest.raises(InvalidArgumentError, match=r"expected at most .* tokens, found"):
        session.reset_("x" * (most + 1))


def test_its_summary_is_made_without_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lerobot_stand_in.remove(monkeypatch)
    found = summary(read_checkpoint(write_language(tmp_path, "smolvla")))
    assert "tokenizer_processor" in found["steps"]
