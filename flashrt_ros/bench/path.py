"""The whole path: images in real DDS to commands in real DDS, against bare inference.

Processes of their own: the node, a stand-in robot, two cameras and a recorder. Bare inference is
timed in the same run, before and after, with nothing else at work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from flashrt_ros.bench import act_policy
from flashrt_ros.bench.camera_policy import CAMERAS
from flashrt_ros.bench.harness import Case, Options, interleave
from flashrt_ros.bench.policy import calls_of, observations_of, parameters_of
from flashrt_ros.bench.report import Count, Result, Row, make_row
from flashrt_ros.bench.stage import (
    CAMERA_HZ,
    CAMERA_SIZE,
    CONTROL_HZ,
    JOINTS,
    Stage,
    joint_names,
    node_options,
    settle_s,
)
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.picture import BytePicture
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

MODULE = "flashrt_ros.bench.act_policy"
TARGET = "on a GPU: p50 <= 2 ms"
SECONDS, QUICK_SECONDS = 30.0, 2.0
RESIZED = "steps: [{resize: [32, 48]}]"
SPARE_CPUS = 4
"""With fewer than these the control thread gets none of its own."""


def run(options: Options) -> Result:
    """Measures the policy that suits the device: of ACT's size on a GPU, a small one elsewhere."""
    large = options.cuda and not options.quick
    policy = act_policy.large() if large else act_policy.small()
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    parameters = parameters_of(policy) / 1e6
    height, width = CAMERA_SIZE
    result = Result(
        "path",
        f"image to command: ACT of {parameters:.1f} M parameters, planned in each step, two "
        f"cameras of {width}x{height} at {CAMERA_HZ:g} Hz, control at {CONTROL_HZ:g} Hz for "
        f"{seconds:g} s",
    )
    bare = _bare(policy, options)
    options.say(f"path: the node for {seconds:g} s")
    node = _node(options, "large" if large else "small", seconds)
    for before, after in zip(bare, _bare(policy, options), strict=True):
        before += after
    options.say("")
    _report(result, *bare, node)
    return result


def _bare(policy: Policy, options: Options) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of inference with its inputs on the device, and of steps from the host.

    The last are of steps whose pictures are float32, and of steps whose pictures are bytes.
    """
    device = open_device(options.device)
    policy.module().to(device.torch_device).eval()
    rounds = options.rounds(200 if options.cuda else 50)
    observation, _ = observations_of(policy)
    with torch.no_grad():
        calls = calls_of(policy, device, observation, options.warm())
        parts = [calls[name].run for name in ("plan", "adopt", "act")]
        case = {"bare": Case(lambda: [part() for part in parts])}
        samples = interleave(case, rounds, device, options.warm(), device_times=False)["bare"]
    inference = [wall_us / 1e3 for wall_us in samples.wall]
    pictures = {
        port.key: BytePicture(np.full((*port.shape[1:], port.shape[0]), 128, np.uint8))
        for port in policy.ports().observations
        if len(port.shape) == 3
    }
    session = PolicySession(
        policy, options.device, rollback_depth=0, warm_up=options.warm(), pictures=pictures
    )
    try:
        numbers = _steps(session, observation, rounds)
        narrow = _steps(session, {**observation, **pictures}, rounds)
    finally:
        session.close()
    return inference, numbers, narrow


def _node(options: Options, size: str, seconds: float) -> Mapping[str, Any]:
    with Stage() as stage:
        stage.peer("arm", names=joint_names(JOINTS), rate_hz=CONTROL_HZ)
        stage.cameras(CAMERAS)
        contract = stage.contract(CAMERAS, "" if size == "large" else RESIZED)
        parameters = node_options(options)
        if cpus := _spare_cpus():
            parameters["cpu_affinity"] = f'"{cpus}"'
        stage.node(f"{MODULE}:{size}", contract, **parameters)
        recorder = stage.python(
            "flashrt_ros.ros.path_peer", seconds, settle_s(options), CONTROL_HZ
        )
        stage.first_line(recorder)
        return stage.result(recorder, seconds + 120.0)


def _spare_cpus() -> str:
    """The last two CPUs for the control thread, as ``config/thor.yaml`` gives it two; or any."""
    cpus = sorted(os.sched_getaffinity(0))
    return ",".join(map(str, cpus[-2:])) if len(cpus) >= SPARE_CPUS else ""


def _report(
    result: Result,
    inference: list[float],
    numbers: list[float],
    narrow: list[float],
    node: Mapping[str, Any],
) -> None:
    bare = make_row("bare inference: plan, adopt and act, inputs on the device", inference, "ms")
    waited, total = node["waited_ms"], node["total_ms"]
    added = [t - w - bare.p50 for t, w in zip(total, waited, strict=True)]
    ours = make_row("node: control step, begin to publication", node["latency_ms"], "ms", 0, bare)
    result.rows += [
        bare,
        make_row("bare step: arrays in host memory to an action there", numbers, "ms", 0, bare),
        make_row("bare step: the same, pictures as bytes", narrow, "ms", 0, bare),
        ours,
        make_row("image published to command received", total, "ms"),
        make_row("of that: received, and waiting for the control step", waited, "ms"),
        make_row("added: less waiting, less bare inference", added, "ms", target=TARGET),
        _late(node),
    ]
    periods = len(node["latency_ms"])
    result.counts.append(Count("control periods kept", periods, periods + node["missed"]))
    result.notes += [
        "image published: just before the camera's call of publish; command received: in the",
        "callback of another process. Each image counts once, in the first step that used it.",
        "Cameras and control loop are not in step, so an image waits up to a control period.",
        f"CPUs of the control thread: {_spare_cpus() or 'any'}.",
        "To be reached: all periods kept, too (--seconds 300).",
    ]
    if node["reasons"]:
        result.notes.append(f"held: {', '.join(node['reasons'])}")


def _late(node: Mapping[str, Any]) -> Row:
    p50, p99, largest = node["late_ms"]
    return Row("node: a control step begins late by, the last 512", 512, p50, p99, largest, "ms")


def _steps(session: PolicySession, observation: Mapping[str, object], rounds: int) -> list[float]:
    took = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        session.step(observation)
        took.append((time.perf_counter() - begin_s) * 1e3)
    return took
