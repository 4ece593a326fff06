#!/usr/bin/env python3
"""Trains an ACT or a Diffusion Policy on the demonstration's arm and writes LeRobot's directory.

A claim about a trained checkpoint needs one, and nothing is downloaded here. The arm goes to a
target that only the image shows, the expert being the demonstration's. Two steps, since the expert
needs MuJoCo's module and training wants a GPU:

    scripts/train_checkpoints.py demonstrations demos.safetensors
    scripts/train_checkpoints.py act demos.safetensors DIRECTORY --device cuda --steps 400
    scripts/train_checkpoints.py diffusion demos.safetensors DIRECTORY --device cuda --steps 400

Beside the checkpoint lies ``observations.safetensors``: 1000 observations that were not trained
on, for ``flashrt_ros bench policy --recorded``.

Tensor suffixes: N demonstrations, L control steps, B batch, O observations, H rows of a chunk, S
state, A action.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test")]
from act_files import SMALL as ACT  # noqa: E402
from diffusion_files import SMALL as DIFFUSION  # noqa: E402
from lerobot_files import ACTION, STATE, feature, write_checkpoint  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from flashrt_ros.policies.diffusion.checkpoint import read_config  # noqa: E402
from flashrt_ros.policies.diffusion.network import DiffusionNetwork  # noqa: E402
from flashrt_ros.policies.lerobot.act_config import read_act_config  # noqa: E402
from flashrt_ros.policies.lerobot.act_network import ACTNetwork  # noqa: E402
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint  # noqa: E402
from flashrt_ros.policies.resnet import make_resnet  # noqa: E402

CAMERA, SIZE, RATE_HZ, HELD_OUT = "observation.image", 96, 10.0, 1000
FOLLOWED = 0.6
"""Share of the way to its command that the arm goes in a control step."""


def demonstrations(path: Path, count: int = 2048, steps: int = 48) -> None:
    """Writes states, targets and commands of the demonstration's expert."""
    from flashrt_ros.demo.arm import joints_for, tip_of
    from flashrt_ros.demo.task import RING_CENTRE_M, RING_RADIUS_M, expert

    rng = np.random.default_rng(0)

    def somewhere() -> np.ndarray[Any, Any]:
        angle = rng.uniform(0, 2 * np.pi, count)
        radius = RING_RADIUS_M * 1.2 * np.sqrt(rng.uniform(0, 1, count))
        offsets = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
        return np.asarray(RING_CENTRE_M) + offsets

    goal = somewhere()
    position = joints_for(somewhere())
    velocity = np.zeros_like(position)
    states, actions, tips = [], [], []
    for _ in range(steps):
        command = expert(position, goal, np.zeros(count), np.ones(count))
        states.append(np.concatenate((position, velocity), axis=-1))
        actions.append(command)
        tips.append(tip_of(position))
        velocity = FOLLOWED * (command - position) * RATE_HZ
        position = position + velocity / RATE_HZ
    found = {
        "state": np.stack(states, 1),
        "action": np.stack(actions, 1),
        "tip": np.stack(tips, 1),
        "goal": goal,
    }
    save_file({k: torch.from_numpy(v.astype(np.float32)) for k, v in found.items()}, path)


def draw(tip_B2: torch.Tensor, goal_B2: torch.Tensor) -> torch.Tensor:
    """Images ``(B, 3, 96, 96)``, 0 to 1: the tip, the target, and a table."""
    axis = torch.linspace(0, 1, SIZE, device=tip_B2.device)
    y, x = torch.meshgrid(axis - 0.5, axis, indexing="ij")

    def disc(at_B2: torch.Tensor, radius: float) -> torch.Tensor:
        apart = (x - at_B2[:, 0, None, None]) ** 2 + (y - at_B2[:, 1, None, None]) ** 2
        return torch.sigmoid((radius - apart.sqrt()) * 100)

    target, tip = disc(goal_B2, 0.05), disc(tip_B2, 0.03)
    table = 0.6 + 0.2 * torch.sin(20 * x) * torch.cos(15 * y)
    return torch.stack(
        (table * (1 - tip), table * (1 - target) * (1 - tip), table * (1 - target)), dim=1
    )


