"""``flashrt_ros bench``: runs benchmarks, prints their tables, writes JSON."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from flashrt_ros.errors import InvalidArgumentError

BENCHMARKS: dict[str, str] = {
    "step": "host and wall time of a step, captured and plain",
    "verbs": "snapshot, restore, rollback and fork against one plain copy",
    "rows": "verbs on state that grows, by context length and segments",
    "sameness": "restore, then 200 steps, at random cut points; with controls",
    "jitter": "control period of the node beside a bare sleep loop",
    "services": "round trips of the node's services beside a bare Trigger server",
    "startup": "process start and configure to the first action",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``bench``."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--quick", action="store_true", help="few samples: see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--list", action="store_true", help="say what can be measured")


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmarks named, all by default; 1 if what must always be the same was not."""
    if arguments.list:
        for name, title in BENCHMARKS.items():
            print(f"{name:<10} {title}")
        return 0
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        raise InvalidArgumentError(
            f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}"
        )
    import torch

    from flashrt_ros.bench.harness import Options, facts
    from flashrt_ros.bench.report import facts_table, table

    torch.set_num_threads(1)
    options = Options(arguments.device, arguments.quick)
    top = facts(options)
    print(facts_table(top), flush=True)
    results, met = [], True
    for name in arguments.names or BENCHMARKS:
        result = importlib.import_module(f"flashrt_ros.bench.{name}").run(options)
        print("\n" + table(result), flush=True)
        results.append(result.to_json())
        met = met and all(count.met for count in result.counts)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"facts": top, "results": results}, indent=2) + "\n")
        print(f"\nwritten: {arguments.json}")
    return 0 if met else 1
