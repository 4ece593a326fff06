"""Observations made again from the messages that a record names.

Nothing is judged here: which messages count, and which moments of a history they stand for, was
decided when the record was made. Reading and joining them is the sampler's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.frames import MOVING, STATIC, FrameInput
from flashrt_ros.contract.message import Array, Message
from flashrt_ros.contract.observing import join
from flashrt_ros.contract.sample import InputStamp
from flashrt_ros.contract.sampler import Prepared, Sampler
from flashrt_ros.contract.schema import Observation
from flashrt_ros.errors import ContractError

Key = tuple[str, int]
"""Topic as recorded, and xxh3_64 of the message."""


class Rebuilder:
    """Makes observations of a contract from messages that are named one by one."""

    def __init__(self, contract: Contract) -> None:
        """Prepares readers; camera infos only say whether an image may be used, which it was."""
        self._contract = replace(
            contract,
            observations=tuple(_without_camera_info(o) for o in contract.observations),
        )
        self._sampler = Sampler(self._contract, lazy=True)

    def needed(self, stamps: Sequence[InputStamp]) -> dict[Key, str]:
        """The messages without which these observations cannot be made, and their topics here.

        Args:
            stamps: Of a sample, topics as recorded.

        Raises:
            ContractError: The stamps are not those of this contract.
        """
        found: dict[Key, str] = {}
        for observation in self._contract.observations:
            sources, transforms = self._sort(observation, stamps)
            found.update({(s.topic, s.digest): _tree_topic(s.topic) for s in transforms})
            for topic, named in sources.items():
                found.update({(stamp.topic, stamp.digest): topic for stamp in named})
        return found

    def prepare(self, topic: str, cdr: bytes) -> Prepared:
        """Decodes one of those messages.

        Args:
            topic: As ``needed`` has it.
            cdr: Its bytes.
        """
        return self._sampler.prepare(topic, cdr, 0)

    def observations(
        self, stamps: Sequence[InputStamp], messages: Mapping[Key, Prepared]
    ) -> dict[str, Array]:
        """The arrays as the policy got them.

        Args:
            stamps: Of a sample, topics as recorded; a present input's moments oldest first.
            messages: Those that ``needed`` lists.

        Raises:
            ContractError: The stamps are not those of this contract, or a message cannot be read
                by it.
        """
        found = {}
        for observation in self._contract.observations:
            sources, transforms = self._sort(observation, stamps)
            self._sampler.frames.forget()
            for stamp in transforms:
                prepared = messages[stamp.topic, stamp.digest]
                if prepared.decoded is not None:
                    part = FrameInput(_tree_topic(stamp.topic))
                    self._sampler.frames.take(prepared.decoded.message, prepared.message, part)
            steps = {
                topic: [messages[stamp.topic, stamp.digest].message for stamp in named]
                for topic, named in sources.items()
            }
            found[observation.key] = self._array(observation, steps)
        return found

    def _array(self, observation: Observation, steps: Mapping[str, Sequence[Message]]) -> Array:
        columns: list[list[Array]] = []
        for source in observation.sources if steps else ():
            for message in steps[source.topic]:
                if fault := message.faults.get(source, ""):
                    raise ContractError(f"{observation.key} ({source.topic}): {fault}")
            columns.append([message.value(source) for message in steps[source.topic]])
        moments = 1 if observation.history is None else observation.history.steps
        if any(len(column) != moments for column in columns):
            raise ContractError(
                f"{observation.key}: expected {moments} moments as the contract has them, found "
                f"{max(map(len, columns))} on record"
            )
        return join(observation, columns, bool(steps))

    def _sort(
        self, observation: Observation, stamps: Sequence[InputStamp]
    ) -> tuple[dict[str, list[InputStamp]], list[InputStamp]]:
        """Stamps by topic of the contract, none where an optional input was absent; transforms.

        Recorded topics have full names, after namespaces and remappings. They stand in the order
        in which the observation lists its topics, then those of transforms and camera infos.
        """
        ours = [stamp for stamp in stamps if stamp.observation == observation.key]
        if not ours:
            raise ContractError(
                f"{observation.key}: expected a record of what it was made of, found none; was "
                "the contract another one?"
            )
        if not all(stamp.present for stamp in ours):
            return {}, []
        names = list(dict.fromkeys(stamp.topic for stamp in ours))
        topics = list(dict.fromkeys(observation.topics))
        if len(names) < len(topics):
            raise ContractError(
                f"{observation.key}: expected records of {len(topics)} topics ({topics}), found "
                f"{names}"
            )
        more = names[len(topics) :] if observation.image is None else []
        transforms = [stamp for stamp in ours if stamp.topic in more]
        return {
            topic: [stamp for stamp in ours if stamp.topic == name]
            for topic, name in zip(topics, names, strict=False)
        }, transforms


def _tree_topic(recorded: str) -> str:
    """``/tf`` or ``/tf_static``, whatever namespace or remapping has made of it."""
    return STATIC if recorded.endswith("_static") else MOVING


def _without_camera_info(observation: Observation) -> Observation:
    if observation.image is None:
        return observation
    return replace(observation, image=replace(observation.image, camera_info=None))


def array_digest(observations: Mapping[str, npt.NDArray[Any]]) -> int:
    """xxh3_64 over the bytes of arrays, in order of name."""
    digest = xxhash.xxh3_64()
    for name in sorted(observations):
        digest.update(np.ascontiguousarray(observations[name]).data)
    return digest.intdigest()
