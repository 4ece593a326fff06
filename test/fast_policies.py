"""Policies of small checkpoints in the fast arithmetic, in any dtype.

On a CPU float32 shows that only the arithmetic differs, and not what is calculated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from act_files import VARIANTS, write_act
from diffusion_files import CASES, write

from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.fast.act import FastACT
from flashrt_ros.policies.fast.denoiser import FastDiffusion
from flashrt_ros.policies.registry import load_policy

NAMES = [*(f"act: {name}" for name in VARIANTS), *(f"diffusion: {name}" for name in CASES)]


def write_named(directory: Path, name: str) -> Path:
    """Writes the checkpoint of one of ``NAMES``."""
    family, _, case = name.partition(": ")
    if family == "act":
        return write_act(directory, **VARIANTS[case])
    return write(directory, **CASES[case])


def fast_predictor(directory: Path, dtype: torch.dtype) -> Any:
    """The predictor of a checkpoint, fast in ``dtype``; its ``exact`` is the other one."""
    policy = load_policy(directory)
    assert isinstance(policy, ChunkedPolicy)
    exact: Any = policy._predictor
    if policy.family == "chunked.act":
        return type(exact)(
            exact._config, exact._network, exact._normaliser, FastACT(exact._network, dtype)
        )
    senses, action = exact._senses, exact._action
    fast = FastDiffusion(exact._network, dtype)
    return type(exact)(
        exact._config, exact._network, exact._normaliser, senses, action, None, fast
    )
