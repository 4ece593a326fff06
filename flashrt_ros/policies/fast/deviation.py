"""How far a policy in another arithmetic strays from the exact one: the guard of the fast mode.

Both predict from the same observations and the same noise; the largest distance of any element of
any row counts, as a share of the range that the action had in the training data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from flashrt_ros.errors import UnsupportedError
from flashrt_ros.policies.fast.mode import check_device
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser
from flashrt_ros.policies.normalisation import Normalisation
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.device import Lane, open_device
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.policy import Buffers, Port

LIMIT = 0.01
"""Largest share of an action's range by which the fast mode may stray."""
AT_CONFIGURE = 8
"""Observations with which a policy is probed before it may run."""
CELL = 8
"""Pixels along the edge of the uniform patches of a random image."""

Observation = Mapping[str, torch.Tensor]
"""Port key to a tensor of the port's shape, float32."""


class Predictor(Protocol):
    """What is compared; see ``ChunkPredictor``."""

    chunk_size: int

    def layout(self) -> tuple[BufferSpec, ...]:
        """Inputs, own state and scratch."""

    def observations(self) -> tuple[Port, ...]:
        """What it reads."""

    def action(self) -> Port:
        """The action."""

    def reset_(self, state: Buffers) -> None:
        """Begins an episode."""

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Predicts a chunk."""

    def restore(self, actions: torch.Tensor) -> torch.Tensor:
        """In the units of the port."""


@dataclass(frozen=True)
class Deviation:
    """What was found.

    Attributes:
        share: Largest distance as a share of the element's range; not a number where a
            prediction is none.
        element: Which element of the action that was.
        observations: With how many.
    """

    share: float
    element: str
    observations: int

    @property
    def words(self) -> str:
        """For people."""
        return (
            f"fast actions strayed from exact ones by at most {100 * self.share:.3g} % of the "
            f"range of {self.element}, of {self.observations} observations"
        )

    def check(self) -> None:
        """Refuses.

        Raises:
            UnsupportedError: It is above ``LIMIT``, or no number.
        """
        if not self.share <= LIMIT:
            raise UnsupportedError(
                f"numerics: expected a deviation of at most {100 * LIMIT:g} %, found: "
                f"{self.words}; use 'exact'"
            )


def check_range(width_A: torch.Tensor | None, where: str) -> torch.Tensor:
    """Returns the range of each element of the action.

    Raises:
        UnsupportedError: It is not known, so nothing can be held against it.
    """
    if width_A is None:
        raise UnsupportedError(
            f"{where}: numerics 'fast' is held against the range of the action, but there are no "
            "statistics of it; use 'exact'"
        )
    return width_A


def random_observations(
    ports: tuple[Port, ...], normaliser: CheckpointNormaliser, seed: int = 0
) -> Iterator[dict[str, torch.Tensor]]:
    """Observations as the statistics of the training data have them, without end.

    Images are patches of random colours, from 0 to 1.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(port: Port) -> torch.Tensor:
        if len(port.shape) == 3:
            rows, columns = (-(-size // CELL) for size in port.shape[1:])
            patches = torch.rand((port.shape[0], rows, columns), generator=generator)
            whole = patches.repeat_interleave(CELL, 1).repeat_interleave(CELL, 2)
            return whole[:, : port.shape[1], : port.shape[2]].contiguous()
        known = normaliser.of(port.key)
        if known.mode in (Normalisation.MEAN_STD, Normalisation.IDENTITY):
            inner = torch.randn(port.shape, generator=generator).clamp(-3, 3)
        else:
            inner = 2 * torch.rand(port.shape, generator=generator) - 1
        device = next(iter(known.buffers()), inner).device
        return known.restore(inner.to(device)).cpu()

    while True:
        yield {port.key: draw(port) for port in ports}


@torch.no_grad()
def measure(
    fast: Predictor,
    exact: Predictor,
    width_A: torch.Tensor,
    observations: Iterator[Observation],
    count: int,
    device: torch.device,
) -> Deviation:
    """Compares ``count`` predictions, each at the start of an episode with noise of its own.

    Args:
        fast: What is judged.
        exact: What it is held against; has the same buffers.
        width_A: Range of each element; where it is 0 the element never moved, and is passed over.
        observations: At least ``count`` of them.
        count: How many at most.
        device: Where both lie.
    """
    specs = [*fast.layout(), *noise.NOISE_SPECS]
    state: dict[str, torch.Tensor] = {}
    inputs: dict[str, torch.Tensor] = {}
    outputs: dict[str, torch.Tensor] = {}
    places = {Role.STATE: state, Role.INPUT: inputs}
    for spec in specs:
        zeros = torch.zeros(spec.shape, dtype=spec.dtype, device=device)
        places.get(spec.role, outputs)[spec.name] = zeros
    port = fast.action()
    moves_A = width_A > 0
    width_A = width_A.to(device).masked_fill(~moves_A.to(device), float("inf"))
    worst_A = torch.zeros(port.shape, device=device)
    chunk_HA, other_HA = (torch.zeros(fast.chunk_size, *port.shape, device=device) for _ in "12")
    buffers = {item.key: item.buffer for item in fast.observations()}
    fast.reset_(state)
    opened = open_device(str(device))
    plans = [
        GraphPlan("fast", lambda: fast.predict(state, inputs, chunk_HA, outputs), opened),
        GraphPlan("exact", lambda: exact.predict(state, inputs, other_HA, outputs), opened),
    ]
    opened.synchronize()
    for plan in plans:
        plan.prepare(1)
    seen = 0
    with opened.bind(Lane.CONTROL):
        for observation in itertools.islice(observations, count):
            seen += 1
            for key, value in observation.items():
                inputs[buffers[key]].copy_(value)
            fast.reset_(state)
            state[noise.KEY].fill_(seen)
            for plan in plans:
                plan.replay()
            apart_HA = (fast.restore(chunk_HA) - exact.restore(other_HA)).abs() / width_A
            # A maximum would pass over what is no number.
            apart_A = apart_HA.nan_to_num(nan=float("inf")).amax(0)
            worst_A = torch.maximum(worst_A, apart_A)
        opened.synchronize()
    share, element = worst_A.max(0)
    at = int(element)
    name = port.names[at] if port.names else f"element {at}"
    return Deviation(float(share), name, seen)


def compare(
    fast: Predictor,
    exact: Predictor,
    normaliser: CheckpointNormaliser,
    count: int,
    device: torch.device,
    observations: Iterator[Observation] | None = None,
) -> Deviation:
    """As ``measure``, with random observations unless others are given."""
    width_A = check_range(normaliser.width_A, "action")
    found = observations or random_observations(fast.observations(), normaliser)
    return measure(fast, exact, width_A, found, count, device)


def probe(
    fast: Predictor,
    exact: Predictor,
    normaliser: CheckpointNormaliser,
    device: torch.device,
) -> tuple[str, ...]:
    """Compares with a few random observations and returns what was found, in words, or refuses.

    Raises:
        UnsupportedError: The device is no GPU, or the deviation is above ``LIMIT``.
    """
    check_device(device)
    deviation = compare(fast, exact, normaliser, AT_CONFIGURE, device)
    deviation.check()
    return (deviation.words,)
