"""Timers and facts that all benchmarks share."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import torch

from flashrt_ros import __version__
from flashrt_ros.runtime.device import Device, Lane, open_device
from flashrt_ros.testing.progress import Say, silent

BUSY_CYCLES = 1_000_000
"""About half a millisecond on the stream, far longer than any call takes to enqueue its work."""


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        quick: Few samples of small sizes, to see that a benchmark works.
        warm_up: What is done so often before anything is timed; None: as often as each benchmark
            finds enough. Clocks of an integrated GPU take some 300 replays to settle.
        policy: Name or directory of the policy that the benchmark ``policy`` measures.
        numerics: How that policy calculates; see ``load_policy``.
        observations: With how many a fast policy is compared with the exact one, at most.
        recorded: File of observations for that; None: random ones.
        seconds: How long the benchmark ``path`` looks at the node; 0: as long as it finds enough.
        size_gb: Of the large recording of the benchmark ``evaluate``.
        size: Of the random hybrid of ``decode``, ``ttft`` and ``continuation``; empty: as fits the
            device.
        say: Told what is measured next, by those that take long; at last nothing.
    """

    device: str = "cpu"
    quick: bool = False
    warm_up: int | None = None
    policy: str = ""
    numerics: str = "exact"
    observations: int = 1000
    recorded: Path | None = None
    seconds: float = 0.0
    size_gb: float = 1.0
    size: str = ""
    say: Say = silent

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")

    def rounds(self, full: int) -> int:
        """Returns ``full``, or a few where it is to be quick."""
        return min(full, 5) if self.quick else full

    def warm(self, enough: int = 3) -> int:
        """Returns how often to warm up where ``enough`` would do."""
        return enough if self.warm_up is None else self.warm_up


@dataclass
class Case:
    """One thing to time.

    Attributes:
        run: What is timed.
        before: Called before each ``run``, outside the time.
        after: Called after each ``run``, outside the time.
    """

    run: Callable[[], object]
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


@dataclass
class Samples:
    """Microseconds of every call of one case.

    Attributes:
        host: Until the call returned.
        wall: Until its work was done on the device.
        device: Of its work on the device, without waiting for the host; empty on CPU.
    """

    host: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)


def interleave(
    cases: Mapping[str, Case],
    rounds: int,
    device: Device,
    warm_up: int = 3,
    device_times: bool = True,
) -> dict[str, Samples]:
    """Times all cases in turn, round by round, so that what drifts falls on all alike.

    Args:
        cases: What to time, by name; the order rotates from round to round.
        rounds: Samples of each.
        device: Its control lane is bound; work of the cases must go there.
        warm_up: Rounds before, whose times are thrown away.
        device_times: On CUDA each case is called twice a round, for its time on the device as
            well; False for those that wait for the device by themselves, or work on other lanes.
    """
    samples = {name: Samples() for name in cases}
    names = list(cases)
    with device.bind(Lane.CONTROL):
        for index in range(-warm_up, rounds):
            shift = index % len(names)
            for name in names[shift:] + names[:shift]:
                found = samples[name] if index >= 0 else Samples()
                _time_wall(cases[name], found, device)
                if device_times and device.torch_device.type == "cuda":
                    _time_device(cases[name], found, device)
    return samples


def affordable(
    cases: Mapping[str, Case],
    device: Device,
    budget_s: float,
    fewest: int,
    most: int,
    device_times: bool = True,
) -> int:
    """Returns how many rounds of these cases take about ``budget_s``, by timing one.

    Args:
        cases: They have been warmed up.
        device: As in ``interleave``.
        budget_s: Seconds.
        fewest: Rounds at least, whatever they take.
        most: Rounds at most.
        device_times: As in ``interleave``.
    """
    begun_s = time.perf_counter()
    interleave(cases, 1, device, 0, device_times)
    taken_s = time.perf_counter() - begun_s
    return min(most, max(fewest, int(budget_s / taken_s)))


def _time_wall(case: Case, samples: Samples, device: Device) -> None:
    if case.before is not None:
        case.before()
    device.synchronize()
    begin = time.perf_counter_ns()
    case.run()
    called = time.perf_counter_ns()
    device.synchronize()
    done = time.perf_counter_ns()
    samples.host.append((called - begin) / 1e3)
    samples.wall.append((done - begin) / 1e3)
    if case.after is not None:
        case.after()


def _time_device(case: Case, samples: Samples, device: Device) -> None:
    """Times the work alone: the stream is kept busy until all of it is enqueued.

    Otherwise the time in which the device waits for the host would be counted with it.
    """
    if case.before is not None:
        case.before()
    device.synchronize()
    first = torch.cuda.Event(enable_timing=True)
    last = torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(BUSY_CYCLES)
    first.record()
    case.run()
    last.record()
    device.synchronize()
    samples.device.append(first.elapsed_time(last) * 1e3)
    if case.after is not None:
        case.after()


def contiguous_copy(device: Device, size_bytes: int) -> tuple[str, Callable[[], object]]:
    """Returns the name and the call of one plain copy of ``size_bytes`` on the control lane.

    On CUDA that is ``cudaMemcpyAsync`` itself where cuda.bindings is installed, else torch's.
    """
    source_N = device.allocate(size_bytes)
    target_N = device.allocate(size_bytes)
    source_N.fill_(1)
    return plain_copy(device, target_N, source_N)


def plain_copy(
    device: Device, target_N: torch.Tensor, source_N: torch.Tensor
) -> tuple[str, Callable[[], object]]:
    """Returns the name and the call of one plain copy on the control lane; see above.

    Args:
        device: Where at least one of them lies.
        target_N: ``(N,)`` uint8, written; on the host it is pinned.
        source_N: ``(N,)`` uint8, read; on the host it is pinned.
    """
    size_bytes = source_N.nbytes
    if device.torch_device.type == "cuda":
        try:
            from cuda.bindings import runtime
        except ImportError:
            pass
        else:
            kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
            to, fro = target_N.data_ptr(), source_N.data_ptr()
            with device.bind(Lane.CONTROL):
                stream = torch.cuda.current_stream().cuda_stream
            # The tensors stay alive with the closure.
            keep = (source_N, target_N)
            return "cudaMemcpyAsync", lambda: (
                runtime.cudaMemcpyAsync(to, fro, size_bytes, kind, stream),
                keep,
            )
    return "plain copy", lambda: target_N.copy_(source_N, non_blocking=True)


def facts(options: Options) -> dict[str, str]:
    """Returns what the figures depend on: versions, device, load."""
    device = open_device(options.device)
    found = {
        "flashrt_ros": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"load {os.getloadavg()[0]:.1f}",
        "processor": _processor(),
        "python": platform.python_version(),
        "torch threads": str(torch.get_num_threads()),
    }
    return {**found, **dict(device.facts())}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.lower().startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
