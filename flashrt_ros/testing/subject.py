"""What every check is given: the policy, its device, episodes, and runs that are shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy.typing as npt

from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing.episode import Episodes, Observation
from flashrt_ros.testing.rig import Moment, Rig


class Subject:
    """The policy under test.

    Attributes:
        policy: It.
        device: Where it runs.
        steps: Control steps of an episode.
        inert: Buffers found to be inert, and why.
    """

    def __init__(
        self,
        policy: Policy,
        device: Device,
        steps: int,
        observations: Sequence[Mapping[str, npt.ArrayLike]] | None,
    ) -> None:
        self.policy = policy
        self.device = device
        self.steps = steps
        self.inert: dict[str, str] = {}
        self._given = observations
        self._episodes: Episodes | None = None
        self._rig: Rig | None = None
        self._baseline: list[Moment] | None = None
        self._session: PolicySession | None = None

    def episode(self, index: int = 0, steps: int | None = None) -> list[Observation]:
        """Observations of an episode; the same index gives the same ones."""
        if self._episodes is None:
            ports = self.policy.ports()
            layout = complete_layout(self.policy)
            dtypes = {port.key: layout.find(port.buffer).dtype for port in ports.observations}
            self._episodes = Episodes(ports, dtypes, self._given)
        return self._episodes.make(index, steps or self.steps)

    @property
    def rig(self) -> Rig:
        """Captured once and shared; a check resets it first."""
        if self._rig is None:
            self._rig = Rig(self.policy, self.device)
        return self._rig

    def baseline(self) -> list[Moment]:
        """Episode 0 under noise key 1."""
        if self._baseline is None:
            self.rig.reset()
            self._baseline = self.rig.run(self.episode())
        return self._baseline

    @property
    def session(self) -> PolicySession:
        """A real session, prepared once and shared; a check resets it first."""
        if self._session is None:
            layout = complete_layout(self.policy)
            size_bytes = layout.fixed_bytes + 2 * layout.capacity * layout.row_bytes
            self._session = PolicySession(
                self.policy,
                device=self.device.name,
                seed=1,
                store_bytes=max(1 << 20, 16 * size_bytes),
                rollback_depth=4,
            )
        return self._session

    @property
    def captures(self) -> bool:
        """Whether plans are captured, rather than called."""
        return self.device.torch_device.type == "cuda"

    @property
    def declares_noise(self) -> bool:
        """Whether the policy's own layout names the noise, which says that it draws."""
        return any(spec.name.startswith("noise.") for spec in self.policy.layout())

    def cuts(self, count: int) -> list[int]:
        """Up to ``count`` different boundaries within an episode, spread over it."""
        last = self.steps - 2
        return sorted(
            {1 + round(index * (last - 1) / max(1, count - 1)) for index in range(count)}
        )

    def forget(self) -> None:
        """Drops shared rigs and sessions, which a failed check may have left half-way."""
        self.close()
        self._rig = self._session = None

    def close(self) -> None:
        """Frees what the session holds."""
        if self._session is not None:
            self._session.close()
