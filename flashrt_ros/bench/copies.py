"""The copy roofline: one plain contiguous copy by size and direction, the floor of all verbs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flashrt_ros.bench.harness import Case, Options, Samples, interleave, plain_copy
from flashrt_ros.bench.report import Curve, Point, Result, make_row
from flashrt_ros.bench.roofline import in_words
from flashrt_ros.runtime.device import Device, open_device

CUDA_SIZES = tuple(1 << shift for shift in range(12, 31, 2))
CPU_SIZES = CUDA_SIZES[:8]
LARGE_BYTES = 16 << 20
CURVES = {"wall": "one copy by size, wall time", "device": "one copy by size, device time"}


def run(options: Options) -> Result:
    """Measures each size, all directions of one size in turn."""
    device = open_device(options.device)
    result = Result("copies", "one contiguous copy: what no verb can be quicker than")
    sizes = CUDA_SIZES if options.cuda else CPU_SIZES
    for size_bytes in sizes[:3] if options.quick else sizes:
        _measure(result, options, device, size_bytes)
    drawn = {row.point.curve for row in result.rows if row.point is not None}
    result.curves += [Curve(title, "bytes", "us") for title in CURVES.values() if title in drawn]
    result.notes += [
        "GB/s r+w: every byte is read once and written once, and both are counted; across a bus"
        " between host and device each byte goes once, so the bus carries half of it.",
    ]
    if options.cuda:
        result.notes.append("host memory is pinned.")
    return result


def _measure(result: Result, options: Options, device: Device, size_bytes: int) -> None:
    names = {
        f"{in_words(size_bytes)}: {direction}": (direction, copy)
        for direction, copy in _directions(device, size_bytes).items()
    }
    cases = {name: Case(copy) for name, (_, copy) in names.items()}
    # A GiB across a bus takes tens of milliseconds, each of them four times a round.
    rounds = options.rounds(300 if options.cuda and size_bytes <= LARGE_BYTES else 50)
    samples = interleave(cases, rounds, device, options.warm(10))
    for kind, curve in CURVES.items():
        for name, (direction, _) in names.items():
            _add(
                result, samples[name], kind, name, size_bytes, Point(curve, direction, size_bytes)
            )


def _add(
    result: Result, samples: Samples, kind: str, name: str, size_bytes: int, point: Point
) -> None:
    found = getattr(samples, kind)
    if found:
        result.rows.append(make_row(f"{name}, {kind}", found, "us", size_bytes, point=point))


def _directions(device: Device, size_bytes: int) -> dict[str, Callable[[], object]]:
    """Returns a copy each way; on CPU there is one way."""
    here_N, there_N = device.allocate(size_bytes), device.allocate(size_bytes)
    here_N.fill_(1)
    if device.torch_device.type == "cpu":
        return {"host": plain_copy(device, there_N, here_N)[1]}
    host_N: torch.Tensor = device.allocate_host(size_bytes)
    return {
        "device to device": plain_copy(device, there_N, here_N)[1],
        "device to host": plain_copy(device, host_N, here_N)[1],
        "host to device": plain_copy(device, there_N, host_N)[1],
    }
