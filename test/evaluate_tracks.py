"""Made-up results of evaluations for tests of what is written of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashrt_ros.evaluate.fan import Branch, Fan
from flashrt_ros.evaluate.report import run_part
from flashrt_ros.evaluate.track import Track

START_NS = 1_700_000_000_000_000_000


def track(
    policy: str = "act",
    source: str = "run_0",
    steps: int = 600,
    joints: int = 3,
    period_s: float = 1 / 30,
    horizon: int = 20,
    replan: int = 10,
    offset: float = 0.05,
    spike_at: int | None = None,
    inputs: tuple[str, ...] = ("state (/joint_states)", "image (/camera/image)"),
) -> Track:
    """Returns a track of sines: the prediction stands ``offset`` above what was recorded.

    The first steps have no message, a stretch in the middle is stale; no step is made then. There
    are three episodes.
    """
    rng = np.random.default_rng(7)
    t = np.arange(steps)
    phase_A = np.arange(joints)
    recorded_TA = np.sin(t[:, None] * period_s * (1 + phase_A) + phase_A)
    predicted_TA = recorded_TA + offset + 0.01 * rng.standard_normal((steps, joints))
    stepped_T = np.ones(steps, np.bool_)
    stepped_T[:4] = False
    quiet = slice(steps // 2, steps // 2 + max(2, steps // 60))
    stepped_T[quiet] = False
    ages_ms = {name: 5 + 10 * rng.random(steps) for name in inputs}
    fault_T = [""] * steps
    if inputs:
        ages_ms[inputs[-1]][:4] = np.nan
        ages_ms[inputs[0]][quiet] = 100 + 30 * np.arange(quiet.stop - quiet.start)
    for index in np.flatnonzero(~stepped_T) if inputs else ():
        fault_T[index] = f"{inputs[-1]}: no message" if index < 4 else f"{inputs[0]}: stale"
    predicted_TA[~stepped_T] = np.nan
    if spike_at is not None:
        predicted_TA[spike_at, 0] = 9.0
    starts = np.arange(4, steps, replan) if horizon else np.arange(0)
    rows = starts[:, None] + np.arange(horizon)
    chunks_CHA = recorded_TA[np.minimum(rows, steps - 1)] + offset
    chunks_CHA = chunks_CHA + 0.004 * np.arange(horizon)[None, :, None]
    latency_ms_T = np.where(stepped_T, 4 + rng.exponential(1.0, steps), np.nan)
    return Track(
        policy=policy,
        source=source,
        names=tuple(f"joint_{i}" for i in range(joints)),
        units=("rad",) * (joints - 1) + ("m",),
        gripper=(False,) * (joints - 1) + (True,),
        period_s=period_s,
        index_T=t.astype(np.int64),
        time_ns_T=START_NS + np.rint(t * period_s * 1e9).astype(np.int64),
        episode_T=(3 * t // steps).astype(np.int32),
        stepped_T=stepped_T,
        recorded_TA=recorded_TA,
        state_TA=recorded_TA - 0.02,
        predicted_TA=predicted_TA,
        sent_TA=np.minimum(predicted_TA, 0.98),
        latency_ms_T=latency_ms_T,
        ages_ms=ages_ms,
        fault_T=fault_T,
        chunk_start_C=starts.astype(np.int64),
        chunk_adopted_C=starts.astype(np.int64),
        chunks_CHA=(chunks_CHA if horizon else np.zeros((0, 0, joints))).astype(np.float32),
        chunks=len(starts),
        splice_index_S=starts[1:].astype(np.int64),
        splice_SA=rng.normal(0, 0.02, (max(0, len(starts) - 1), joints)),
    )


def report(tracks: list[Track], **more: Any) -> dict[str, Any]:
    """Returns what the JSON report says of such tracks, as far as the page reads it."""
    sources = {each.source: each for each in reversed(tracks)}
    return {
        "format": "flashrt_ros.evaluate",
        "version": 1,
        "created": "2026-01-01T00:00:00Z",
        "flashrt_ros": "0.1.0",
        "contract": "arm.contract.yaml",
        "sources": [
            {
                "name": name,
                "start_ns": int(each.time_ns_T[0]),
                "end_ns": int(each.time_ns_T[-1]),
                "messages": 1234,
                "topics": [
                    {"name": "/joints", "type": "sensor_msgs/msg/JointState"} | {"messages": 7}
                ],
                "defects": [],
            }
            for name, each in sources.items()
        ],
        "policies": [
            {"label": label, "path": f"/policies/{label}", "family": "act"}
            for label in dict.fromkeys(each.policy for each in tracks)
        ],
        "runs": [run_part(each) for each in tracks],
        "thresholds": [],
        "reproduction": None,
        "fans": [],
        **more,
    }


def fan(branches: int = 16, steps: int = 60, joints: int = 3) -> Fan:
    """Returns branches that go apart after ten rows, in all but the last element."""
    rng = np.random.default_rng(3)
    drift_BHA = np.cumsum(0.02 * rng.standard_normal((branches, steps, joints)), axis=1)
    drift_BHA[:, :10] = 0.0
    drift_BHA[:, :, -1] = 0.0
    recorded_HA = np.sin(np.arange(steps)[:, None] / 20 + np.arange(joints))
    return Fan(
        policy="act",
        source="run_0",
        index=375,
        time_ns=START_NS + 12_500_000_000,
        period_s=1 / 30,
        names=tuple(f"joint_{i}" for i in range(joints)),
        units=("rad",) * (joints - 1) + ("m",),
        branches=tuple(Branch(f"seed {i}", "act", i, "pick") for i in range(branches)),
        actions_BHA=recorded_HA + 0.03 + drift_BHA,
        recorded_HA=recorded_HA,
    )
