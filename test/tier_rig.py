"""A control step with tiers, and copies that a test holds still."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from control_rig import Rig
from node_policies import Follow
from separate_host import separate_host

from flashrt_ros.ros.records import EventKind
from flashrt_ros.ros.verbs import Answer, Verb
from flashrt_ros.runtime.buffers import padded
from flashrt_ros.runtime.device.base import Pair
from flashrt_ros.runtime.engine import complete_layout

LIMIT_S = 20.0
"""A generous limit: it only decides how long a failure takes."""


class Gate:
    """Copies that wait until the gate is opened."""

    def __init__(self, rig: Rig) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.thread: threading.Thread | None = None
        carry = rig.session.device.carry

        def gated(pairs: Iterable[Pair]) -> None:
            self.thread = threading.current_thread()
            self.reached.set()
            assert self.opened.wait(LIMIT_S)
            carry(pairs)

        rig.session.device.carry = gated  # type: ignore[method-assign]


def rig_of(tmp_path: Path, slots: int = 40, blocks: int = 3) -> Rig:
    torch.set_num_threads(1)
    weight = complete_layout(Follow()).fixed_bytes
    with separate_host():
        return Rig(
            capsule_dir=str(tmp_path / "capsules"),
            store_bytes=slots * weight,
            host_store_bytes=blocks * padded(weight),
        )


def pump(rig: Rig, until: Any) -> None:
    """The turns that tasks need on the control thread."""
    end_s = time.monotonic() + LIMIT_S
    while not until():
        assert time.monotonic() < end_s, "it does not come to an end"
        if (turn := rig.queue.get(0.01)) is not None:
            rig.carry_out(turn)


def finish(rig: Rig, verb: Verb) -> Answer:
    pump(rig, lambda: verb.result is not None)
    assert verb.result is not None
    return verb.result


def ask(rig: Rig, service: str, /, **fields: Any) -> Answer:
    return finish(rig, rig.call(service, **fields)[0])


def tiers(rig: Rig) -> dict[str, str]:
    capsules = rig.ask("list_capsules").fields["capsules"]
    return {capsule.name: capsule.tier for capsule in capsules}


def kinds(rig: Rig) -> list[tuple[EventKind, str, str]]:
    return [(e.kind, e.name, e.tier) for e in rig.out.events]
