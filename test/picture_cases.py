"""Pictures for tests: of a step, as bytes or as numbers, and steps that see them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest
from image_messages import noise

from flashrt_ros.bench import camera_policy
from flashrt_ros.runtime.device.cpu import CpuDevice
from flashrt_ros.runtime.picture import BytePicture
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

Stage = Callable[[BytePicture], BytePicture]
FRONT, WRIST = (f"observation.images.{name}" for name in camera_policy.CAMERAS)


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes CPU devices keep inputs and their mirror in two places, as CUDA does."""
    monkeypatch.setattr(
        CpuDevice,
        "allocate_mirrored",
        lambda device, size_bytes: (device.allocate(size_bytes), device.allocate(size_bytes)),
    )


def of(policy: Policy, step: int) -> dict[str, np.ndarray]:
    """Observations of a step: a vector, and pictures as bytes ``(H, W, C)``."""
    seen = {}
    for number, port in enumerate(policy.ports().observations):
        shape = port.shape if len(port.shape) == 1 else (*port.shape[1:], port.shape[0])
        seen[port.key] = noise(*shape, seed=10 * step + number)
        if len(shape) == 1:
            seen[port.key] = seen[port.key].astype(np.float32) / 255
    return seen


def same(picture: BytePicture) -> BytePicture:
    return picture


def given(seen: dict[str, np.ndarray], narrow: set[str], stage: Stage = same) -> dict[str, object]:
    """What the session is handed: these pictures as bytes, the others as numbers."""
    pictures = {key: stage(BytePicture(value)) for key, value in seen.items() if value.ndim == 3}
    return {
        **seen,
        **{key: p if key in narrow else np.asarray(p) for key, p in pictures.items()},
    }


def run(
    session: PolicySession,
    ways: list[set[str]],
    stage: Stage = same,
    wrong: Collection[int] | None = None,
) -> tuple[np.ndarray, bytes]:
    """Actions of steps whose pictures came so, and the inputs that the last one saw.

    Args:
        session: Closed at the end.
        ways: Of each step, which pictures come as bytes.
        stage: What is done to these.
        wrong: Pictures are foreseen, and before these steps others than come; None: none are.
    """
    actions = []
    for step, narrow in enumerate(ways):
        seen = given(of(session.policy, step), narrow, stage)
        if wrong is not None:
            other = given(of(session.policy, 50 + step), {FRONT, WRIST})
            session.foresee(other if step in wrong else seen)
        actions.append(session.step(seen).values.numpy())
    session.device.synchronize()
    inputs = session.arena.input_section.cpu().numpy().tobytes()
    session.close()
    return np.stack(actions), inputs
