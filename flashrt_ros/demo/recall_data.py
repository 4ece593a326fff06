"""What the hybrid policy learns from: arms that an expert moves, and what they are shown.

Where an arm goes depends on the places shown by way of the goal alone, so each simulated life is
told with ever new scripts that lead to its goals: a few thousand lives are enough.

Tensor suffixes: N lives, T control steps, B lives of a batch, A action.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from flashrt_ros.demo.arm import Arm
from flashrt_ros.demo.crowd import CUE_NOISE_M, NOISE_RAD, NOISE_RAD_S, random_pose
from flashrt_ros.demo.recall import (
    ASKED_STEPS,
    FIRST_WAIT_STEPS,
    GAP_STEPS,
    HOME,
    PLACES,
    SHOWN_STEPS,
    SUBSTEPS,
    goals,
)
from flashrt_ros.demo.task import HOME_RAD, TARGET_COUNT, expert

STEPS = 128
"""T, length of a life."""
WINDOW, WINDOW_BEFORE, WINDOW_WAIT = 64, 54, 10
"""Steps about the first question that short batches take, those before it, and the longest wait
there: all places are shown within."""
LONGEST_PRELUDE = PLACES * SHOWN_STEPS[1] + (PLACES - 1) * GAP_STEPS[1] + FIRST_WAIT_STEPS
ASKS = 2
TREMOR_RAD = 0.04
CALM = 0.8
"""How much of its tremor an arm keeps from step to step."""


@dataclass(frozen=True)
class Lives:
    """N lives; all float32 or int64.

    Attributes:
        seen: ``(N, T, 4)`` measured positions and velocities, rad and rad/s.
        command: ``(N, T, 2)`` what the expert commands there, rad.
        goal: ``(N, T)`` index of the goal.
        asked: ``(N, 2)`` first step of each question; T: there is none.
        until: ``(N, 2)`` the step after its last one.
    """

    seen: torch.Tensor
    command: torch.Tensor
    goal: torch.Tensor
    asked: torch.Tensor
    until: torch.Tensor

    def to(self, device: torch.device) -> Lives:
        """A copy on a device."""
        return Lives(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def simulate(seed: int, count: int) -> Lives:
    """Lets an expert live through questions, with a tremor, bumps and changes of pose.

    Args:
        seed: Of all chance.
        count: N.
    """
    rng = np.random.default_rng(seed)
    first = rng.integers(LONGEST_PRELUDE, STEPS - 36, count)
    second = first + rng.integers(20, 60, count)
    asked = np.stack((first, np.where(second < STEPS - 8, second, STEPS)), axis=1)
    until = np.minimum(asked + rng.integers(*ASKED_STEPS, (count, ASKS)), STEPS)
    goal = np.full((count, STEPS), HOME)
    for index in range(count):
        for at in asked[index]:
            goal[index, at:] = rng.integers(TARGET_COUNT)
    seen = np.zeros((count, STEPS, 4), np.float32)
    command = np.zeros((count, STEPS, 2), np.float32)
    places_m = np.where(np.arange(TARGET_COUNT + 1)[:, None] == HOME, np.nan, goals())
    arm = Arm()
    for index in range(count):
        arm.place(HOME_RAD + rng.normal(0.0, 0.01, 2))
        placed = rng.random(STEPS) < 1.5 / STEPS
        bumped = rng.random(STEPS) < 0.8 / STEPS
        tremor = np.zeros(2)
        strength = TREMOR_RAD * rng.random()
        for step in range(STEPS):
            if placed[step]:
                arm.place(random_pose(rng))
            if bumped[step]:
                arm.bump(rng.uniform(-1, 1, 2) * (45.0, 22.0), 0.1)
            noise = rng.standard_normal(4) * (NOISE_RAD, NOISE_RAD, NOISE_RAD_S, NOISE_RAD_S)
            now = np.concatenate((arm.position_rad, arm.velocity_rad_s)) + noise
            label = expert(now[:2], places_m[goal[index, step]], False, 1.0)
            seen[index, step], command[index, step] = now, label
            tremor = CALM * tremor + strength * rng.standard_normal(2)
            arm.command(label + tremor)
            for _ in range(SUBSTEPS):
                arm.step()
    arrays = (seen, command, goal, asked, until)
    return Lives(*(torch.from_numpy(array) for array in arrays))


@dataclass(frozen=True)
class Batch:
    """B lives with a script.

    Attributes:
        seen: ``(B, T, 4)``.
        cue: ``(B, T, 3)``.
        question: ``(B, T, 2)``.
        action: ``(B, T, 4)`` goal x and y in metres, joint targets in radians.
        forgets: ``(B, T)`` whether the recurrent state is lost before the step: at times, after
            all places have been shown.
        goal: ``(B, T)`` index of the goal.
        asked: ``(B, T)`` whether a question stands.
        count: ``(B, T)`` places shown so far, the one that is being shown included.
    """

    seen: torch.Tensor
    cue: torch.Tensor
    question: torch.Tensor
    action: torch.Tensor
    forgets: torch.Tensor
    goal: torch.Tensor
    asked: torch.Tensor
    count: torch.Tensor

    def about(self, first_B: torch.Tensor, steps: int) -> Batch:
        """The same lives, each from a step of its own on, for so many steps."""
        index_BT = first_B[:, None] + torch.arange(steps, device=first_B.device)
        life_B1 = torch.arange(len(first_B), device=first_B.device)[:, None]
        names = self.__dataclass_fields__
        return Batch(*(getattr(self, name)[life_B1, index_BT] for name in names))


def tell(
    lives: Lives, pick_B: torch.Tensor, generator: torch.Generator, longest_wait: int = STEPS
) -> Batch:
    """Draws a script for each of the lives picked.

    Args:
        lives: All.
        pick_B: Indices, int64.
        generator: Source of all chance, on the device of the lives.
        longest_wait: Most steps from the last place to the first question, but the least few.
    """
    device, count = pick_B.device, len(pick_B)

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device)

    def share(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device=device)

    asked_BQ, until_BQ, goal_BT = lives.asked[pick_B], lives.until[pick_B], lives.goal[pick_B]
    wanted_BQ = goal_BT.gather(1, asked_BQ.clamp(max=STEPS - 1))
    # Places in a random order, of which the first two are those that will be asked for.
    order_BP = share(count, TARGET_COUNT)
    order_BP.scatter_(1, wanted_BQ[:, 1:], -1.0)
    order_BP.scatter_(1, wanted_BQ[:, :1], -2.0)
    candidates_BP = order_BP.argsort(1)[:, :PLACES]
    number_BP = share(count, PLACES).argsort(1)
    places_BP = torch.zeros_like(candidates_BP).scatter_(1, number_BP, candidates_BP)
    same_BQ1 = wanted_BQ.unsqueeze(-1) == places_BP.unsqueeze(1)
    answers_BQ = same_BQ1.float().argmax(-1) + 1
    # When each is shown.
    shown_BP, gap_BP = whole(*SHOWN_STEPS, count, PLACES), whole(*GAP_STEPS, count, PLACES)
    gap_BP[:, 0] = 0
    prelude_B = shown_BP.sum(1) + gap_BP.sum(1)
    slack_B = asked_BQ[:, 0] - FIRST_WAIT_STEPS - prelude_B
    begin_B = slack_B - (share(count) * (slack_B.clamp(max=longest_wait) + 1)).long()
    starts_BP = begin_B[:, None] + (shown_BP + gap_BP).cumsum(1) - shown_BP
    step_T = torch.arange(STEPS, device=device)
    visible_BTP = (step_T[:, None] >= starts_BP[:, None]) & (
        step_T[:, None] < (starts_BP + shown_BP)[:, None]
    )
    table = torch.as_tensor(goals(), dtype=torch.float32, device=device)
    noise = CUE_NOISE_M * torch.randn(count, PLACES, 2, generator=generator, device=device)
    point_BP2 = table[places_BP] + noise
    cue_BT2 = visible_BTP.float() @ point_BP2
    present_BT = visible_BTP.any(-1)
    standing_BTQ = (step_T[:, None] >= asked_BQ[:, None]) & (step_T[:, None] < until_BQ[:, None])
    number_BT = (standing_BTQ * answers_BQ[:, None]).amax(-1)
    asked_BT = number_BT > 0
    last_B = starts_BP[:, -1] + shown_BP[:, -1]
    lost_B = last_B + (share(count) * (asked_BQ[:, 0] - last_B + 1)).long()
    forgets_BT = (step_T == lost_B[:, None]) & (share(count, 1) < 0.7)
    forgets_BT |= (share(count, STEPS) < 0.02) & (step_T >= last_B[:, None]) & (goal_BT == HOME)
    return Batch(
        lives.seen[pick_B],
        torch.cat((cue_BT2, present_BT.unsqueeze(-1).float()), -1),
        torch.stack((number_BT.float(), asked_BT.float()), -1),
        torch.cat((table[goal_BT], lives.command[pick_B]), -1),
        forgets_BT,
        goal_BT,
        asked_BT,
        (step_T[:, None] >= starts_BP[:, None]).sum(-1),
    )
