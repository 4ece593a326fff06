"""Trains the demo's policy by imitation: ``python -m flashrt_ros.demo.train --out DIRECTORY``.

The expert of ``task`` labels what a crowd of arms lives through. In the first round the expert
drives; in later ones mostly the policy itself, so that it learns to come back from its own
mistakes (DAgger: Ross, Gordon and Bagnell, 2011, "A Reduction of Imitation Learning and
Structured Prediction to No-Regret Online Learning"). Labels carry a small tremor, which the
mixture head takes over as its least spread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from flashrt_ros.demo.arm import JOINTS
from flashrt_ros.demo.crowd import Crowd
from flashrt_ros.demo.task import RING_CENTRE_M, TARGET_COUNT
from flashrt_ros.exit_code import in_words
from flashrt_ros.policies.normalisation import Normaliser
from flashrt_ros.policies.recurrent import RecurrentPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig, VectorConfig
from flashrt_ros.policies.recurrent_network import Mixture, RecurrentNetwork

TREMOR_RAD = 0.01
STEPS = 240
"""Length of a script, control steps."""
ARMS = 192
BATCH = 64
LONG_STEPS, LONG_ARMS, LONG_BATCH = 960, 48, 16
"""Scripts of the same weight in all, in which mostly nothing is shown: memory must not fade."""
LONG_SHARE = 0.4
"""Share of the gradient steps that they get, once there are some."""
STUDENT_SHARE = 0.85
"""Share of the arms that the policy drives itself after the first round."""

CONFIG = RecurrentConfig(
    observations=(
        VectorConfig(
            "observation.state",
            4,
            names=("joint1.position", "joint2.position", "joint1.velocity", "joint2.velocity"),
        ),
        VectorConfig(
            "observation.cue",
            3,
            names=("x", "y", "present"),
            required=False,
        ),
    ),
    action=VectorConfig("action", 2, names=JOINTS, unit="rad"),
    cell="gru",
    hidden_size=64,
    encoder_sizes=(64,),
    head_sizes=(64,),
    activation="elu",
    head="gmm",
    n_modes=4,
    min_std=0.005,
    draw="sample",
    horizon=0,
)

START_WEIGHT = 15.0
"""Of the first step in a new pose, and half of it of the second, against 1 of others: a command
that still belongs to the pose before would be refused as an unsafe start."""

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Observations ``(N, T, 7)`` and labels ``(N, T, 2)``, float32; memory ``(N, T)``, int64; weights
``(N, T)``, float32."""


@torch.no_grad()
def gather(
    crowd: Crowd, network: RecurrentNetwork | None, rng: np.random.Generator, steps: int
) -> Batch:
    """Lets a crowd live through new scripts.

    Args:
        crowd: N arms.
        network: Drives ``STUDENT_SHARE`` of the arms; None: the expert drives all.
        rng: Source of all chance.
        steps: T.
    """
    count = len(crowd.arms)
    crowd.begin(rng, steps)
    student = rng.random(count) < STUDENT_SHARE
    h_BD = [torch.zeros(count, CONFIG.hidden_size)]
    seen, labels = [], []
    for _ in range(steps):
        observation, label = crowd.observe()
        command = label + rng.normal(0.0, TREMOR_RAD, label.shape)
        if network is not None:
            feature_BF, h_BD, _ = network.step(torch.from_numpy(observation), h_BD)
            drawn = draw(network, feature_BF, rng)
            command = np.where(student[:, None], drawn, command)
        crowd.step(command)
        seen.append(observation)
        labels.append(label)
    return (
        torch.from_numpy(np.stack(seen, 1)),
        torch.from_numpy(np.stack(labels, 1)),
        torch.from_numpy(crowd.memory.T.copy()),
        _weights(torch.from_numpy(crowd.placed.T.copy())),
    )


def _weights(placed_NT: torch.Tensor) -> torch.Tensor:
    weight_NT = torch.ones(placed_NT.shape)
    weight_NT[:, 1:][placed_NT[:, :-1]] = START_WEIGHT / 2
    weight_NT[placed_NT] = START_WEIGHT
    return weight_NT


