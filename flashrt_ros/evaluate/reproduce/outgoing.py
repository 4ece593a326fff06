"""From the policy's action to the one that left, by what a control step records of the way."""

from __future__ import annotations

import numpy as np

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.output import ActionShaper
from flashrt_ros.contract.start import blend
from flashrt_ros.evaluate.reproduce.journal import Step, Vector


class Outgoing:
    """Start ramp and limits of one contract, done again."""

    def __init__(self, contract: Contract) -> None:
        """Takes limits and start."""
        self._contract = contract
        self._shaper = ActionShaper(contract)

    def action(self, predicted_A: Vector, step: Step) -> Vector:
        """What the node must have recorded as ``action``.

        Args:
            predicted_A: As the policy gave it, here.
            step: For the ramp's share and origin, and for what steps are counted from.

        Raises:
            ContractError: The record does not fit the contract.
        """
        action_A = np.array(predicted_A, dtype=np.float64)
        start = self._contract.start
        if start is not None and step.ramp_from.size:
            action_A = blend(start, action_A, step.ramp_from, step.ramp_share)
        last = self._shaper.unpack(step.limited_from) if step.limited_from.size else None
        if not step.published and not step.dry_run and last is None:
            # Nothing was limited, since nothing was to leave.
            return action_A
        shaped = self._shaper.shape(action_A, last)
        return action_A if shaped.dropped else shaped.action
