"""Trains the hybrid policy of the recall task: ``python -m flashrt_ros.demo.train_hybrid``.

First the model learns to imitate the expert, all tokens of a life in one pass (``parallel``). Then
its MTP head is distilled: it learns to say beforehand what the model would choose. One GPU takes
about seven minutes; MuJoCo, which the lives need, may have run elsewhere (``--data``).

Tensor suffixes: those of ``recall_data``; W tokens of a life, D width, E tokens of an action.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from flashrt_ros.demo.recall import ACTION, GOAL_BOUNDS_M, HOME, OBSERVATIONS, PLACES, goals
from flashrt_ros.demo.recall_data import (
    STEPS,
    WINDOW,
    WINDOW_BEFORE,
    WINDOW_WAIT,
    Batch,
    Lives,
    simulate,
    tell,
)
from flashrt_ros.demo.task import RING_CENTRE_M
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.exit_code import in_words
from flashrt_ros.policies.hybrid.config import FULL, LINEAR, ModelConfig
from flashrt_ros.policies.hybrid.parallel import drafted_values, hidden_values
from flashrt_ros.policies.hybrid.policy import HybridPolicy
from flashrt_ros.policies.hybrid.robot_config import RobotConfig
from flashrt_ros.policies.hybrid.robot_head import RobotNetwork
from flashrt_ros.policies.normalisation import Normaliser
from flashrt_ros.runtime.device import open_device

BINS = 96
CONFIG = RobotConfig(
    model=ModelConfig(
        vocab_size=BINS + 1,
        hidden_size=64,
        intermediate_size=160,
        layer_types=(LINEAR, LINEAR, FULL, LINEAR),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rotary_dim=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        mtp=True,
    ),
    observations=OBSERVATIONS,
    action=ACTION,
    n_bins=BINS,
    first_bin=1,
    drafts=2,
    max_steps=1024,
)
CHUNK = 32
"""Of the delta rule; the fastest on a CPU."""
WARM = 0.05
"""Share of the updates in which the learning rate rises."""
SEEN, SIZE = len(OBSERVATIONS), ACTION.size
EACH = SEEN + SIZE
"""Tokens of a control step."""
MISTAKEN, MOVED, STUBBORN = 0.04, 0.2, 0.5
"""Share of the steps whose action, as the model finds it among its tokens, has another goal; of
those whose joint targets are some bins off; and of the lives in which a question is followed by
one wrong goal. It must not believe everything that it has said."""
STANDING_WEIGHT, FIRST_WEIGHT = 3.0, 8.0
"""Of a step while a question stands, and of its first step, against 1 of others."""


@dataclass(frozen=True)
class Options:
    """How long and how hard.

    Attributes:
        seed: Of initial weights, scripts and mistakes.
        updates: Gradient steps of the model.
        distil: Those of its MTP head; with many more nearly every draft is right, and one that is
            never wrong leaves its state, and rejections, untried.
        batch: Lives of a step.
        rate: Largest learning rate.
        minutes: There are no more updates than fit into so many; 0: any time will do.
        long_share: Share of the updates that see whole lives; the others see the steps about the
            first question, in which all that must be remembered happens.
        start: Directory of weights to go on from, except for those of the head; None: random ones.
    """

    seed: int = 0
    updates: int = 4000
    distil: int = 140
    batch: int = 64
    rate: float = 3e-3
    minutes: float = 0.0
    long_share: float = 0.25
    start: Path | None = None


def build(lives: Lives) -> RobotNetwork:
    """A network whose statistics are set, and whose delta rule begins with many time spans."""
    network = RobotNetwork(CONFIG)
    low, high = lives.command.amin((0, 1)), lives.command.amax((0, 1))
    bounds = torch.tensor(GOAL_BOUNDS_M)
    network.action_normaliser.set_(
        {"min": torch.cat((bounds[0], low)), "max": torch.cat((bounds[1], high))}
    )
    statistics: tuple[dict[str, object], ...] = (
        {"mean": lives.seen.mean((0, 1)), "std": lives.seen.std((0, 1))},
        {"mean": (RING_CENTRE_M[0] / 2, 0.0, 0.5), "std": (0.1, 0.1, 0.5)},
        {"mean": (1.0, 0.5), "std": (1.0, 0.5)},
    )
    for normaliser, values in zip(network.normalisers, statistics, strict=True):
        assert isinstance(normaliser, Normaliser)
        normaliser.set_({name: torch.as_tensor(value) for name, value in values.items()})
    for name, parameter in network.language.named_parameters():
        if name.endswith("dt_bias"):
            span = torch.exp(torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.3)))
            # softplus of the bias, with a rate of one, is the decay of a token.
            parameter.data = span + torch.log(-torch.expm1(-span))
    return network


def embed(network: RobotNetwork, batch: Batch, generator: torch.Generator | None) -> tuple[
    torch.Tensor, torch.Tensor
]:  # fmt: skip
    """Tokens of a batch, in the order in which the policy commits them.

    Args:
        network: It.
        batch: See there.
        generator: Of mistakes among the action tokens; None: there are none.

    Returns:
        Embeddings ``(W, B, D)`` and the right action tokens ``(T, B, E)``.
    """
    right_BTE = network.tokens(batch.action)
    said_BTE = right_BTE
    if generator is not None:
        said_BTE = _spoil(network, right_BTE, batch.asked, generator)
    start_B1E = torch.full_like(said_BTE[:, :1], CONFIG.start_token)
    last_BT1 = torch.cat((start_B1E, said_BTE[:, :-1]), 1)[..., -1:]
    language = network.language
    vectors = [
        network.projections[n](network.normalisers[n].normalise(values))  # type: ignore[operator]
        for n, values in enumerate((batch.seen, batch.cue, batch.question))
    ]
    parts_BTWD = torch.cat(
        (
            language.embed(last_BT1),
            torch.stack(vectors, 2),
            language.embed(said_BTE[..., :-1]),
        ),
        2,
    )
    return parts_BTWD.flatten(1, 2).transpose(0, 1), right_BTE.transpose(0, 1)


def _spoil(
    network: RobotNetwork,
    right_BTE: torch.Tensor,
    asked_BT: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    (count, steps), device = right_BTE.shape[:2], right_BTE.device

    def share(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device=device)

    table = torch.zeros(HOME + 1, SIZE, device=device)
    table[:, :2] = torch.as_tensor(goals(), dtype=torch.float32, device=device)
    others = network.tokens(table)
    # A question is answered from memory each time, not by what was answered before; but what is
    # said last while it stands must be right, or nobody could know later.
    lasting_BT = asked_BT & asked_BT.roll(-1, 1) & asked_BT.roll(-2, 1)
    stubborn_BT = lasting_BT & (share(count, 1) < STUBBORN)
    slip_BT = share(count, steps) < MISTAKEN
    other_BT = (share(count, steps) * (HOME + 1)).long()
    one_B1 = (share(count, 1) * (HOME + 1)).long()
    wrong_BTE = torch.where(stubborn_BT[..., None], others[one_B1], others[other_BT])
    goal_BTE = torch.where((stubborn_BT | slip_BT)[..., None], wrong_BTE, right_BTE)[..., :2]
    off_BTE = (share(count, steps, 2) * 5).long() - 2
    off_BTE = off_BTE * (share(count, steps, 1) < MOVED)
    low, high = CONFIG.first_bin, CONFIG.first_bin + BINS - 1
    return torch.cat((goal_BTE, (right_BTE[..., 2:] + off_BTE).clamp(low, high)), -1)


def run(
    network: RobotNetwork,
    batch: Batch,
    generator: torch.Generator | None,
    between: list[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns embeddings and hidden values ``(W, B, D)``, and the right tokens ``(T, B, E)``."""
    embedded_WBD, right_TBE = embed(network, batch, generator)
    wiped_BTW = torch.zeros(*batch.forgets.shape, EACH, dtype=torch.bool, device=right_TBE.device)
    wiped_BTW[..., 0] = batch.forgets
    wiped_WB = wiped_BTW.flatten(1).t()
    hidden_WBD = hidden_values(network.language, embedded_WBD, CHUNK, wiped_WB, between)
    return embedded_WBD, hidden_WBD, right_TBE


