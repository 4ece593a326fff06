"""A network alone as a program: its manifest makes a whole policy of it, with queue and noise.

The numbers are those of the network called by hand, normalised by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.hosted.predictor import NOISE
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

STATE, FRONT = "observation.state", "observation.images.front"
MANIFEST: dict[str, Any] = {
    "format": "flashrt_ros.predictor",
    "version": 1,
    "name": "mine",
    "program": "predict.pt2",
    "chunk_size": 5,
    "n_action_steps": 3,
    "observations": [
        {
            "key": STATE,
            "shape": [4],
            "unit": "rad",
            "normalisation": {"mode": "mean_std", "mean": [1, 2, 3, 4], "std": [2, 2, 2, 2]},
        },
        {
            "key": FRONT,
            "shape": [3, 6, 8],
            "normalisation": {"mode": "min_max", "min": [0, 0, 0], "max": [1, 1, 2]},
        },
    ],
    "action": {"size": 2, "normalisation": {"mode": "min_max", "min": [0, -1], "max": [2, 1]}},
    "noise": [1, 5, 2],
}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.see = nn.Conv2d(3, 4, 3)
            self.act = nn.Linear(4 + 4 + 2, 2)

    def forward(self, state: torch.Tensor, image: torch.Tensor, noise: torch.Tensor) -> Any:
        seen = torch.cat((state, self.see(image).mean((2, 3))), -1).unsqueeze(1)
        return noise + self.act(torch.cat((seen.expand(-1, 5, -1), noise), -1))


def write(directory: Path, **changed: Any) -> Path:
    given = (torch.zeros(1, 4), torch.zeros(1, 3, 6, 8), torch.zeros(1, 5, 2))
    with torch.no_grad():
        program = torch.export.export(Network().eval(), given)
    torch.export.save(program, directory / "predict.pt2")
    (directory / "manifest.json").write_text(json.dumps({**MANIFEST, **changed}))
    return directory


def test_conforms(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path))
    assert policy.family == "chunked.hosted.mine"
    assert policy.ports().observations[0].unit == "rad"
    report = check_policy(policy)
    assert report.ok, str(report)
    assert not report.inert


def test_actions_are_the_network_s(tmp_path: Path) -> None:
    session = PolicySession(load_policy(write(tmp_path)), seed=9)
    row = {STATE: torch.rand(4), FRONT: torch.rand(3, 6, 8)}
    actions = torch.stack([session.step(row).values for _ in range(3)])
    state = (row[STATE] - torch.tensor([1.0, 2, 3, 4])) / (2 + 1e-8)
    image = 2 * row[FRONT] / torch.tensor([1.0, 1, 2]).view(3, 1, 1) - 1
    noise = session.arena.outputs[NOISE]
    with torch.no_grad():
        chunk = Network()(state[None], image[None], noise)[0]
        other = Network()(state[None], image[None], noise + 1)[0]
    low, high = torch.tensor([0.0, -1]), torch.tensor([2.0, 1])
    torch.testing.assert_close(actions, ((chunk + 1) / 2 * (high - low) + low)[:3])
    assert not torch.allclose(actions, ((other + 1) / 2 * (high - low) + low)[:3])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": 2}, "version: expected 1, found 2"),
        ({"program": "../predict.pt2"}, "plain name of a .pt2 file"),
        ({"program": "other.pt2"}, "other.pt2: cannot be read"),
        ({"noise": None}, "expected 2 inputs and 1 outputs"),
        ({"chunk_size": "5x"}, "found a fault: ValueError"),
        ({"n_action_steps": 9}, "n_action_steps: expected 1 to chunk_size"),
        ({"action": {"size": 2, "normalisation": {"mode": "min_max", "min": [0, 1]}}}, "max"),
        ({"action": {}}, "found a fault: KeyError"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_policy(write(tmp_path, **changed))
