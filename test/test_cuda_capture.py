"""A plan is captured while other threads of the process use the GPU.

A robot's process decodes images or runs a second policy meanwhile. The capture must not break on
their allocations, which a capture of the process-wide kind does: that is the control.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from toy_policies import ToyRecurrent, observations

from flashrt_ros.runtime.policy import Buffers
from flashrt_ros.runtime.session import PolicySession

pytestmark = pytest.mark.cuda

BLOCK_BYTES = 512 << 20
"""More than the allocator has at hand, so that the driver is asked for memory."""


def allocate_elsewhere() -> list[BaseException]:
    """Allocates and uses device memory in another thread; returns what went wrong there."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.empty_cache()
                block_N = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda")
                block_N.fill_(1)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return errors


class Disturbed(ToyRecurrent):
    """Another thread uses the GPU in the middle of the capture of ``act``."""

    def __init__(self) -> None:
        super().__init__()
        self.disturbed = 0
        self.errors: list[BaseException] = []

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        if torch.cuda.is_current_stream_capturing():
            self.disturbed += 1
            self.errors += allocate_elsewhere()


def test_capture_stands_what_other_threads_do() -> None:
    policy = Disturbed()
    session = PolicySession(policy, device="cuda")
    assert policy.disturbed == 1
    assert not policy.errors
    undisturbed = PolicySession(ToyRecurrent(), device="cuda")
    for step in range(5):
        action = session.step(observations(step))
        assert torch.equal(action.values, undisturbed.step(observations(step)).values)


def test_a_capture_of_the_whole_process_would_break() -> None:
    # In a process of its own, as a broken capture leaves the context in doubt.
    ended = subprocess.run(
        [sys.executable, "-c", f"import {__name__}; {__name__}.capture_globally()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "capture broke" in ended.stdout, ended.stdout + ended.stderr


def capture_globally() -> None:
    errors: list[BaseException] = []
    value_8 = torch.zeros(8, device="cuda")
    try:
        with torch.cuda.graph(
            torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(), capture_error_mode="global"
        ):
            value_8.add_(1)
            errors += allocate_elsewhere()
    except RuntimeError as error:
        errors.append(error)
    print("capture broke" if errors else "capture stood", errors, flush=True)
    os._exit(0)
