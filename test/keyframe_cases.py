"""An unpleasant recording, its contract, and policies with every kind of state, for keyframes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import diffusion_files
import numpy as np
import torch
from bag_files import write_mcap
from contract_examples import contract_dict
from node_policies import Follow
from test_evaluate_entry import POINT, recording

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.evaluate.drive import Pace
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options
from flashrt_ros.evaluate.track import Track
from flashrt_ros.policies.recurrent import RecurrentPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig, VectorConfig
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers

STATE, ENVIRONMENT = "observation.state", "observation.environment_state"


def write_bag(path: Path, seed: int = 0) -> Path:
    return write_mcap(path, recording(np.random.default_rng([seed, 11])), chunk_size=2048)


def write_contract(path: Path, environment: bool, **changes: Any) -> Path:
    """With limits, a start check that leads up, and resets at jumps."""
    fields = contract_dict(on_time_jump="reset")
    fields["observations"][1] = {
        "key": ENVIRONMENT,
        "max_age_ms": 400,
        "parts": [{"topic": "cue", "type": POINT, "field": "point", "names": ["x", "y", "z"]}],
    }
    if not environment:
        del fields["observations"][1]
    fields["start"] |= {"ramp_s": 0.7, "max_distance": 0.5}
    fields["actions"][0]["max_step"] = 0.05
    path.write_text(json.dumps({**fields, **changes}), encoding="utf-8")
    return path


def write_recurrent(folder: Path, seed: int = 0) -> Path:
    """A GRU whose actions are drawn at each step."""
    torch.manual_seed(seed)
    config = RecurrentConfig(
        observations=(VectorConfig(STATE, 4, normalisation="identity"),),
        action=VectorConfig("action", 2, normalisation="identity"),
        hidden_size=8,
        head="gmm",
    )
    RecurrentPolicy(config).save(folder)
    return folder


def write_diffusion(folder: Path) -> Path:
    """Chunks of five rows, two observations of history."""
    return diffusion_files.write(
        folder, down_dims=[8], n_groups=4, num_inference_steps=2, n_action_steps=5
    )


def options(folder: Path, kind: str, pace: Pace | None = None, **changes: Any) -> Options:
    """Policies, contract and rest; ``kind`` is recurrent, diffusion or two."""
    if kind == "diffusion":
        policies = [write_diffusion(folder / "diffusion")]
    else:
        count = 2 if kind == "two" else 1
        policies = [write_recurrent(folder / f"gru{seed}", seed) for seed in range(count)]
    contract = write_contract(folder / "contract.yaml", kind == "diffusion")
    candidates = tuple(Candidate(path.name, str(path)) for path in policies)
    return Options(candidates, str(contract), pace=pace or Pace(), **changes)


def evaluate(given: Options, path: Path) -> tuple[list[Track], int, list[str]]:
    """Tracks, the moments that were gone through for them, and words on the source."""
    evaluator = Evaluator(given)
    times: list[int] = []
    try:
        result = evaluator.run(path, lambda source: times.append)
    finally:
        evaluator.close()
    return list(result.tracks), len(times), list(result.source.defects)


class Told(Follow):
    """Commands the positions that it reads, and a hundredth for each letter of its task more."""

    family = "told"

    def layout(self) -> tuple[BufferSpec, ...]:
        return (*super().layout(), BufferSpec("letters", (1,), torch.int64, Role.INPUT))

    def task_inputs(self) -> tuple[str, ...]:
        return ("letters",)

    def encode_task(self, task: str, observations: Any) -> dict[str, torch.Tensor]:
        if len(task) > 12:
            raise InvalidArgumentError(f"task {task!r}: expected at most 12 letters")
        return {"letters": torch.tensor([len(task)])}

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["count"].add_(1.0)
        outputs["action_out"].copy_(inputs["state_in"][:2] + 0.01 * inputs["letters"])
