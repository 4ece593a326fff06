"""A hybrid model as the policy of a robot: observation tokens in, action tokens out.

The sequence of an episode is, for each control step: the tokens of the observation, then one
token for each element of the action. The plan commits the last action token, which only then gets
its rows, and the observation; ``act`` decodes the action greedily, round by round.

Tensor suffixes: T tokens of a pass, D width, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch.nn import functional

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import (
    CONFIG,
    read_config,
    read_weights_of,
    save_directory,
)
from flashrt_ros.policies.hybrid.decode import LAST, Decoder
from flashrt_ros.policies.hybrid.robot_config import FAMILY, RobotConfig
from flashrt_ros.policies.hybrid.robot_head import RobotNetwork
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import ACT_LEFT, Buffers, PlanKind, Policy, Port, Ports

TOKENS, COUNT = "action.tokens", "action.count"
CHUNK = 64
"""Longest chunk of the delta rule."""


class HybridPolicy(Policy):
    """Decodes each action from all observations and actions of the episode so far.

    State: that of ``Decoder``; ``action.tokens`` ``(A,)`` and ``action.count`` ``(1,)`` int64, the
    tokens of the action that is being decoded and their number.

    Args:
        config: See ``RobotConfig``.
        network: A trained network of that configuration; None for random weights, whose
            statistics must then be set.
    """

    family: ClassVar[str] = FAMILY
    plan_kind = PlanKind.ADVANCES

    def __init__(self, config: RobotConfig, network: RobotNetwork | None = None) -> None:
        self._config = config
        self._network = (network or RobotNetwork(config)).eval()
        self._decoder = Decoder(self._network.language, config.drafts)
        size, drafts = config.action.size, config.drafts
        tokens = 1 + config.observation_tokens
        self._chunk = min(tokens, CHUNK)
        # Rows are written for a whole pass, pads and drafts included, so there must be room.
        self.rows_per_plan = -(-tokens // self._chunk) * self._chunk
        self.rows_per_act = max(size - 1, 1) + drafts
        self.act_replays = max(size - 1, 1)
        self.room_words = f"raise max_steps ({config.max_steps}) in its {CONFIG}"

    @classmethod
    def load(cls, directory: Path | str) -> HybridPolicy:
        """Reads a directory that ``save`` wrote.

        Raises:
            CheckpointError: A file is missing or damaged, or does not fit; names file and key.
        """
        directory = Path(directory)
        config = RobotConfig.from_dict(read_config(directory), str(directory / CONFIG))
        weights = read_weights_of(lambda: RobotNetwork(config), directory)
        policy = cls(config)
        policy._network.load_state_dict(weights)
        policy._network.require_statistics(str(directory))
        return policy

    def save(self, directory: Path | str) -> None:
        """Writes ``config.json`` and ``model.safetensors``.

        Raises:
            CheckpointError: Normalisation statistics were never set.
            StorageError: Writing failed.
        """
        self._network.require_statistics("policy")
        save_directory(Path(directory), self._config.to_dict(), self._network)

    def config(self) -> Mapping[str, object]:
        """The content of ``config.json`` but ``max_steps``, which changes no value."""
        return {k: v for k, v in self._config.to_dict().items() if k != "max_steps"}

    def module(self) -> RobotNetwork:
        """The network."""
        return self._network

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        config, action = self._config, self._config.action
        before_last = (config.max_steps - 1) * config.step_tokens
        capacity = before_last + self.rows_per_plan + self.rows_per_act
        vectors = [
            BufferSpec(vector.key, (vector.size,), torch.float32, Role.INPUT, vector.unit)
            for vector in config.observations
        ]
        images = [
            BufferSpec(image.key, (3, image.height, image.width), torch.float32, Role.INPUT)
            for image in config.images
        ]
        return (
            *self._decoder.layout(capacity),
            BufferSpec(TOKENS, (action.size,), torch.int64, Role.STATE),
            BufferSpec(COUNT, (1,), torch.int64, Role.STATE, "tokens"),
            *vectors,
            *images,
            BufferSpec(action.key, (action.size,), torch.float32, Role.OUTPUT, action.unit),
            BufferSpec(ACT_LEFT, (1,), torch.int64, Role.OUTPUT, "tokens"),
        )

    def ports(self) -> Ports:
        """One port per vector and image; buffers are named as the keys are."""
        config, action = self._config, self._config.action
        vectors = [
            Port(item.key, item.key, (item.size,), item.names, item.unit, item.required)
            for item in config.observations
        ]
        images = [Port(item.key, item.key, (3, item.height, item.width)) for item in config.images]
        return Ports(
            (*vectors, *images),
            Port(action.key, action.key, (action.size,), action.names, action.unit),
        )

    def reset_(self, state: Buffers) -> None:
        """Zeroes everything; ``token.last`` is the start token."""
        self._decoder.reset_(state, self._config.start_token)
        state[TOKENS].zero_()
        state[COUNT].zero_()

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Commits the last action token and the observation; chooses the first action token."""
        network = self._network
        embedded_TD = torch.cat((network.language.embed(state[LAST]), network.observe(inputs)))
        tokens, count_1 = embedded_TD.shape[0], None
        if tokens < self.rows_per_plan:
            embedded_TD = functional.pad(embedded_TD, (0, 0, 0, self.rows_per_plan - tokens))
            count_1 = torch.full_like(state[COUNT], tokens)
        first_1 = self._decoder.prefill_(state, embedded_TD, network.choose, self._chunk, count_1)
        state[TOKENS].zero_()
        state[TOKENS][:1].copy_(first_1)
        state[COUNT].fill_(1)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """One round of decoding; ``act.left`` says how many tokens are missing."""
        size, count_1 = self._config.action.size, state[COUNT]
        limit_1 = (size - count_1).clamp(0, self._decoder.drafts + 1)
        made = self._decoder.round_(state, self._network.choose, limit_1)
        index_A = torch.arange(size, device=count_1.device) - count_1
        new_A = (index_A >= 0) & (index_A < made.count_1)
        chosen_A = made.chosen_T.index_select(0, index_A.clamp(0, self._decoder.drafts))
        state[TOKENS].copy_(torch.where(new_A, chosen_A, state[TOKENS]))
        count_1.add_(made.count_1)
        outputs[self._config.action.key].copy_(self._network.actions(state[TOKENS]))
        outputs[ACT_LEFT].copy_(size - count_1)


def make(directory: Path | None) -> HybridPolicy:
    """Factory of the registered name ``hybrid``.

    Raises:
        CheckpointError: No directory was given, or it is wrong; see ``HybridPolicy.load``.
    """
    if directory is None:
        raise CheckpointError(
            f"policy {FAMILY!r} needs weights: name the directory that holds {CONFIG}"
        )
    return HybridPolicy.load(directory)
