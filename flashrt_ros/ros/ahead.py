"""The rest of a chunk, for outputs that send whole chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashrt_ros.contract.horizon import Ahead
from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.policy import Action
from flashrt_ros.runtime.preview import CHUNK


def rows_ahead(session: Any, action: Action) -> Ahead:
    """What the policy will do after an action, if nothing new is planned; copied from the device.

    Args:
        session: A ``PolicySession`` whose policy keeps a chunk; it stands behind the action.
        action: The one that was taken last.

    Raises:
        SpecError: The action is not its row of the chunk, so nobody knows what the others are.
    """
    rows_HA, length = session.arena.state[CHUNK], session.host.length
    found_KA = np.array(rows_HA[action.index : length].detach().double().cpu().numpy())
    taken_A = np.asarray(action.values, dtype=np.float64)
    if not len(found_KA) or not np.allclose(found_KA[0], taken_A, equal_nan=True):
        row = found_KA[:1].tolist() or "none"
        raise SpecError(
            f"horizon: chunk: expected row {action.index} of {CHUNK} to be the action that was "
            f"taken, {taken_A.tolist()}, found {row}: this policy keeps something else there; "
            "set horizon: step"
        )
    key = (action.generation, session.host.episode, action.chunk)
    return Ahead(key, action.index, found_KA[1:])
