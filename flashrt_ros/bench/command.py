"""``flashrt_ros bench``: runs benchmarks, prints their tables, writes JSON and a page."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros import __version__
from flashrt_ros.errors import InvalidArgumentError

if TYPE_CHECKING:
    from flashrt_ros.bench.figures import Figures

BENCHMARKS: dict[str, str] = {
    "copies": "one plain copy by size and direction: the floor of everything else",
    "step": "host and wall time of a step, captured and plain",
    "verbs": "snapshot, restore, rollback and fork against one plain copy, by size",
    "rows": "verbs on state that grows, by context length and new rows",
    "segments": "verbs on state that grows, by the pieces in which its rows are stored",
    "branches": "fork, materialise and switch apart; previews of branches",
    "tiers": "moves to host memory and disk; control periods at 1 kHz beside them",
    "memory": "bytes that snapshots and forks take, against full copies",
    "sameness": "restore, then 200 steps, at random cut points; with controls",
    "decode": "one token of a hybrid beside transformers, and beside reading its weights",
    "ttft": "first token of a hybrid: cold, beside transformers, and by restore and suffix",
    "continuation": "restore a hybrid at random boundaries, then 256 tokens; with controls",
    "jitter": "control period of the node beside a bare sleep loop",
    "services": "round trips of the node's services beside a bare Trigger server",
    "trees": "ticks of a behaviour tree with a verb in every tenth, beside its empty twin",
    "path": "images in real DDS to commands in real DDS, against bare inference",
    "evaluate": "evaluation of recordings against real time; memory that a large one takes",
    "many": "many recordings with each engine, and what 100,000 would take",
    "startup": "process start and configure to the first action",
}
POLICY = "policy"
OF_A_POLICY = "plan, act and control steps of any policy, beside LeRobot's on its checkpoints"
PREDICT = "predict"
PREDICTION = "copy, rollback and switch of a memory that is not here, on paper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``bench``."""
    names = (
        f"of {', '.join(BENCHMARKS)}; all by default. Or {POLICY}: {OF_A_POLICY}; or {PREDICT}:"
        f" {PREDICTION}"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--policy",
        default="",
        metavar="NAME",
        help=f"of {POLICY}: directory with config.json, registered name, or module:factory",
    )
    parser.add_argument(
        "--numerics",
        default="exact",
        help=f"of {POLICY}: exact, or fast, which is then compared with exact",
    )
    parser.add_argument(
        "--observations",
        type=int,
        default=1000,
        metavar="N",
        help=f"of {POLICY} --numerics fast: with how many observations (default: 1000)",
    )
    parser.add_argument(
        "--recorded",
        type=Path,
        metavar="FILE",
        help=f"of {POLICY} --numerics fast: safetensors with (N, *shape) of each input, instead "
        "of random observations; of images uint8 will do",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="of path: how long to look at the node (default: 30)",
    )
    parser.add_argument(
        "--size-gb",
        type=float,
        default=1.0,
        metavar="GB",
        help="of evaluate: size of the large recording, which is written and deleted (default: 1)",
    )
    parser.add_argument(
        "--size",
        default="",
        choices=("tiny", "small", "large"),
        help="of decode, ttft and continuation: random weights, large has 1.5 billion (default: "
        "large on a GPU, else tiny)",
    )
    parser.add_argument("--quick", action="store_true", help="few samples: see that it works")
    parser.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help="do everything N times before it is timed (on a Jetson: 300)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with a plot of each curve there"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="measure nothing: print, or make a page of, what --json wrote",
    )
    parser.add_argument(
        "--bandwidth-gbs",
        type=float,
        metavar="GBS",
        help=f"of {PREDICT}: GB/s of the memory, reads and writes together",
    )
    parser.add_argument("--list", action="store_true", help="say what can be measured")


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmarks named, all by default; 1 if what must always be the same was not."""
    if arguments.list:
        for name, title in {**BENCHMARKS, POLICY: OF_A_POLICY, PREDICT: PREDICTION}.items():
            print(f"{name:<12} {title}")
        return 0
    _check(arguments)
    from flashrt_ros.bench import figures, page

    for path in (arguments.json, arguments.html):
        if path is not None:
            _check_place(path)
    if arguments.html is not None:
        page.check_plotly()
    if arguments.source is not None:
        found = figures.read(arguments.source)
        _print(found)
    elif PREDICT in arguments.names:
        from flashrt_ros.bench import predict

        top = {"flashrt_ros": __version__, "measured": "nothing: this is arithmetic"}
        found = figures.Figures(top, (predict.run(arguments.bandwidth_gbs),))
        _print(found)
    else:
        found = _measure(arguments)
    if arguments.json is not None:
        figures.write(arguments.json, found)
        print(f"\nwritten: {arguments.json}")
    if arguments.html is not None:
        count = page.write_page(arguments.html, found)
        print(f"\nwritten: {arguments.html}, {count} figures")
    return 0 if all(count.met for result in found.results for count in result.counts) else 1


def _check(arguments: argparse.Namespace) -> None:
    known = (*BENCHMARKS, POLICY, PREDICT)
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        raise InvalidArgumentError(
            f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}"
        )
    if bool(arguments.policy) != (POLICY in arguments.names):
        raise InvalidArgumentError(
            f"{POLICY} and --policy belong together: flashrt_ros bench {POLICY} --policy DIRECTORY"
        )
    if arguments.source is not None and arguments.names:
        raise InvalidArgumentError(
            f"--from: expected no names, found {', '.join(arguments.names)}: what is in the file"
            " is shown"
        )
    if arguments.warm_up is not None and arguments.warm_up < 0:
        raise InvalidArgumentError(f"--warm-up: expected 0 or more, found {arguments.warm_up}")
    if arguments.seconds is not None and not 1.0 <= arguments.seconds <= 86_400.0:
        raise InvalidArgumentError(f"--seconds: expected 1 to 86400, found {arguments.seconds:g}")
    if arguments.observations < 1:
        raise InvalidArgumentError(
            f"--observations: expected 1 or more, found {arguments.observations}"
        )
    if not 0 < arguments.size_gb <= 1000:
        raise InvalidArgumentError(f"--size-gb: expected 0 to 1000, found {arguments.size_gb}")
    if PREDICT not in arguments.names:
        if arguments.bandwidth_gbs is not None:
            raise InvalidArgumentError(f"--bandwidth-gbs belongs to {PREDICT}")
    elif len(arguments.names) > 1:
        raise InvalidArgumentError(f"{PREDICT}: expected to be alone: it measures nothing")
    elif arguments.bandwidth_gbs is None or not 0 < arguments.bandwidth_gbs < 1e6:
        raise InvalidArgumentError(
            f"{PREDICT}: expected --bandwidth-gbs above 0, found {arguments.bandwidth_gbs}; a"
            " Jetson AGX Thor has 273"
        )


def _check_place(path: Path) -> None:
    """What cannot be written is said before minutes are spent on measuring it.

    Raises:
        InvalidArgumentError: It cannot.
    """
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir():
        found = "a folder" if path.is_dir() else f"no folder {folder}"
        raise InvalidArgumentError(f"{path}: expected a file to write, found {found}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InvalidArgumentError(f"{path}: expected the right to write there, found none")


def _measure(arguments: argparse.Namespace) -> Figures:
    import torch

    from flashrt_ros.bench import figures
    from flashrt_ros.bench.harness import Options, facts
    from flashrt_ros.bench.report import facts_table, table
    from flashrt_ros.testing.progress import on_terminal

    torch.set_num_threads(1)
    options = Options(
        arguments.device,
        arguments.quick,
        arguments.warm_up,
        policy=arguments.policy,
        numerics=arguments.numerics,
        observations=arguments.observations,
        recorded=arguments.recorded,
        seconds=arguments.seconds or 0.0,
        size_gb=arguments.size_gb,
        size=arguments.size,
        say=on_terminal(),
    )
    top = facts(options)
    print(facts_table(top), flush=True)
    results = []
    for name in arguments.names or BENCHMARKS:
        result = importlib.import_module(f"flashrt_ros.bench.{name}").run(options)
        print("\n" + table(result), flush=True)
        results.append(result)
    return figures.Figures(top, tuple(results))


def _print(found: Figures) -> None:
    from flashrt_ros.bench.report import facts_table, table

    if found.facts:
        print(facts_table(found.facts))
    for result in found.results:
        print("\n" + table(result))
