"""The cell and its scripted policy in lockstep, without ROS and without a clock."""

import numpy as np

from flashrt_ros.demo.trees.cell import HALF_BLOCK_M, Cell
from flashrt_ros.demo.trees.picker import Phase, PickPolicy
from flashrt_ros.runtime.session import PolicySession

GOAL_M = (0.62, 0.12)
CUE_STEPS = 5
TRY_STEPS = 130
"""A pick takes about 100 control steps."""
KNOCK_M_S = (0.9, 0.3)


def seen(values: object) -> np.ndarray:
    """x, y and whether it is there, as the contract makes it of an optional topic."""
    found = (0.0, 0.0, 0.0) if values is None else (*np.asarray(values), 1.0)
    return np.asarray(found, dtype=np.float32)


class Rig:
    """One cell, one session."""

    def __init__(self, seed: int = 0, wall: bool = False) -> None:
        self.cell = Cell(wall)
        self.session = PolicySession(PickPolicy(), seed=seed)
        self.observations: list[dict[str, np.ndarray]] = []

    def number(self, buffer: str) -> int:
        return int(self.session.arena.state[buffer][0])

    @property
    def phase(self) -> Phase:
        return Phase(self.number("phase.index"))

    def run(self, steps: int, cue_m: tuple[float, float] | None = None) -> None:
        for _ in range(steps):
            observation = {
                "observation.state": self.cell.position.astype(np.float32),
                "observation.block": seen(self.cell.seen_m),
                "observation.cue": seen(cue_m),
            }
            self.observations.append(observation)
            action = self.session.step(observation).values.numpy()
            self.cell.command(action[:3])
            self.cell.switch_magnet(action[3] > 0.5)
            self.cell.step()

    def home(self) -> None:
        """The arm goes home by itself; the policy does not step."""
        for _ in range(150):
            if self.cell.go_home():
                return
            self.cell.step()
        raise AssertionError(f"not at home: {self.cell.position}")

    @property
    def placed(self) -> bool:
        """Whether the block stands on the table where it should."""
        away = np.hypot(*(self.cell.block_m[:2] - GOAL_M))
        stands = abs(self.cell.block_m[2] - HALF_BLOCK_M) < 0.003
        return bool(away < 0.03 and stands and not self.cell.holds)
