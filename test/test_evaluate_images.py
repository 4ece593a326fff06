"""Pins that pictures reach a policy from a recording as they do from the node's intake.

The node decodes and resizes each picture as it comes, evaluation those that a step looks at.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from bag_files import START_NS, write_mcap
from contract_examples import cdr
from control_rig import Lists
from evaluate_bags import PERIOD_NS
from image_messages import RAW, camera_contract, compressed, encoded, noise, rgb_image

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.image import reader as image_reader
from flashrt_ros.contract.image.schema import COMPRESSED
from flashrt_ros.evaluate.source import BagSource
from flashrt_ros.evaluate.timeline import Setting
from flashrt_ros.policies.hold import HoldPolicy
from flashrt_ros.ros.intake import Intake

KEY = "observation.image"
STEPS = 24
PLAIN = {"size": [24, 32], "steps": [{"resize": [12, 16]}, {"crop": [10, 12]}]}


def frames(kind: str, count: int = 10) -> list[tuple[str, str, int, bytes]]:
    """A camera at about 20 Hz, its fifth picture broken."""
    rows = []
    for number in range(count):
        time_ns = START_NS + number * 50_000_000 + (number % 3) * 1_000_000
        pixels = noise(24, 32, 3, seed=number)
        if kind == RAW:
            raw = cdr(rgb_image(pixels, stamp_ns=time_ns))
        else:
            raw = cdr(compressed(encoded(pixels, "PNG"), "png", stamp_ns=time_ns))
        if number == 5:
            raw = raw[:-300]
        rows.append(("/camera", kind, time_ns, raw))
    return rows


def live(given: Contract, rows: list[tuple[str, str, int, bytes]], patch: pytest.MonkeyPatch):
    """Observations and faults of each control period, from the node's intake."""

    class Clock:
        now_ns = 0

        def monotonic_ns(self) -> int:
            return self.now_ns

    clock = Clock()
    patch.setattr("flashrt_ros.ros.intake.time", clock)
    intake = Intake(given, Lists())
    found, heard, waiting = [], 0, list(rows)
    for step in range(STEPS):
        now_ns = START_NS + step * PERIOD_NS
        while waiting and waiting[0][2] <= now_ns:
            row = waiting.pop(0)
            clock.now_ns = row[2]
            intake.receive("camera", row[3])
            heard += 1
            while intake.figures["camera"].received < heard:
                threading.Event().wait(0.0002)
        clock.now_ns = now_ns
        sample = intake.sample(now_ns, 0)
        found.append((sample.observations, sample.faults))
    assert intake.close(30.0)
    return found


@pytest.mark.parametrize("kind", [RAW, COMPRESSED])
@pytest.mark.parametrize("extra", [{}, {"range": "byte"}])
def test_pictures_are_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, extra: dict[str, str]
) -> None:
    keys = {**PLAIN, **extra, "type": kind}
    if kind == COMPRESSED:
        keys["encoding"] = "png"
    given = camera_contract(**keys)
    rows = frames(kind)
    node = live(given, rows, monkeypatch)
    source = BagSource(write_mcap(tmp_path / "a.mcap", rows, chunk_size=5000))
    moments = list(source.moments(Setting(given, HoldPolicy(2).ports())))[:STEPS]
    source.close()
    assert len(moments) > 20
    for (observations, faults), moment in zip(node, moments, strict=False):
        assert moment.faults == faults
        assert moment.observations.keys() == observations.keys()
        if not faults:
            assert moment.observations[KEY].dtype == observations[KEY].dtype
            assert moment.observations[KEY].tobytes() == observations[KEY].tobytes()
    assert {bool(faults) for _, faults in node} == {True, False}, "the broken one is seen"
    seen = {moment.observations[KEY].tobytes() for moment in moments if not moment.faults}
    assert len(seen) > 6, "the control: pictures differ"


def test_a_picture_that_no_step_looks_at_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    whole = image_reader.Frame.picture
    monkeypatch.setattr(
        image_reader.Frame, "picture", lambda self: decoded.append(id(self)) or whole(self)
    )
    rows = [
        ("/camera", RAW, START_NS + number * 5_000_000, cdr(rgb_image(noise(24, 32, 3))))
        for number in range(100)
    ]
    source = BagSource(write_mcap(tmp_path / "a.mcap", rows))
    moments = list(source.moments(Setting(camera_contract(**PLAIN), HoldPolicy(2).ports())))
    source.close()
    assert len(moments) == 25
    assert np.isfinite([moment.ages_ms[f"{KEY} (camera)"] for moment in moments]).all()
    assert len(decoded) == 25
