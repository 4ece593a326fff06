"""Prints torch's build as one JSON line, then tries a capture; run in a process of its own.

A torch without kernels for the GPU leaves the process's CUDA context broken: hence the process.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace

from flashrt_ros.hardware.torch_build import read_torch_build


def main() -> None:
    """Prints one JSON line before, and one after the attempt: a crash leaves the first."""
    found = read_torch_build()
    print(json.dumps(asdict(found)), flush=True)
    if not found.available:
        return
    import torch

    try:
        found = replace(found, free_bytes=torch.cuda.mem_get_info()[0])
        found = replace(found, capture=capture_ms())
    except Exception as error:
        words = str(error).splitlines()[0] if str(error) else repr(error)
        found = replace(found, capture_error=words)
    print(json.dumps(asdict(found)), flush=True)


def capture_ms() -> float:
    """Captures and replays a small graph; returns the milliseconds that both took.

    Raises:
        RuntimeError: The replay gave a wrong value.
    """
    import torch

    value_N = torch.zeros(64, device="cuda")
    weight_NN = torch.eye(64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        value_N.copy_(value_N @ weight_NN + 1)
    stream.synchronize()
    value_N.zero_()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        value_N.copy_(value_N @ weight_NN + 1)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    took = (time.perf_counter() - begin) * 1e3
    if not bool((value_N == 3).all()):
        raise RuntimeError(f"three replays of +1 gave {value_N[0].item()}, expected 3")
    return took


if __name__ == "__main__":
    main()