def action_logits(network: RobotNetwork, hidden_WBD: torch.Tensor) -> torch.Tensor:
    """Logits ``(T, B, E, bins)`` behind the tokens that an action's tokens follow."""
    each = hidden_WBD.unflatten(0, (-1, EACH))[:, SEEN:].transpose(1, 2)
    return network.language.logits(each, CONFIG.first_bin, CONFIG.n_bins)


def train(lives: Lives, options: Options, device: torch.device) -> RobotNetwork:
    """Trains a network; prints what it does."""
    torch.manual_seed(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed)
    network = build(lives)
    if options.start is not None:
        known = HybridPolicy.load(options.start).module().state_dict()
        kept = {name: value for name, value in known.items() if ".mtp." not in name}
        network.load_state_dict({**network.state_dict(), **kept})
    network, counter = network.to(device), nn.Linear(CONFIG.model.hidden_size, PLACES + 1)
    lives = lives.to(device)
    head = [p for n, p in network.named_parameters() if ".mtp." in n]
    trunk = [p for n, p in network.named_parameters() if ".mtp." not in n]
    size = sum(p.numel() for p in network.parameters())
    print(f"seed {options.seed}, {len(lives.seen)} lives, {size} weights, {device}", flush=True)
    limit_s = 60.0 * options.minutes
    _descend(
        network,
        lives,
        options,
        generator,
        [*trunk, *counter.to(device).parameters()],
        options.updates,
        0.85 * limit_s,
        partial(imitate, counter),
    )
    _descend(network, lives, options, generator, head, options.distil, 0.15 * limit_s, foresee)
    return network.cpu().eval()


