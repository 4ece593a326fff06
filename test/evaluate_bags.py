"""Recordings of an arm for the tests of evaluation, small and written where the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bag_files import START_NS, write_mcap
from contract_examples import JOINT_STATE, cdr, contract_dict, joint_state

from flashrt_ros.contract.contract import Contract

Row = tuple[str, str, int, bytes]
RATE_HZ = 50.0
PERIOD_NS = 20_000_000
NAMES = ("a", "b")


def arm_contract(**changes: Any) -> dict[str, Any]:
    """State and command of two joints, ``a`` and ``b``, at 50 Hz; as YAML would give it."""
    fields = contract_dict()
    observation = fields["observations"][0]
    observation["parts"] = observation["parts"][:1]
    fields["observations"] = [observation]
    for key in ("limits", "max_step"):
        del fields["actions"][0][key]
    return {**fields, **changes}


def write_contract(path: Path, **changes: Any) -> Path:
    """Writes ``arm_contract``; JSON is YAML."""
    path.write_text(json.dumps(arm_contract(**changes)), encoding="utf-8")
    return path


def load_contract(**changes: Any) -> Contract:
    return Contract.from_dict(arm_contract(**changes))


def write_hold(folder: Path, size: int = 2) -> Path:
    """A policy that commands the state that it reads."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"type": "hold", "size": size}))
    return folder


def state(time_ns: int, values: Sequence[float], stamp_ns: int | None = None) -> Row:
    message = joint_state(list(NAMES), values, stamp_ns=time_ns if stamp_ns is None else stamp_ns)
    return ("/joint_states", JOINT_STATE, time_ns, cdr(message))


def command(time_ns: int, values: Sequence[float], names: Sequence[str] = NAMES) -> Row:
    message = joint_state(list(names), values, stamp_ns=time_ns)
    return ("/joint_command", JOINT_STATE, time_ns, cdr(message))


def arm_rows(
    count: int,
    state_of: Callable[[int], Sequence[float]],
    command_of: Callable[[int], Sequence[float]],
    start_ns: int = START_NS,
) -> list[Row]:
    """``count`` control periods, the state just before the command in each."""
    rows = []
    for step in range(count):
        time_ns = start_ns + step * PERIOD_NS
        rows += [state(time_ns, state_of(step)), command(time_ns, command_of(step))]
    return rows


def wave(step: int) -> tuple[float, float]:
    """Smooth, not periodic over some seconds."""
    t = step / RATE_HZ
    return (
        float(np.sin(1.7 * t) + 0.3 * np.sin(4.1 * t)),
        float(0.5 * np.cos(2.3 * t) - 0.2 * np.sin(5.9 * t)),
    )


def write_arm(path: Path, count: int = 100, lead: int = 0) -> Path:
    """A recording in which the command leads the state by ``lead`` steps."""
    rows = arm_rows(count, wave, lambda step: wave(step + lead))
    return write_mcap(path, rows, chunk_size=4096)