def draw(
    network: RecurrentNetwork, feature_BF: torch.Tensor, rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Samples actions ``(B, 2)``, radians, from the head."""
    mixture = network.predict(feature_BF)
    assert isinstance(mixture, Mixture)
    count = feature_BF.shape[0]
    uniform = torch.from_numpy(rng.random((count, 1), dtype=np.float32))
    normal = torch.from_numpy(rng.standard_normal((count, 2), dtype=np.float32))
    return network.action_normaliser.restore(mixture.draw(uniform, normal)).double().numpy()


def keep_(network: RecurrentNetwork) -> None:
    """Lets the recurrence begin as one that keeps what it has: update gates mostly closed."""
    size = CONFIG.hidden_size
    with torch.no_grad():
        # torch.nn.GRU orders reset, update, new.
        network.recurrence.get_parameter("bias_ih_l0")[size : 2 * size].uniform_(0.0, 4.0)


def imitate(
    network: RecurrentNetwork,
    recall: nn.Linear,
    observation_BTS: torch.Tensor,
    label_BTA: torch.Tensor,
    memory_BT: torch.Tensor,
    weight_BT: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses of one batch.

    Args:
        network: Learns.
        recall: Reads from the hidden state what is remembered; only to train, it is not kept.
            Without this second loss the memory takes many times longer to form.
        observation_BTS: Observations, float32.
        label_BTA: Commands of the expert, radians.
        memory_BT: Index of the target last shown, int64.
        weight_BT: Of each step's action, float32.

    Returns:
        Negative log likelihood of the action, cross entropy of the memory, and the mean absolute
        error of the likeliest mode in radians (for people).
    """
    hidden_BTD, _ = network.recurrence(network.encode(observation_BTS))
    mixture = network.predict(network.trunk(hidden_BTD))
    assert isinstance(mixture, Mixture)
    tremor = TREMOR_RAD * torch.randn_like(label_BTA)
    target_BTA = network.action_normaliser.normalise(label_BTA + tremor)
    action = -(mixture.log_density(target_BTA) * weight_BT).sum() / weight_BT.sum()
    memory = nn.functional.cross_entropy(recall(hidden_BTD).flatten(0, 1), memory_BT.flatten())
    with torch.no_grad():
        likely = network.action_normaliser.restore(mixture.likely())
        error = (likely - label_BTA).abs().mean()
    return action, memory, error


def train(seed: int, rounds: int, updates: int, warm_updates: int) -> RecurrentNetwork:
    """Trains a network.

    Args:
        seed: Of scripts, initial weights, batches and tremor.
        rounds: Times that the crowd is sent out.
        updates: Gradient steps after each round.
        warm_updates: Those after the first.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    crowd, long_crowd = Crowd(ARMS), Crowd(LONG_ARMS)
    network = RecurrentNetwork(CONFIG)
    keep_(network)
    recall = nn.Linear(CONFIG.hidden_size, TARGET_COUNT + 1)
    pools = [gather(crowd, None, rng, STEPS)]
    network.measure_(pools[0][0], pools[0][1])
    # Measured deviations would be ruled by whether a cue is there, and hide where it is.
    cue = network.observation_normaliser[1]
    assert isinstance(cue, Normaliser)
    cue.set_({"mean": (RING_CENTRE_M[0] / 2, 0.0, 0.5), "std": (0.1, 0.1, 0.5)})
    parameters = [*network.parameters(), *recall.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=1e-5)
    total = warm_updates + rounds * updates
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total, pct_start=0.1)
    started = time.monotonic()
    for turn in range(rounds + 1):
        if turn:
            pools[0] = _joined(pools[0], gather(crowd, network, rng, STEPS))
        if turn > rounds // 2:
            more = gather(long_crowd, network, rng, LONG_STEPS)
            pools[1:] = [_joined(pools[1], more) if len(pools) > 1 else more]
        count = updates if turn else warm_updates
        means = torch.zeros(3)
        for _ in range(count):
            long = len(pools) > 1 and rng.random() < LONG_SHARE
            pool = pools[int(long)]
            pick = torch.from_numpy(rng.integers(0, len(pool[0]), LONG_BATCH if long else BATCH))
            losses = imitate(network, recall, *(part[pick] for part in pool))
            optimiser.zero_grad()
            (losses[0] + losses[1]).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            schedule.step()
            means += torch.stack([loss.detach() for loss in losses]) / count
        action, memory, error = means.tolist()
        print(
            f"round {turn:2d}: {[len(pool[0]) for pool in pools]} scripts, "
            f"loss {action:6.3f}, recall {memory:.4f}, error {error * 1e3:5.1f} mrad, "
            f"{time.monotonic() - started:4.0f} s",
            flush=True,
        )
    return network.eval()


def _joined(one: Batch, other: Batch) -> Batch:
    return (
        torch.cat((one[0], other[0])),
        torch.cat((one[1], other[1])),
        torch.cat((one[2], other[2])),
        torch.cat((one[3], other[3])),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the module.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(description="Train the policy of the demonstration.")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="directory to write; a policy that is there is replaced",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--updates", type=int, default=120, help="gradient steps after each round")
    parser.add_argument("--warm-updates", type=int, default=400, help="those after the first")
    options = parser.parse_args(argv)
    network = train(options.seed, options.rounds, options.updates, options.warm_updates)
    RecurrentPolicy(CONFIG, network).save(options.out)
    print(f"written to {options.out}; measure it with python -m flashrt_ros.demo.rollout")
    return 0


if __name__ == "__main__":
    raise SystemExit(in_words(main))
