"""``flashrt_ros evaluate``: what policies would have done over recordings, against what was."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import FlashRTError, InvalidArgumentError, StorageError
from flashrt_ros.evaluate import engines, moments, output
from flashrt_ros.evaluate.reproduce import command as again

if TYPE_CHECKING:
    from flashrt_ros.evaluate.evaluator import Evaluator, Options, Result
    from flashrt_ros.evaluate.fan import Fan
    from flashrt_ros.evaluate.fork import ForkPlan
    from flashrt_ros.evaluate.spread import Engine
    from flashrt_ros.evaluate.thresholds import Threshold

    Evaluation = tuple[dict[str, Any], list[Result], list[Fan]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``evaluate``."""
    parser.usage = "%(prog)s SOURCE... --policy DIRECTORY --contract FILE [options]"
    parser.epilog = "What the figures mean: docs/evaluate.md"
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="recordings: folders, .mcap or .db3 files; folders of "
        "LeRobot's data sets; @FILE for a list of them, one a line",
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
        "--unnamed-commands",
        action="store_true",
        help="recorded commands without names are in the contract's order",
    )
    what.add_argument(
        "--gripper",
        action="append",
        default=[],
        metavar="NAME",
        help="an element that opens and closes something, if its name does not say so",
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
    moments.add_arguments(parser.add_argument_group("any moment"))
    engines.add_arguments(parser.add_argument_group("many sources"))
    again.add_arguments(parser.add_argument_group("verified reproduction"))
    out = parser.add_argument_group("output")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the whole report there")
    out.add_argument(
        "--save-tracks", type=Path, metavar="FOLDER", help="write each run there, as .npz"
    )
    out.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit code 1 if it holds: mae>0.05, joint:elbow.max>0.2, policy:act.stale>3; "
        "may be given several times",
    )
    out.add_argument(
        "--survey",
        action="store_true",
        help="look for defects in topics that the contract does not read, too: decodes everything",
    )
    out.add_argument(
        "--progress", action="store_true", help="say how far it is, also where stderr is a file"
    )
    output.add_arguments(out)


def run(arguments: argparse.Namespace) -> int:
    """Evaluates and prints; 1 if a threshold fails or a source could not be evaluated.

    With ``--reproduce`` 1 if an action comes out otherwise than recorded, or cannot be computed.
    """
    from flashrt_ros.evaluate import terminal
    from flashrt_ros.evaluate.thresholds import Threshold

    thresholds = [Threshold.parse(text) for text in arguments.fail_if]
    arguments.sources = engines.sources_of(arguments.sources)
    options = options_of(arguments)
    labels = [candidate.label for candidate in options.candidates]
    for threshold in thresholds:
        threshold.check(labels)
    plan = moments.fork_of(arguments, labels)
    engine = engines.engine_of(arguments)
    again.check(arguments)
    output.check(arguments)
    if arguments.reproduce:
        return _reproduce(arguments, options)
    evaluate = _here if engine is None else functools.partial(_spread, *engine)
    found, results, fans = evaluate(arguments, options, plan, thresholds)
    if arguments.save_tracks is not None:
        _save(arguments.save_tracks, results)
    found["fans"] = [fan.as_json() for fan in fans]
    output.write(arguments, found, results, fans)
    if arguments.json is not None:
        _write(arguments.json, json.dumps(found, indent=1, allow_nan=False) + "\n")
    terminal.show(found)
    for fan in fans:
        print("\n".join(moments.words_of(fan)))
    idle = [run for run in found["runs"] if not run["stepped"]]
    for run in idle:
        print(f"FAILED: not one control step was made ({run['policy']}, {run['source']})")
    failed = [entry for entry in found["thresholds"] if not entry["passed"]]
    return 1 if failed or idle or any(source["error"] for source in found["sources"]) else 0


