"""Many recordings: what one costs with each engine, what is kept, and what 10^5 would take."""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from pathlib import Path

from flashrt_ros.bench import recorded_arm
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Result, make_row
from flashrt_ros.errors import InternalError

COUNT, SECONDS = 100, 20.0
MANY = 100_000
POLICY = "flashrt_ros.bench.policies:light"


def run(options: Options) -> Result:
    """Writes recordings and evaluates them with each engine; they are deleted at the end."""
    count = 6 if options.quick else COUNT
    seconds = SECONDS / 10 if options.quick else SECONDS
    result = Result(
        "many", f"{count} recordings of {seconds:g} s, four topics of numbers; GRU, random weights"
    )
    with tempfile.TemporaryDirectory(prefix="flashrt_ros_many_") as name:
        folder = Path(name)
        paths = []
        for number in range(count):
            options.say(f"writing recording {number + 1} of {count}")
            path = folder / f"{number:03}.mcap"
            recorded_arm.write(path, seconds + number * 0.02)
            paths.append(str(path))
        contract = recorded_arm.write_contract(folder / "contract.yaml", cameras=False)
        _measure(options, result, folder, paths, str(contract))
    return result


def _measure(
    options: Options, result: Result, folder: Path, paths: list[str], contract: str
) -> None:
    from flashrt_ros.evaluate.desk import Job
    from flashrt_ros.evaluate.evaluator import Candidate, Evaluator
    from flashrt_ros.evaluate.evaluator import Options as Evaluation
    from flashrt_ros.evaluate.ray_engine import check
    from flashrt_ros.evaluate.spread import Engine, spread
    from flashrt_ros.evaluate.track import digest_of_all

    what = Evaluation((Candidate("policy", POLICY),), contract, device=options.device, threads=1)
    evaluator = Evaluator(what)
    ids = {facts.label: (facts.state_id, facts.exec_id) for facts in evaluator.policies()}
    evaluator.close()
    cores = len(os.sched_getaffinity(0))
    engines = [("serial", Engine()), (f"{cores} processes", Engine("processes", cores))]
    try:
        check()
        engines.append((f"{cores} actors of Ray", Engine("ray", cores)))
    except Exception:
        result.notes.append("Ray is not installed: not measured")
    digests, floor = set(), None
    cpu_ms: list[float] = []
    for name, engine in engines:
        options.say(f"{name}: {len(paths)} recordings")
        work = folder / name.replace(" ", "-")
        begun_s, cpu_s = time.perf_counter(), _cpu_s()
        kept, _ = spread(Job(what, ids, str(work)), paths, engine)
        taken_s, used_s = time.perf_counter() - begun_s, _cpu_s() - cpu_s
        if failed := [each.facts.error for each in kept if each.facts.error]:
            raise InternalError(f"{name}: {failed[0]}")
        digests.add(digest_of_all([run["digest"] for each in kept for run in each.runs]))
        begun_s, cpu_s = time.perf_counter(), _cpu_s()
        spread(Job(what, ids, str(work)), paths, engine)
        start_s, start_cpu_s = time.perf_counter() - begun_s, _cpu_s() - cpu_s
        each_ms = (taken_s - start_s) * 1e3 / len(paths)
        row = make_row(f"{name}: a recording", [each_ms], "ms", floor=floor)
        result.rows.append(row)
        if engine.name != "ray":  # whose processes are not our children
            each_ms = (used_s - start_cpu_s) * 1e3 / len(paths)
            cpu_ms.append(each_ms)
            result.rows.append(make_row(f"{name}: a recording, time of a core", [each_ms], "ms"))
        case = f"{name}: beginning, and finding all of them"
        result.rows.append(make_row(case, [start_s * 1e3], "ms"))
        floor = floor or row
    if len(digests) != 1:
        raise InternalError(f"the engines' hashes differ: {sorted(digests)}")
    options.say("")
    figures = sum(len(json.dumps(each.runs)) for each in kept) / len(kept)
    series = folder / "series"
    spread(Job(what, ids, str(series), series=True), paths[:3], Engine())
    result.notes.append("all engines gave the same hash")
    result.notes += _plan(cpu_ms[0], figures, _size(work) / len(paths), _size(series) / 3)


def _plan(cpu_ms: float, figures: float, kept: float, series: float) -> list[str]:
    """What 10^5 recordings of this kind would take, from the time of a core that one took."""
    hours = MANY * cpu_ms / 3.6e6
    return [
        f"a recording: {figures / 1e3:.1f} kB of figures in the report, {kept / 1e3:.1f} kB in "
        f"the work folder, {series / 1e3:.0f} kB with series",
        f"{MANY} of them: {hours:.1f} hours of a core, so {hours / 64:.2f} h on 64 like this one; "
        f"report {MANY * figures / 1e9:.2f} GB, work folder {MANY * kept / 1e9:.2f} GB, with "
        f"series {MANY * series / 1e9:.0f} GB",
    ]


def _cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _size(folder: Path) -> float:
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
