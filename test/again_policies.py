"""Policies for the tests' robot of which a recording is computed again: each with other state."""

from __future__ import annotations

from typing import Any

import torch
from chunk_predictors import Looking
from flow_policy import Flow
from node_policies import TwoJoints

from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.guidance import GuidanceConfig
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.engine import DELAY
from flashrt_ros.runtime.policy import Buffers, Policy, Port, Ports

STATE = "observation.state"


class FourIn:
    """Lets a predictor of three inputs have the robot's four, and stay near where it is."""

    def layout(self) -> tuple[BufferSpec, ...]:
        own = [spec for spec in super().layout() if spec.name != STATE]  # type: ignore[misc]
        return (*own, BufferSpec(STATE, (4,), torch.float32, Role.INPUT))

    def observations(self) -> tuple[Port, ...]:
        return (Port(STATE, STATE, (4,)),)

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        super().predict(state, _three(inputs), chunk_HA, outputs)  # type: ignore[misc]
        chunk_HA.mul_(0.01).add_(inputs[STATE][:2])

    def observe_(self, state: Buffers, inputs: Buffers) -> None:
        super().observe_(state, _three(inputs))  # type: ignore[misc]


def _three(inputs: Buffers) -> Buffers:
    return {**inputs, STATE: inputs[STATE][:3]}


class FourLooking(FourIn, Looking):
    """Noise drawn beside, a history of observations, and the delay that plans are told."""

    def layout(self) -> tuple[BufferSpec, ...]:
        return (*super().layout(), BufferSpec(DELAY, (1,), torch.int64, Role.INPUT))


class FourFlow(FourIn, Flow):
    """Flow matching with real-time chunking; its actions stay as they come."""

    def restore(self, actions: torch.Tensor) -> torch.Tensor:
        return actions

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        Flow.predict(self, state, _three(inputs), chunk_HA, outputs)
        chunk_HA.mul_(0.002)


def looking(directory: Any = None) -> Policy:
    """Noise, plans beside, and a history that acts keep."""
    return ChunkedPolicy(FourLooking(8), 6)


def guided(directory: Any = None) -> Policy:
    """Real-time chunking."""
    return ChunkedPolicy(FourFlow(GuidanceConfig(execution_horizon=8)), 10)


def other_guided(directory: Any = None) -> Policy:
    """The same but for one weight."""
    policy = guided()
    weight = next(iter(policy.module().parameters()))
    weight.data[0, 0] += 1.0
    return policy


class Moments(TwoJoints):
    """Goes on as it went between two moments, which the contract keeps."""

    family = "moments"

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("state_in", (2, 2), torch.float32, Role.INPUT),
            BufferSpec("action_out", (2,), torch.float32, Role.OUTPUT, "rad"),
        )

    def ports(self) -> Ports:
        return Ports((Port(STATE, "state_in", (2, 2)),), Port("action", "action_out", (2,)))

    def reset_(self, state: Buffers) -> None:
        pass

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        before, now = inputs["state_in"]
        outputs["action_out"].copy_(now + 0.3 * (now - before))


def moments(directory: Any = None) -> Policy:
    """Reads two moments and keeps nothing."""
    return Moments()
