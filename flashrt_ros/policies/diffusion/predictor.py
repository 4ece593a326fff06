"""A Diffusion Policy as a chunk predictor over named buffers.

Tensor suffixes: O observations, N draws, B batch, H horizon, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import SpecError, UnsupportedError
from flashrt_ros.policies.diffusion.config import DiffusionConfig
from flashrt_ros.policies.diffusion.encoder import crop_centre
from flashrt_ros.policies.diffusion.history import History
from flashrt_ros.policies.diffusion.network import DiffusionNetwork
from flashrt_ros.policies.fast import deviation
from flashrt_ros.policies.fast.denoiser import FastDiffusion
from flashrt_ros.policies.fast.mode import words
from flashrt_ros.policies.fast.predictor import FastPredictor
from flashrt_ros.policies.guidance import GuidanceConfig, Prefix
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser
from flashrt_ros.policies.real_time import RealTimeChunking
from flashrt_ros.policies.relative import RelativeActions
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Port

NOISE = "diffusion.noise"


@dataclass(frozen=True)
class Senses:
    """What is observed; keys are the normaliser's names.

    Attributes:
        state: The robot's state, ``(S,)``.
        images: The cameras in the network's order, each ``(3, H, W)``, 0 to 1.
        environment: The environment's state, ``(E,)``; None without one.
    """

    state: Port
    images: tuple[Port, ...] = ()
    environment: Port | None = None

    @property
    def ports(self) -> tuple[Port, ...]:
        """All of them."""
        last = () if self.environment is None else (self.environment,)
        return (self.state, *self.images, *last)


class DiffusionPredictor(FastPredictor):
    """Denoises a chunk from the last observations and noise; plans beside.

    State: ``history.*`` (see ``History``) and ``noise.*``. The scratch buffer ``diffusion.noise``
    ``(N, 1, H, A)`` float32 is drawn in one go: what the sample starts from, then what each step
    adds. With real-time chunking also what ``RealTimeChunking`` has.

    Args:
        config: Sizes and options.
        network: Of that configuration.
        normaliser: Of all observations and the action.
        senses: What is observed, float32.
        action: The action port, on the buffer ``action``.
        guidance: Options of real-time chunking; None: without.
        fast: The network in another arithmetic, which then predicts; None: the network does.
        relative: What makes actions absolute, where they are relative: then guidance tells the
            chunk under way from the present state before a plan is drawn to it.

    Attributes:
        n_action_steps: Rows that are meant to be taken before the next plan.

    Raises:
        UnsupportedError: It is to be fast, but with guidance, or the range of the action is not
            known.
        SpecError: A port does not fit the configuration.
        InvalidArgumentError: The execution horizon is longer than a chunk.
    """

    family: ClassVar[str] = "diffusion"
    plan_kind = PlanKind.BESIDE

    def __init__(
        self,
        config: DiffusionConfig,
        network: DiffusionNetwork,
        normaliser: CheckpointNormaliser,
        senses: Senses,
        action: Port,
        guidance: GuidanceConfig | None = None,
        fast: FastDiffusion | None = None,
        relative: RelativeActions | None = None,
    ) -> None:
        _check_shapes(config, senses, action)
        self.chunk_size = config.chunk_size
        self.n_action_steps = config.n_action_steps
        self.observes = config.n_obs_steps > 1
        self._config, self._network, self._normaliser = config, network, normaliser
        self._senses, self._action = senses, action
        self._module = nn.ModuleDict({"diffusion": network, "normaliser": normaliser}).eval()
        self._fast, self._relative = fast, relative
        if fast is not None:
            if guidance is not None:
                raise UnsupportedError(
                    f"{self.family}: numerics 'fast' has no gradients, which rtc_config needs; "
                    "switch one of them off"
                )
            deviation.check_range(normaliser.width_A, self.family)
            self.exact = DiffusionPredictor(config, network, normaliser, senses, action)
            self.numerics = words(fast.unet.dtype)
            self._module["fast"] = fast
        self._kept_size = None if config.vision is None else config.vision.kept_size
        self._image_buffers = {port.buffer for port in senses.images}
        kinds = {port.buffer: (self._kept_shape(port), torch.float32) for port in senses.ports}
        self._history = History(config.n_obs_steps - 1, kinds)
        self._real_time = None
        if guidance is not None:
            sizes = (config.chunk_size, config.action_size)
            self._real_time = RealTimeChunking(guidance, *sizes)

    def _kept_shape(self, port: Port) -> tuple[int, ...]:
        if port.buffer in self._image_buffers and self._kept_size is not None:
            return (3, *self._kept_size)
        return port.shape

    def config(self) -> Mapping[str, object]:
        """See ``DiffusionConfig``, with keys in the network's order and their normalisation."""
        return {
            "type": self.family,
            **self._config.to_dict(),
            "observations": [port.key for port in self._senses.ports],
            "normalisation": self._normaliser.modes(),
            **({} if self._real_time is None else {"rtc_config": self._real_time.config()}),
        }

    def module(self) -> nn.Module:
        """Network and normalisers."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        config = self._config
        drawn = (self._network.schedule.n_draws, 1, config.horizon, config.action_size)
        return (
            *self._history.specs(),
            *(() if self._real_time is None else self._real_time.specs()),
            *noise.NOISE_SPECS,
            BufferSpec(NOISE, drawn, torch.float32, Role.SCRATCH),
            *(
                BufferSpec(port.buffer, port.shape, torch.float32, Role.INPUT, port.unit)
                for port in self._senses.ports
            ),
        )

    def observations(self) -> tuple[Port, ...]:
        """State, cameras, environment."""
        return self._senses.ports

    def action(self) -> Port:
        """As given."""
        return self._action

    def reset_(self, state: Buffers) -> None:
        """Forgets the observations, and the chunk under way."""
        self._history.reset_(state)
        if self._real_time is not None:
            self._real_time.reset_(state)

    def observe_(self, state: Buffers, inputs: Buffers) -> None:
        """Takes in the observation of a control step, of images what is not cropped away."""
        self._history.observe_(
            state,
            {port.buffer: self._present(port, inputs) for port in self._senses.ports},
        )

    def _present(self, port: Port, inputs: Buffers) -> torch.Tensor:
        value = inputs[port.buffer]
        if port.buffer in self._image_buffers and self._kept_size is not None:
            return crop_centre(value, self._kept_size)
        return value

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Denoises in the network's range; see ``ChunkPredictor.predict``."""

        def seen(port: Port) -> torch.Tensor:
            present = self._present(port, inputs)
            known = self._history.with_present(state, port.buffer, present)
            return self._normaliser.normalise(port.key, known)

        environment = self._senses.environment
        network = self._network if self._fast is None else self._fast
        condition_BD = network.condition(
            seen(self._senses.state),
            [seen(port) for port in self._senses.images],
            None if environment is None else seen(environment),
        )
        self.draw_(outputs[NOISE], state)
        first = self._config.n_obs_steps - 1
        if self._real_time is None:
            sample_BHA = network.sample(condition_BD, outputs[NOISE])
            chunk_HA.copy_(sample_BHA[0, first:])
            return
        shift_A = None
        if self._relative is not None:
            drift_A = self._relative.drift(state, inputs)
            shift_A = self._normaliser.action.normalise_difference(drift_A)
        known = self._real_time.prefix(state, inputs, shift_A)
        # Rows of the steps before the present one are denoised, too, and drawn to nothing.
        prefix = Prefix(
            functional.pad(known.rows, (0, 0, first, 0)).unsqueeze(0),
            functional.pad(known.weights_H, (first, 0)),
            known.max_weight,
        )
        sample_BHA = self._network.sample(condition_BD, outputs[NOISE], prefix)
        chunk_HA.copy_(sample_BHA[0, first:])
        self._real_time.keep_(outputs, chunk_HA)

    def restore(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions in the units of the port."""
        return self._normaliser.restore(actions)

    def draw_(self, noise_NBHA: torch.Tensor, state: Buffers) -> None:
        """Draws all noise of a plan; overridden where it is given.

        Args:
            noise_NBHA: Written.
            state: Read only; the counter moves when the chunk is adopted.
        """
        noise.normal_(noise_NBHA, state, advance=False)

    def adopt_(self, state: Buffers, outputs: Buffers) -> None:
        """Moves the noise on."""
        if self._real_time is not None:
            self._real_time.adopt_(state, outputs)
        noise.advance_(state, noise.blocks_for(outputs[NOISE].numel()))


def _check_shapes(config: DiffusionConfig, senses: Senses, action: Port) -> None:
    image = () if config.vision is None else (3, *config.vision.image_size)
    expected = [(config.state_size,), *[image] * config.cameras]
    if config.environment_size:
        expected.append((config.environment_size,))
    found = [port.shape for port in senses.ports]
    if found != expected or action.shape != (config.action_size,):
        raise SpecError(
            f"diffusion policy: expected observations of shapes {expected} and an action of "
            f"{(config.action_size,)}, found {found} and {action.shape}"
        )
