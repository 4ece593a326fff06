"""Small hybrid robot policies, and their actions from scratch by the slow reference."""

from __future__ import annotations

import torch
from hybrid_reference import Reference
from test_hybrid_mtp import guessing_model

from flashrt_ros.policies.hybrid.policy import HybridPolicy
from flashrt_ros.policies.hybrid.robot_config import ImageConfig, RobotConfig
from flashrt_ros.policies.hybrid.robot_head import RobotNetwork
from flashrt_ros.policies.recurrent_config import VectorConfig

STATE, GOAL, FRONT = "observation.state", "observation.goal", "observation.images.front"
JOINTS = ("a", "b", "c", "d", "e")

Observation = dict[str, torch.Tensor]


def robot_config(drafts: int = 2, **changes: object) -> RobotConfig:
    values: dict[str, object] = {
        "model": guessing_model().config,
        "observations": (
            VectorConfig(STATE, 5, JOINTS, "rad"),
            VectorConfig(GOAL, 2, normalisation="identity", required=False),
        ),
        "images": (ImageConfig(FRONT, 16, 32, patch=4, grid=2),),
        "action": VectorConfig("action", 5, JOINTS, "rad", normalisation="quantiles"),
        "n_bins": 64,
        "first_bin": 16,
        "start_token": 3,
        "drafts": drafts,
        "max_steps": 40,
    }
    return RobotConfig(**{**values, **changes})  # type: ignore[arg-type]


def robot_policy(drafts: int = 2, seed: int = 0, **changes: object) -> HybridPolicy:
    """Random weights and plausible statistics; drafts are accepted at times."""
    config = robot_config(drafts, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = RobotNetwork(config, guessing_model(seed))
        for projection in network.projections:
            projection.weight.data.mul_(4.0)
    bounds = torch.linspace(0.5, 1.5, config.action.size)
    network.action_normaliser.set_({"q01": -bounds, "q99": 2 * bounds, "min": -bounds,
                                    "max": bounds})  # fmt: skip
    for normaliser in network.normalisers:
        zero = torch.zeros(normaliser.shape)
        normaliser.set_({"mean": zero + 0.1, "std": zero + 1.1})
    return HybridPolicy(config, network)


def episode(steps: int, seed: int = 0) -> list[Observation]:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(steps, 5, generator=generator).cumsum(0) * 0.3
    goal = torch.randn(2, generator=generator)
    images = torch.rand(steps, 3, 16, 32, generator=generator)
    return [{STATE: state[n], GOAL: goal, FRONT: images[n]} for n in range(steps)]


@torch.no_grad()
def reference_actions(policy: HybridPolicy, seen: list[Observation]) -> list[list[int]]:
    """Tokens of each action, the whole sequence computed anew for every token."""
    network, config = policy.module(), policy.module().config
    reference = Reference(network.language)
    parts, last, found = [], config.start_token, []
    for observation in seen:
        parts += [reference.embed([last]), network.observe(observation).double()]
        tokens: list[int] = []
        for n in range(config.action.size):
            hidden_D = reference.hidden(torch.cat(parts))[-1]
            logits = reference.logits(hidden_D)[config.first_bin :][: config.n_bins]
            tokens.append(int(logits.argmax()) + config.first_bin)
            if n < config.action.size - 1:
                parts.append(reference.embed([tokens[-1]]))
        last = tokens[-1]
        found.append(tokens)
    return found