def _here(
    arguments: argparse.Namespace,
    options: Options,
    plan: ForkPlan | None,
    thresholds: list[Threshold],
) -> Evaluation:
    """One source after the other, in this process."""
    from flashrt_ros.evaluate import report
    from flashrt_ros.evaluate.evaluator import Evaluator
    from flashrt_ros.evaluate.fork import fork
    from flashrt_ros.evaluate.progress import progress_line

    line = progress_line if arguments.progress or sys.stderr.isatty() else None
    evaluator = Evaluator(options)
    try:
        _check_joints(evaluator, arguments.sources, thresholds)
        # Of many sources one that cannot be evaluated must not cost the others.
        go = evaluator.run if len(arguments.sources) == 1 else evaluator.try_
        results = [go(path, line) for path in arguments.sources]
        fans = []
        for number, result in enumerate(results):
            if plan is None or result.source.error:
                continue
            try:
                fans.append(fork(evaluator, result.source.name, plan))
            except FlashRTError as error:
                if len(results) == 1:
                    raise
                facts = dataclasses.replace(result.source, error=str(error))
                results[number] = dataclasses.replace(result, source=facts)
        found = report.make(options, evaluator.policies(), results, thresholds)
    finally:
        evaluator.close()
    return found, results, fans


def _spread(
    engine: Engine,
    folder: str,
    arguments: argparse.Namespace,
    options: Options,
    plan: ForkPlan | None,
    thresholds: list[Threshold],
) -> Evaluation:
    """All sources over an engine, by way of a work folder."""
    from flashrt_ros.evaluate import report
    from flashrt_ros.evaluate.desk import Job
    from flashrt_ros.evaluate.evaluator import Evaluator
    from flashrt_ros.evaluate.spread import spread

    evaluator = Evaluator(options)
    try:
        _check_joints(evaluator, arguments.sources, thresholds)
        policies = evaluator.policies()
    finally:
        evaluator.close()
    ids = {facts.label: (facts.state_id, facts.exec_id) for facts in policies}
    series = output.needs_tracks(arguments) or arguments.save_tracks is not None
    tell = engines.tell if arguments.progress or sys.stderr.isatty() else None
    job = Job(options, ids, folder, series)
    kept, fans = spread(job, arguments.sources, engine, plan, tell)
    if tell is not None:
        sys.stderr.write("\n")
    sources = [report.source_part(each.facts) for each in kept]
    runs = [run for each in kept for run in each.runs]
    found = report.join(options, policies, sources, runs, thresholds)
    return found, [each.result for each in kept], fans


def _check_joints(evaluator: Evaluator, sources: list[str], thresholds: list[Threshold]) -> None:
    """Before the run, which may take hours; a source that cannot be opened is told there."""
    asked = [each for each in thresholds if each.joint]
    names = evaluator.names_over(sources) if asked else []
    for threshold in asked if names else ():
        threshold.check_joint(names)


def _reproduce(arguments: argparse.Namespace, options: Options) -> int:
    found, reproductions = again.reproduce_all(arguments.sources, options, arguments)
    output.write(arguments, found, [])
    if arguments.json is not None:
        _write(arguments.json, json.dumps(found, indent=1, allow_nan=False) + "\n")
    for each in reproductions:
        print(f"{each.source}\n{each.text()}")
    return 0 if all(each.verdict.value == "reproduced" for each in reproductions) else 1


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from None


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
        episodes=None if arguments.episodes is None else EpisodeRule.parse(arguments.episodes),
        remap=remap,
        unnamed_commands=arguments.unnamed_commands,
        grippers=tuple(arguments.gripper),
        survey=arguments.survey,
        start_s=0.0 if arguments.begin is None else seconds("--from", arguments.begin),
        end_s=None if arguments.end is None else seconds("--to", arguments.end),
        seed=arguments.seed,
        task=arguments.task,
        device=arguments.device,
        numerics=arguments.numerics,
        trust=arguments.trust,
        pace=Pace(arguments.delay, arguments.plan_ahead),
        threads=arguments.threads,
        **moments.options_of(arguments),
    )


def _save(folder: Path, results: list[Result]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, result in enumerate(results):
            for track in result.tracks:
                track.save(folder / f"{number:05}.{track.policy}.npz")
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from None
