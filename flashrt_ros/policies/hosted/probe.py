"""Finds out whether a hosted object keeps anything from one call to the next.

It is called with one observation, with another, and with the first again. An answer that differs,
an attribute that has another content, a weight with other bytes, or a generator that has moved is
hidden state, which no capsule would hold: the object is refused.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from flashrt_ros.errors import SpecError
from flashrt_ros.policies.walk import attribute_digests, changes, tensor_digest, weight_digests
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.noise import NOISE_SPECS

if TYPE_CHECKING:
    from flashrt_ros.policies.hosted.predictor import HostedPredictor

_MOST_NAMED = 4


@torch.no_grad()
def probe(predictor: HostedPredictor, device: torch.device) -> None:
    """Calls the object, and refuses it if it keeps anything.

    Args:
        predictor: Its module is on the device.
        device: Where its buffers are made, for the time of the probe.

    Raises:
        SpecError: It keeps something, named by its attribute, writes to its inputs, draws from a
            global generator, or answers in another shape than it was said to.
    """
    trial = _Trial(predictor, device)
    python_rng, numpy_rng = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            found = trial.run()
        finally:
            random.setstate(python_rng)
            np.random.set_state(numpy_rng)
    if found:
        raise SpecError(
            f"{predictor.family}: expected an object whose chunk is a function of observation and "
            f"noise, found that {found}"
        )


class _Trial:
    def __init__(self, predictor: HostedPredictor, device: torch.device) -> None:
        self._predictor = predictor
        self._device = device
        specs = (*predictor.layout(), *NOISE_SPECS)
        self._specs = tuple({spec.name: spec for spec in specs}.values())
        self._moved: list[str] = []

    def _buffers(self, role: Role, seed: int) -> dict[str, torch.Tensor]:
        made = {}
        generator = torch.Generator().manual_seed(seed)
        for spec in self._specs:
            if spec.role is role:
                made[spec.name] = _random(spec, generator).to(self._device)
        if role is Role.INPUT and self._predictor.task_inputs():
            seen = {
                port.key: (lambda x: x.float() if x.is_floating_point() else x)(made[port.buffer])
                .cpu()
                .numpy()
                for port in self._predictor.observations()
            }
            for name, value in self._predictor.encode_task("", seen).items():
                made[name].copy_(value)
        return made

    def _call(self, seed: int, observation: int) -> str:
        """Digest of the answer to an observation, under a seed of all global generators."""
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        state = self._buffers(Role.STATE, 0)
        inputs = self._buffers(Role.INPUT, observation)
        outputs = self._buffers(Role.SCRATCH, 2)
        before = {name: tensor_digest(value) for name, value in inputs.items()}
        generators = _generators(self._device)
        prefix = self._predictor.trial_prefix(self._device)
        answer = tensor_digest(self._predictor.call(state, inputs, outputs, prefix))
        self._moved = changes(generators, _generators(self._device))
        written = changes(before, {name: tensor_digest(x) for name, x in inputs.items()})
        if written:
            raise SpecError(
                f"{self._predictor.family}: expected inputs that are only read, found that it "
                f"writes to {', '.join(written)}"
            )
        return answer

    def _attributes(self) -> dict[str, str]:
        """Digests of the object, and of the callable where that is none of its methods."""
        found = attribute_digests(self._predictor.hosted, self._module)
        called = attribute_digests(self._predictor.called, self._module)
        own = {f"call{k[6:]}": v for k, v in called.items() if k.startswith("policy")}
        return {**found, **own}

    @property
    def _module(self) -> nn.Module:
        return self._predictor.module()

    def run(self) -> str:
        """Returns what is wrong in words; empty if nothing is."""
        # Constants that are made at the first call hold no episode.
        self._call(1, 10)
        first = self._call(1, 10)
        before, weights = self._attributes(), weight_digests(self._module)
        self._call(2, 11)
        after = self._attributes()
        again = self._call(3, 10)
        # The same attribute may be reached in several ways, the object's own name first.
        changed = changes(before, after)
        changed = [path for path in changed if path.startswith("policy")] or changed
        if changed:
            named = "; ".join(
                f"{path.replace('policy', 'the object', 1)}: {before.get(path, 'absent')} became "
                f"{after.get(path, 'absent')}"
                for path in changed[:_MOST_NAMED]
            )
            return f"it keeps {named}; what it keeps would be in no capsule"
        bytes_changed = changes(weights, weight_digests(self._module))
        if bytes_changed:
            return f"it writes to its weights or constants {', '.join(bytes_changed)}"
        if self._moved:
            return (
                f"it draws from {', '.join(self._moved)}'s global generator; feed it by the noise "
                "argument, or as 'sampled'"
            )
        if again != first:
            return (
                "the same observation gives another chunk after another one; what it keeps is "
                "reached by no attribute"
            )
        return ""


def _random(spec: BufferSpec, generator: torch.Generator) -> torch.Tensor:
    if spec.dtype == torch.bool or not spec.dtype.is_floating_point:
        return torch.randint(0, 2, spec.shape, generator=generator).to(spec.dtype)
    return torch.rand(spec.shape, generator=generator).to(spec.dtype)


def _generators(device: torch.device) -> dict[str, str]:
    kind, words, *rest = np.random.get_state(legacy=True)
    states = {
        "torch": tensor_digest(torch.get_rng_state()),
        "Python": str(hash(random.getstate())),
        "numpy": f"{kind} {np.asarray(words).tobytes().hex()} {rest}",
    }
    if device.type == "cuda":
        states["CUDA"] = tensor_digest(torch.cuda.get_rng_state(device))
    return states
