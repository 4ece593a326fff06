"""SmolVLA hosted against LeRobot's own run of it, bit for bit, with a small random network.

The model that it is built on has its real classes and configuration, two layers of 32, and a
tokenizer of letters, all made here: nothing is downloaded.
"""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from language_files import WORDS
from lerobot_files import FRONT, STATE, feature, statistics
from lerobot_oracle import installed, oracle, save

from flashrt_ros.bench.lerobot_peer import allow_any_torchvision
from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.hosted.predictor import NOISE
from flashrt_ros.policies.lerobot.changes import CHANGES
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

pytestmark = [
    *oracle,
    pytest.mark.skipif(
        not installed("transformers"), reason="transformers is not installed beside LeRobot"
    ),
]
SPECIAL = {
    "fake_image_token": "<fake_token_around_image>",
    "image_token": "<image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}
FEATURES: dict[str, Any] = {
    "input_features": {STATE: feature("STATE", 4), FRONT: feature("VISUAL", 3, 48, 40)},
    "output_features": {"action": feature("ACTION", 3)},
}
SIZES = {
    "type": "smolvla",
    "chunk_size": 6,
    "n_action_steps": 4,
    "max_state_dim": 8,
    "max_action_dim": 8,
    "resize_imgs_with_padding": (32, 32),
    "num_steps": 2,
    "num_vlm_layers": 2,
    "expert_width_multiplier": 0.5,
    "tokenizer_max_length": 12,
}


def write_model(directory: Path) -> Path:
    """Configuration, tokenizer and processor of a SmolVLM, as LeRobot asks for them."""
    allow_any_torchvision()
    hugging: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    words = [*WORDS, "</s>", *SPECIAL.values()]
    letters = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
    )
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer = hugging.PreTrainedTokenizerFast(
        tokenizer_object=letters,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=SPECIAL,
    )
    video = importlib.import_module("transformers.models.smolvlm.video_processing_smolvlm")
    hugging.SmolVLMProcessor(
        hugging.SmolVLMImageProcessor(), tokenizer, video.SmolVLMVideoProcessor(), image_seq_len=4
    ).save_pretrained(directory)
    hugging.SmolVLMConfig(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        text_config={
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": len(words),
            "max_position_embeddings": 512,
            "pad_token_id": 0,
        },
        scale_factor=2,
        image_token_id=words.index("<image>"),
        pad_token_id=0,
    ).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that LeRobot has written, with the model beside it."""
    root = tmp_path_factory.mktemp("smolvla")
    model = write_model(root / "model")
    stats = statistics(FEATURES["input_features"], FEATURES["output_features"])
    made = save(root / "made", {**SIZES, **FEATURES, "vlm_model_name": str(model)}, stats)
    shutil.copytree(model, made / "vlm")
    return made


def observations(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            STATE: torch.rand(4, generator=generator),
            FRONT: torch.rand(3, 48, 40, generator=generator),
        }
        for _ in range(count)
    ]


class Peer:
    """LeRobot's own policy and processors, its texts padded to a fixed length or not."""

    def __init__(self, directory: Path, padding: str) -> None:
        factory = importlib.import_module("lerobot.policies.factory")
        configs = importlib.import_module("lerobot.configs.policies")
        config = configs.PreTrainedConfig.from_pretrained(directory)
        self.policy = factory.get_policy_class("smolvla").from_pretrained(directory, config=config)
        self.before, self.behind = factory.make_pre_post_processors(
            config,
            pretrained_path=str(directory),
            preprocessor_overrides={"tokenizer_processor": {"padding": padding}},
        )

    def chunk(self, row: dict[str, torch.Tensor], task: str, noise: torch.Tensor) -> torch.Tensor:
        batch = self.before({**row, "task": task})
        found = self.policy.predict_action_chunk(batch, noise=noise)[0]
        return torch.stack([self.behind(action.unsqueeze(0))[0] for action in found])


def test_conforms(directory: Path) -> None:
    report = check_policy(load_policy(directory))
    assert report.ok, str(report)
    assert not report.inert


def test_actions_are_lerobot_s(directory: Path) -> None:
    session = PolicySession(load_policy(directory), seed=11)
    padded, cut = Peer(directory, "max_length"), Peer(directory, "longest")
    expected = torch.zeros(0)
    last = torch.zeros(0)
    for step, row in enumerate(observations(24)):
        if step % 12 == 0:
            session.reset_(("lift it", "push")[step // 12], seed=11)
        due = session.plan_due
        action = session.step(row).values
        if due:
            noise = session.arena.outputs[NOISE].clone()
            expected = padded.chunk(row, session.host.task, noise)
            torch.testing.assert_close(
                cut.chunk(row, session.host.task, noise), expected, rtol=0, atol=1e-6
            )
            # The control: other words give other actions.
            assert not torch.equal(padded.chunk(row, "drop", noise), expected)
            assert not torch.equal(expected, last)
            last = expected
        assert torch.equal(action, expected[step % 4])


def test_a_capsule_goes_on_to_the_last_bit(directory: Path) -> None:
    session = PolicySession(load_policy(directory))
    session.reset_("lift it")
    rows = observations(20)
    for row in rows[:6]:
        session.step(row)
    session.snapshot("middle")
    first = torch.stack([session.step(row).values for row in rows[6:14]])
    unlike = torch.stack([session.step(row).values for row in rows[6:14]])
    session.reset_("push")
    session.restore("middle")
    assert torch.equal(torch.stack([session.step(row).values for row in rows[6:14]]), first)
    assert not torch.equal(first, unlike)


def test_without_the_model_s_files_it_says_where_to_put_them(
    directory: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(directory, alone, ignore=shutil.ignore_patterns("vlm"))
    shutil.copy(directory / "vlm" / "tokenizer.json", alone)
    config = (alone / "config.json").read_text()
    name = str(directory.parent / "model")
    assert name in config
    (alone / "config.json").write_text(config.replace(name, "somebody/absent-model"))
    with pytest.raises(CheckpointError, match=r"somebody/absent-model.*nothing is downloaded"):
        load_policy(alone)


def test_a_guided_one_conforms_and_keeps_to_its_chunk(directory: Path, tmp_path: Path) -> None:
    guided = tmp_path / "guided"
    shutil.copytree(directory, guided)
    options = {"rtc_config": {"enabled": True, "execution_horizon": 5}}
    (guided / CHANGES).write_text(json.dumps(options))
    report = check_policy(load_policy(guided), steps=6)
    assert report.ok, str(report)
    seen = observations(12)
    runs = []
    for path in (directory, guided):
        session = PolicySession(load_policy(path), seed=3)
        runs.append(torch.stack([session.step(row, 2, 3).values for row in seen]))
    assert torch.equal(runs[0][:3], runs[1][:3]), "the first chunk has nothing to keep to"
    assert not torch.equal(*runs)
