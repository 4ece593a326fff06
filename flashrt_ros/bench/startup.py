"""Start of the node's process until it answers, and configure to the first action."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import yaml

import flashrt_ros
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Result, make_row
from flashrt_ros.bench.stage import CONTROL_HZ, JOINTS, Stage, joint_names, node_options

TARGET = "configure to first action < 3000 ms on CPU"
DEMO_CONTRACT = "config/demo_arm.contract.yaml"


def run(options: Options) -> Result:
    """Starts the node several times with the demonstration's policy."""
    result = Result("startup", "start of the node, policy cue_reach")
    ready, configured, first = [], [], []
    for _ in range(1 if options.quick else 5):
        with Stage() as stage:
            policy, contract, names = _subject(stage)
            stage.peer("arm", names=names, rate_hz=CONTROL_HZ)
            starter = stage.peer("start")
            # Starter and arm take their time to be there; the node is what is measured.
            time.sleep(2.0)
            begun_ns = time.time_ns()
            stage.node(policy, contract, autostart=False, **node_options(options))
            found = stage.result(starter)
        ready.append((found["ready_ns"] - begun_ns) / 1e6)
        configured.append(found["configured_ms"])
        first.append(found["first_command_ms"])
    result.title = f"start of the node, policy {policy}"
    result.rows += [
        make_row("process start to its services", ready, "ms"),
        make_row("configure to its answer", configured, "ms"),
        make_row("configure to the first action", first, "ms", target=TARGET),
    ]
    return result


def _subject(stage: Stage) -> tuple[str, Path, list[str]]:
    """Returns policy, contract and joints of the demonstration, else of the stand-in robot."""
    package = Path(flashrt_ros.__file__).parent
    places = (package.parent, Path(sys.prefix) / "share" / "flashrt_ros")
    contracts = [place / DEMO_CONTRACT for place in places if (place / DEMO_CONTRACT).is_file()]
    if not contracts or not (package / "demo" / "weights" / "config.json").is_file():
        return "flashrt_ros.bench.policies:light", stage.contract(), joint_names(JOINTS)
    # The stand-in arm is not at the demonstration's home, where the first command is allowed.
    content = yaml.safe_load(contracts[0].read_text(encoding="utf-8"))
    path = stage.folder / "demo.contract.yaml"
    path.write_text(yaml.safe_dump({**content, "start": "unchecked"}), encoding="utf-8")
    return "cue_reach", path, ["joint1", "joint2"]