class Data:
    """Demonstrations on a device, with the statistics that a checkpoint has of them."""

    def __init__(self, path: Path, device: str) -> None:
        found = load_file(path)
        self.state_NLS, self.action_NLA, self.tip_NL2 = (
            found[name].to(device) for name in ("state", "action", "tip")
        )
        self.goal_N2 = found["goal"].to(device)
        self.train = len(self.goal_N2) * 3 // 4
        sample = draw(self.tip_NL2[:256, 5], self.goal_N2[:256])
        self.stats = {
            STATE: _statistics(self.state_NLS[: self.train].flatten(0, 1)),
            ACTION: _statistics(self.action_NLA[: self.train].flatten(0, 1)),
            CAMERA: {
                name: value.view(3, 1, 1)
                for name, value in _statistics(sample.transpose(0, 1).flatten(1).T).items()
            },
        }

    def batch(
        self, size: int, observed: int, rows: int, held_out: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """States ``(B, O, S)``, images ``(B, O, 3, H, W)`` and actions from the oldest on."""
        device = self.goal_N2.device
        low, high = (self.train, len(self.goal_N2)) if held_out else (0, self.train)
        which = torch.randint(low, high, (size, 1), device=device)
        last = self.state_NLS.shape[1]
        start = torch.randint(0, last - observed, (size, 1), device=device)
        seen = start + torch.arange(observed, device=device)
        ahead = (start + torch.arange(rows, device=device)).clamp(max=last - 1)
        tips = self.tip_NL2[which, seen].flatten(0, 1)
        goals = self.goal_N2[which].expand(-1, observed, -1).flatten(0, 1)
        images = draw(tips, goals).unflatten(0, (size, observed))
        return self.state_NLS[which, seen], images, self.action_NLA[which, ahead]

    def scale(self, name: str, x: torch.Tensor, mode: str) -> torch.Tensor:
        """Normalises."""
        found = {k: v.to(x.device) for k, v in self.stats[name].items()}
        if mode == "MIN_MAX":
            return 2 * (x - found["min"]) / (found["max"] - found["min"]) - 1
        return (x - found["mean"]) / (found["std"] + 1e-8)


def _statistics(x_NS: torch.Tensor) -> dict[str, torch.Tensor]:
    x_NS = x_NS.cpu()
    return {"mean": x_NS.mean(0), "std": x_NS.std(0), "min": x_NS.amin(0), "max": x_NS.amax(0)}


def fit(network: nn.Module, loss: Any, steps: int, rate: float) -> None:
    """Minimises ``loss()`` for so many steps, the rate falling to nothing."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-4)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: min(1, (n + 1) / warm) * (1 + np.cos(np.pi * n / steps)) / 2
    )
    begun, device = time.perf_counter(), next(network.parameters()).device.type
    for number in range(steps):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            found = loss()
        optimiser.zero_grad(set_to_none=True)
        found.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimiser.step()
        schedule.step()
        if number % max(1, steps // 8) == 0 or number == steps - 1:
            taken = time.perf_counter() - begun
            print(f"step {number + 1} of {steps}: loss {found.item():.4f}, {taken:.1f} s")


def act_forward(net: ACTNetwork, state_BS: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """``ACTNetwork.forward`` for a batch: ``(B, H, A)``."""
    size = len(state_BS)
    latent = net.encoder_latent_input_proj(net.get_buffer("latent").expand(size, -1))
    cells = net.encoder_img_feat_input_proj(net.backbone(images)).flatten(2).permute(2, 0, 1)
    vectors = [latent.unsqueeze(0), net.encoder_robot_state_input_proj(state_BS).unsqueeze(0)]
    x_TBD = torch.cat((*vectors, cells))
    _, position = net.fixed.get()
    for layer in net.encoder.layers:
        x_TBD = layer(x_TBD, position)
    x_TBD = net.encoder.norm(x_TBD)
    rows, query = net.get_buffer("rows").expand(-1, size, -1), net.decoder_pos_embed.weight
    for layer in net.decoder.layers:
        rows = layer(rows, query.unsqueeze(1), x_TBD, x_TBD + position)
    return net.action_head(net.decoder.norm(rows).transpose(0, 1))


def train_act(
    data: Data, directory: Path, device: str, steps: int, size: int, small: bool
) -> None:
    """Trains with batch norms, which become fixed statistics in the checkpoint."""
    sizes = {"dim_model": 64, "n_heads": 2, "dim_feedforward": 128} if small else {}
    default = {"dim_model": 512, "n_heads": 8, "dim_feedforward": 3200, "n_encoder_layers": 4}
    config = {
        **{**ACT, **default, **sizes, "latent_dim": 32},
        "input_features": {STATE: feature("STATE", 4), CAMERA: feature("VISUAL", 3, SIZE, SIZE)},
        "output_features": {ACTION: feature("ACTION", 2)},
        "chunk_size": 20,
        "n_action_steps": 10,
    }
    write_checkpoint(directory, config, {}, data.stats)
    net = ACTNetwork(read_act_config(read_checkpoint(directory)))
    net.backbone = make_resnet("resnet18", nn.BatchNorm2d)
    net = net.to(device).train()

    def loss() -> torch.Tensor:
        state, images, action = data.batch(size, 1, 20)
        state, images = state[:, 0], images[:, 0]
        found = act_forward(
            net, data.scale(STATE, state, "MEAN_STD"), data.scale(CAMERA, images, "MEAN_STD")
        )
        return functional.l1_loss(found.float(), data.scale(ACTION, action, "MEAN_STD"))

    fit(net, loss, steps, 1e-4 if not small else 1e-3)
    weights = {f"model.{k}": v for k, v in net.state_dict().items() if "num_batches" not in k}
    finish(directory, config, weights, data)


def train_diffusion(
    data: Data, directory: Path, device: str, steps: int, size: int, small: bool
) -> None:
    """Trains on the timesteps of its own sampler alone, which are all that it will be asked."""
    default = {"down_dims": [512, 1024, 2048], "diffusion_step_embed_dim": 128}
    config = {
        **DIFFUSION,
        **(default if not small else {"down_dims": [32, 64]}),
        "type": "diffusion",
        "input_features": {STATE: feature("STATE", 4), CAMERA: feature("VISUAL", 3, SIZE, SIZE)},
        "output_features": {ACTION: feature("ACTION", 2)},
        "crop_shape": [84, 84],
        "spatial_softmax_num_keypoints": 32,
        "num_inference_steps": 10,
    }
    write_checkpoint(directory, config, {}, data.stats)
    net = DiffusionNetwork(read_config(read_checkpoint(directory))).to(device).train()
    kept_K, noise_K = (
        torch.tensor([getattr(s, name) for s in net.schedule.steps], device=device)
        for name in ("root_kept", "root_noise")
    )

    edge = (SIZE - 84) // 2

    def loss() -> torch.Tensor:
        state, images, action = data.batch(size, 2, 16)
        images = images[..., edge : edge + 84, edge : edge + 84]
        seen = data.scale(CAMERA, images, "MEAN_STD").flatten(0, 1)
        features = net.rgb_encoder(seen).view(size, 2, -1)
        condition = torch.cat((data.scale(STATE, state, "MIN_MAX"), features), dim=-1).flatten(1)
        clean = data.scale(ACTION, action, "MIN_MAX")
        step_B, noise = (
            torch.randint(0, len(kept_K), (size,), device=device),
            torch.randn_like(clean),
        )
        noisy = kept_K[step_B, None, None] * clean + noise_K[step_B, None, None] * noise
        return functional.mse_loss(net.unet(noisy, step_B, condition).float(), noise)

    fit(net, loss, steps, 1e-4 if not small else 1e-3)
    finish(directory, config, {f"diffusion.{k}": v for k, v in net.state_dict().items()}, data)


def finish(directory: Path, config: Any, weights: Any, data: Data) -> None:
    """Writes weights and the observations that were not trained on."""
    write_checkpoint(
        directory,
        config,
        {k: v.detach().cpu().contiguous() for k, v in weights.items()},
        data.stats,
    )
    state, images, _ = data.batch(HELD_OUT, 1, 1, held_out=True)
    held_out = {
        STATE: state[:, 0].cpu(),
        CAMERA: (255 * images[:, 0]).round().to(torch.uint8).cpu(),
    }
    save_file(held_out, directory / "observations.safetensors")
    print(f"written: {directory}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("demonstrations", "act", "diffusion"))
    parser.add_argument("demonstrations", type=Path, metavar="FILE")
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="a network that a CPU can train")
    arguments = parser.parse_args()
    if arguments.what == "demonstrations":
        demonstrations(arguments.demonstrations)
        return
    torch.manual_seed(0)
    train = train_act if arguments.what == "act" else train_diffusion
    data = Data(arguments.demonstrations, arguments.device)
    size = arguments.batch
    train(data, arguments.directory, arguments.device, arguments.steps, size, arguments.small)


if __name__ == "__main__":
    main()
