"""The rest of a chunk, for outputs that send whole chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.horizon import Ahead
from flashrt_ros.runtime.policy import Action
from flashrt_ros.runtime.preview import CHUNK


def rows_ahead(session: Any, action: Action) -> Ahead:
    """What the policy will do after an action, if nothing new is planned.

    Args:
        session: A ``PolicySession`` whose policy keeps a chunk; it stands behind the action.
        action: The one that was taken last. Rows are copied from the device only when asked for.
    """
    rows_HA, length = session.arena.state[CHUNK], session.host.length

    def after() -> npt.NDArray[np.float64]:
        left_KA = rows_HA[action.index + 1 : length].detach().to("cpu")
        return np.asarray(left_KA.numpy(), dtype=np.float64)

    return Ahead((action.generation, session.host.episode, action.chunk), action.index, after)