def _descend(  # type: ignore[no-untyped-def]
    network, lives, options, generator, parameters, updates, limit_s, losses_of
) -> None:
    optimiser = torch.optim.AdamW(parameters, lr=options.rate, weight_decay=1e-4)
    started = time.monotonic()
    for update in range(updates):
        passed_s = time.monotonic() - started
        done = max(update / updates, passed_s / limit_s if limit_s else 0.0)
        if done >= 1.0:
            break
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(done / WARM, 0.5 + 0.5 * math.cos(math.pi * done))
        batch = draw(lives, options, generator)
        loss, figures = losses_of(network, batch, generator)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if update % 50 == 49:
            words = ", ".join(f"{what} {float(value):.3f}" for what, value in figures.items())
            name = getattr(losses_of, "func", losses_of).__name__
            print(
                f"{name} {update + 1:5d} of {updates}, {done:4.0%}: {words}, "
                f"{time.monotonic() - started:4.0f} s",
                flush=True,
            )


def draw(lives: Lives, options: Options, generator: torch.Generator) -> Batch:
    """A batch of whole lives, or a larger one of the steps about their first question."""
    device = lives.seen.device
    long = torch.rand((), generator=generator, device=device) < options.long_share
    count = max(1, options.batch // 2) if long else options.batch
    pick_B = torch.randint(0, len(lives.seen), (count,), generator=generator, device=device)
    if long:
        return tell(lives, pick_B, generator)
    first_B = (lives.asked[pick_B, 0] - WINDOW_BEFORE).clamp(0, STEPS - WINDOW)
    return tell(lives, pick_B, generator, WINDOW_WAIT).about(first_B, WINDOW)


def imitate(
    counter: nn.Linear, network: RobotNetwork, batch: Batch, generator: torch.Generator
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Cross entropy of the expert's tokens, and figures for people.

    Args:
        counter: Reads, before the first layer that attends, how many places have been shown; only
            to train, it is not kept. Without this second loss the count takes many times longer
            to form.
        network: Learns.
        batch: See there.
        generator: Of mistakes.
    """
    between: list[torch.Tensor] = []
    _, hidden_WBD, right_TBE = run(network, batch, generator, between)
    before = between[CONFIG.model.layer_types.index(FULL) - 1].unflatten(0, (-1, EACH))
    # Behind place and question, which are what a question must find, and where it looks.
    counted = counter(before[:, SEEN - 1 : SEEN + 1]).flatten(0, -2)
    shown = batch.count.t().unsqueeze(1).expand(-1, 2, -1)
    count_loss = functional.cross_entropy(counted, shown.flatten())
    logits = action_logits(network, hidden_WBD)
    bins_TBE = right_TBE - CONFIG.first_bin
    each_TBE = functional.cross_entropy(
        logits.flatten(0, -2), bins_TBE.flatten(), reduction="none"
    ).view(bins_TBE.shape)
    asked_TB = batch.asked.t()
    first_TB = asked_TB & ~asked_TB.roll(1, 0)
    weight_TB = 1.0 + (STANDING_WEIGHT - 1.0) * asked_TB + (FIRST_WEIGHT - 1.0) * first_TB
    weight_TB1 = weight_TB.unsqueeze(-1)
    loss = (each_TBE * weight_TB1).sum() / weight_TB.sum() / SIZE + count_loss
    with torch.no_grad():
        right = (logits.argmax(-1) == bins_TBE)[..., :2].all(-1)
        later_TB = (batch.goal.t() != HOME) & ~asked_TB
        off_TBE = (logits.argmax(-1) - bins_TBE)[..., 2:].abs().float()
        figures = {
            "loss": loss.detach(),
            "miscounted": (counted.argmax(-1) != shown.flatten()).float().mean(),
            "goal at once": right[first_TB].float().mean(),
            "while asked": right[asked_TB].float().mean(),
            "later": right[later_TB].float().mean(),
            "joints off by bins": off_TBE.mean(),
        }
    return loss, figures


def foresee(
    network: RobotNetwork, batch: Batch, generator: torch.Generator
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Cross entropy of the MTP head against what the model chooses; the model stands still."""
    with torch.no_grad():
        embedded_WBD, hidden_WBD, _ = run(network, batch, generator)
        chosen_TBE = action_logits(network, hidden_WBD).argmax(-1)
    drafts = drafted_values(network.language, hidden_WBD, embedded_WBD, CONFIG.drafts)
    loss, figures = embedded_WBD.new_zeros(()), {}
    for n, drafted_WBD in enumerate(drafts):
        # The n-th draft is the token n + 2 of an action: the first is the model's own.
        logits = action_logits(network, drafted_WBD)[:, :, n + 1 :]
        wanted = chosen_TBE[:, :, n + 1 :]
        loss = loss + functional.cross_entropy(logits.flatten(0, -2), wanted.flatten())
        figures[f"draft {n + 1} right"] = (logits.argmax(-1) == wanted).float().mean()
    return loss, {"loss": loss.detach(), **figures}


def find_lives(path: Path | None, seed: int, count: int) -> Lives:
    """Lives from a file; if there is none they are simulated, and written there."""
    if path is not None and path.is_file():
        return Lives(**load_file(path))
    started = time.monotonic()
    lives = simulate(seed, count)
    print(f"{count} lives simulated, {time.monotonic() - started:.0f} s", flush=True)
    if path is not None:
        save_file({name: getattr(lives, name) for name in lives.__dataclass_fields__}, path)
    return lives


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the module.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        Exit status.
    """
    default = Options()
    parser = argparse.ArgumentParser(
        description="Train the hybrid policy of the recall task.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="directory to write; a policy that is there is replaced",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="lives: read if it is there, else written")
    parser.add_argument("--lives", type=int, default=3000, help="to simulate, without --data")
    parser.add_argument("--threads", type=int, default=2, help="of torch on the CPU")
    for name in ("seed", "updates", "distil", "batch"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    parser.add_argument("--rate", type=float, default=default.rate)
    parser.add_argument("--start", type=Path, help="directory of weights to go on from")
    parser.add_argument("--long-share", type=float, default=default.long_share)
    parser.add_argument("--minutes", type=float, default=0.0, help="cut the updates short")
    given = parser.parse_args(argv)
    if given.lives < 1:
        raise InvalidArgumentError(f"--lives: expected at least 1, found {given.lives}")
    device = open_device(given.device).torch_device
    torch.set_num_threads(given.threads)
    lives = find_lives(given.data, given.seed, given.lives)
    names = Options.__dataclass_fields__
    options = Options(**{name: getattr(given, name) for name in names})
    network = train(lives, options, device)
    HybridPolicy(CONFIG, network).save(given.out)
    print(
        f"written to {given.out}; measure it with "
        f"python -m flashrt_ros.demo.rollout_hybrid --policy {given.out}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(in_words(main))
