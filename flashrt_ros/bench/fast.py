"""How far a policy's fast arithmetic strays from its exact one, over many observations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Count, Result
from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import read_tensors
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.fast.deviation import LIMIT
from flashrt_ros.runtime.policy import Policy


def recorded(path: Path, policy: Policy) -> Iterator[dict[str, torch.Tensor]]:
    """Reads observations from a safetensors file, one row of each tensor at a time.

    Args:
        path: Holds ``(N, *shape)`` for each port key; uint8 stands for 0 to 1 in 255 steps.
        policy: Whose ports they must fit.

    Raises:
        CheckpointError: The file is damaged, or a tensor is missing or ill-shaped.
    """
    tensors = read_tensors(path)
    ports = policy.ports().observations
    counts = set()
    for port in ports:
        found = tensors.get(port.key)
        if found is None or tuple(found.shape[1:]) != port.shape:
            raise CheckpointError(
                f"{path}: {port.key!r}: expected a tensor of {['N', *port.shape]}, found "
                f"{'nothing' if found is None else list(found.shape)}"
            )
        counts.add(len(found))
    if len(counts) != 1 or 0 in counts:
        raise CheckpointError(
            f"{path}: expected the same number of observations for every input, found "
            f"{sorted(counts)}"
        )

    def row(value: torch.Tensor) -> torch.Tensor:
        return value / 255.0 if value.dtype == torch.uint8 else value.to(torch.float32)

    return (
        {port.key: row(tensors[port.key][index]) for port in ports} for index in range(min(counts))
    )


def add_deviation(result: Result, policy: Policy, options: Options, device: torch.device) -> None:
    """Adds a count and a line; nothing for an exact policy.

    Args:
        result: Of the policy.
        policy: Its module lies on the device.
        options: Say how many observations there are.
        device: Where it runs.

    Raises:
        CheckpointError: The file of observations is damaged, or does not fit the policy.
    """
    if not isinstance(policy, ChunkedPolicy):
        return
    observations = None if options.recorded is None else recorded(options.recorded, policy)
    count = options.rounds(options.observations)
    options.say(f"comparing with exact actions: {count} observations")
    found = policy.compare(count, device, observations)
    if found is None:
        return
    total = found.observations
    near = total if found.share <= LIMIT else 0
    result.counts.append(Count(f"fast within {100 * LIMIT:g} % of exact", near, total, "all"))
    result.notes.append(f"{policy.numerics}: {found.words}.")
