"""Prints torch's build as one JSON line, then tries a capture; run in a process of its own.

A torch without kernels for the GPU leaves the process's CUDA context broken: hence the process.
"""

from __future__ import annotations

import json
import time


def main() -> None:
    """Prints one JSON line before, and one after the attempt: a crash leaves the first."""
    import torch

    found: dict[str, object] = {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "architectures": torch.cuda.get_arch_list() if torch.version.cuda else [],
        "available": torch.cuda.is_available(),
        "threads": torch.get_num_threads(),
        "capture": None,
        "capture_error": "",
        "free_bytes": 0,
    }
    print(json.dumps(found), flush=True)
    if not found["available"]:
        return
    try:
        found["free_bytes"] = torch.cuda.mem_get_info()[0]
        found["capture"] = capture_ms()
    except Exception as error:
        found["capture_error"] = str(error).splitlines()[0] if str(error) else repr(error)
    print(json.dumps(found), flush=True)


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
