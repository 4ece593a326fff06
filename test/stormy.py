"""A rig that lives through what chance brings, on record: for reproductions.

Late plans, jumps in time, unsafe starts, other tasks, shadows, and every verb that comes back to a
state. The same seed gives the same life.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from chunk_predictors import Looking, Remembering, Sampled
from contract_examples import JOINTS, contract_dict
from control_rig import Rig, plan_ready
from flow_policy import Flow
from periods import Gate
from tape import Tape

from flashrt_ros.policies.attention import AttentionConfig, AttentionPolicy
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.guidance import GuidanceConfig
from flashrt_ros.policies.splice import TemporalEnsemble
from flashrt_ros.runtime.policy import Policy

PARTS = [
    {**JOINTS, "names": ["a", "b"]},
    {**JOINTS, "field": "velocity", "names": ["a"]},
]
VERBS = (
    *("snapshot", "snapshot", "restore", "restore", "fork", "rollback", "reset_episode"),
    *("save_capsule", "load_capsule", "pause", "jump", "far", "task", "shadow", "warm"),
)
Make = Callable[[], Policy]
KINDS: dict[str, Make] = {
    "advances with noise": lambda: ChunkedPolicy(Remembering(4), 3),
    "beside with noise": lambda: ChunkedPolicy(Sampled(8)),
    "beside with a history": lambda: ChunkedPolicy(Looking(8), 6),
    "real-time chunking": lambda: ChunkedPolicy(Flow(GuidanceConfig(execution_horizon=8)), 10),
    "rows": lambda: AttentionPolicy(AttentionConfig(3, 2, 2, 2, 8)),
    "ensembled in each step": lambda: ChunkedPolicy(Sampled(6), None, TemporalEnsemble(0.1, 6)),
    "ensembled beside": lambda: ChunkedPolicy(
        Sampled(6), 4, TemporalEnsemble(0.1, 6), beside=True
    ),
}


class Stormy:
    """A rig that lives through what chance brings, on record."""

    def __init__(self, make: Make, chance: random.Random, folder: Path, **changes: Any) -> None:
        observation = {"key": "observation.state", "max_age_ms": 100, "parts": PARTS}
        start = {**contract_dict()["start"], "max_distance": 3.0, "ramp_s": 0.1}
        policy = make()
        self.gate = Gate(policy)
        self.rig = Rig(
            policy,
            capsule_dir=str(folder),
            **{"observations": [observation], "start": start, **changes},
        )
        self.gate.shut = self.rig.planner is not None
        self.tape = Tape(self.rig)
        folder.mkdir(exist_ok=True)
        self.chance = chance
        self.names: list[str] = []
        self.files: list[str] = []
        self.position = np.zeros(2)

    def live(self, turns: int) -> None:
        for _ in range(turns):
            self._verb()
            for _ in range(self.chance.randint(1, 9)):
                self.tick()

    def tick(self) -> None:
        planner = self.rig.planner
        done = self.chance.random() < 0.4
        if planner is not None and planner.busy and done:
            self.gate.entered.clear()
            self.gate.let_go()
            plan_ready(self.rig)
        self.position += [self.chance.gauss(0, 0.02), self.chance.gauss(0, 0.02)]
        self.rig.tick(hear=self.chance.random() < 0.9, position=tuple(self.position))
        # A plan dropped before its thread has come to it never waits at the gate: only where
        # the thread always has come does the same seed give the same life.
        while planner is not None and planner.busy and not self.gate.entered.is_set():
            time.sleep(0.001)

    def _verb(self) -> None:
        chance, rig = self.chance, self.rig
        what = chance.choice(VERBS)
        fields: dict[str, Any] = {}
        if what in ("restore", "rollback", "reset_episode") and chance.random() < 0.5:
            fields = {"set_seed": True, "seed": chance.getrandbits(64)}
        name = f"n{len(self.names)}"
        source = chance.choice(self.names) if self.names else ""
        if what == "jump":
            rig.inputs.jump = (rig.now_ns, "time jumped")
        elif what == "far":
            self.position = self.position + 9.0
            self.tick()
            self.position = self.position - 9.0
        elif what == "shadow":
            rig.commander.shadow(not rig.commander.dry_run)
        elif what == "warm" and not rig.stepper.occupied:
            rig.options.keep_warm_s, shut, self.gate.shut = 1e-9, self.gate.shut, False
            assert rig.stepper.warmth.turn(rig.now_ns + 1)
            self.gate.shut = shut
            self.gate.entered.clear()
        elif what == "task":
            rig.session.host.task = f"task {chance.randint(0, 3)}"
        elif what == "pause":
            rig.motion.pause()
            rig.commander.halt()
        elif what == "snapshot":
            self._note(rig.ask("snapshot", name=name), name)
        elif what == "fork":
            seeds = [chance.getrandbits(64)] if chance.random() < 0.5 else []
            self._note(rig.ask("fork", name=source, names=[name], seeds=seeds), name)
        elif what == "restore" and source:
            rig.ask("restore", name=source, publish=True, **fields)
        elif what == "rollback":
            rig.ask("rollback", steps=chance.randint(0, 5), publish=True, **fields)
        elif what == "reset_episode":
            rig.ask("reset_episode", **fields)
        elif what == "save_capsule" and source:
            file = f"f{len(self.files)}"
            self.files += [file] * self.later("save_capsule", name=source, file=file)
        elif what == "load_capsule" and self.files:
            file = chance.choice(self.files)
            self.names += [name] * self.later("load_capsule", file=file, name=name)
        rig.call("resume")

    def _note(self, answer: Any, name: str) -> None:
        if answer.code == 0:
            self.names.append(name)

    def later(self, service: str, **fields: Any) -> bool:
        verb, _ = self.rig.call(service, **fields)
        while verb.result is None:
            if (turn := self.rig.queue.get(0.01)) is not None:
                self.rig.carry_out(turn)
        return verb.result.code == 0

    def close(self) -> None:
        self.gate.shut = False
        for _ in range(8):
            self.gate.let_go()
        self.rig.storage.close()
        self.rig.stepper.close()
