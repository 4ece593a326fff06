"""``flashrt_ros evaluate``: what policies would have done over recordings, against what was."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.errors import InvalidArgumentError, StorageError
from flashrt_ros.evaluate import output

if TYPE_CHECKING:
    from flashrt_ros.evaluate.evaluator import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``evaluate``."""
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="recordings: folders, .mcap or .db3 files"
    )
    what = parser.add_argument_group("what is evaluated")
    what.add_argument(
        "--policy",
        action="append",
        required=True,
        metavar="[LABEL=]DIRECTORY",
        help="a policy; several are compared side by side",
    )
    what.add_argument("--contract", default="", metavar="FILE", help="of robot and policies")
    what.add_argument("--task", default="", metavar="TEXT", help="the task at the start")
    what.add_argument("--seed", type=int, default=0, help="noise key of the first episode")
    what.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    what.add_argument("--numerics", default="exact", help="exact or fast (default: exact)")
    what.add_argument(
        "--trust", action="store_true", help="let torch unpickle programs; runs any code"
    )
    steps = parser.add_argument_group("control steps")
    steps.add_argument("--from", dest="begin", metavar="TIME", help="report from there: 12.5s")
    steps.add_argument("--to", dest="end", metavar="TIME", help="end there")
    steps.add_argument(
        "--steps",
        choices=("rate", "recorded"),
        default="rate",
        help="at the contract's rate, or whenever a command was recorded (default: rate)",
    )
    steps.add_argument(
        "--episodes",
        metavar="RULE",
        help="gaps:SECONDS, topic:NAME or table:FILE (default: a recording is one episode)",
    )
    steps.add_argument(
        "--remap",
        action="append",
        default=[],
        metavar="TOPIC:=RECORDED",
        help="a topic of the contract that is called otherwise in the recording",
    )
    steps.add_argument(
        "--delay",
        type=int,
        default=0,
        metavar="PERIODS",
        help="control periods that a plan beside takes (default: 0, adopted at once)",
    )
    steps.add_argument(
        "--plan-ahead",
        type=int,
        metavar="ROWS",
        help="rows left of a chunk with which the next plan begins (default: --delay)",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    out.add_argument(
        "--save-tracks", type=Path, metavar="FOLDER", help="write each run there, as .npz"
    )
    output.add_arguments(out)


def run(arguments: argparse.Namespace) -> int:
    """Evaluates and prints; 1 if a threshold fails."""
    from flashrt_ros.evaluate import report
    from flashrt_ros.evaluate.evaluator import Evaluator

    options = options_of(arguments)
    output.check(arguments)
    evaluator = Evaluator(options)
    try:
        results = [evaluator.run(path) for path in arguments.sources]
        found = report.make(options, evaluator.policies(), results)
    finally:
        evaluator.close()
    if arguments.save_tracks is not None:
        _save(arguments.save_tracks, results)
    output.write(arguments, found, results)
    text = json.dumps(found, indent=1)
    if arguments.json is not None:
        try:
            arguments.json.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{arguments.json}: cannot be written: {error.strerror}") from None
    else:
        print(text)
    return 0


def options_of(arguments: argparse.Namespace) -> Options:
    """What the command line asks for.

    Raises:
        InvalidArgumentError: An option is wrong.
    """
    from flashrt_ros.evaluate.drive import Pace
    from flashrt_ros.evaluate.episodes import EpisodeRule, seconds
    from flashrt_ros.evaluate.evaluator import Candidate, Options

    remap = {}
    for text in arguments.remap:
        name, found, recorded = text.partition(":=")
        if not (name and found and recorded):
            raise InvalidArgumentError(f"--remap: expected TOPIC:=RECORDED, found {text!r}")
        remap[name] = recorded
    return Options(
        candidates=tuple(Candidate.parse(text) for text in arguments.policy),
        contract=arguments.contract,
        steps=arguments.steps,
        episodes=EpisodeRule.parse(arguments.episodes) if arguments.episodes else None,
        remap=remap,
        start_s=seconds("--from", arguments.begin) if arguments.begin else 0.0,
        end_s=seconds("--to", arguments.end) if arguments.end else None,
        seed=arguments.seed,
        task=arguments.task,
        device=arguments.device,
        numerics=arguments.numerics,
        trust=arguments.trust,
        pace=Pace(arguments.delay, arguments.plan_ahead),
    )


def _save(folder: Path, results: object) -> None:
    from flashrt_ros.evaluate.evaluator import Result

    assert isinstance(results, list)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, result in enumerate(results):
            assert isinstance(result, Result)
            for track in result.tracks:
                track.save(folder / f"{number:05}.{track.policy}.npz")
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from None
