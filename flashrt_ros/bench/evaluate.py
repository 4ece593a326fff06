"""Evaluation of recordings: against real time, and the memory that a large one takes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flashrt_ros.bench import recorded_arm
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Result, make_row
from flashrt_ros.errors import InternalError

SECONDS = 200.0
FACTOR = 50.0
MEMORY_TARGET = "< 500 MB"
CHILD = """
import json, resource, sys
import torch
from flashrt_ros.evaluate import figures, report
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options

def resident_kb():
    with open("/proc/self/status") as status:
        words = dict(line.split(":", 1) for line in status)
    return int(words["VmRSS"].split()[0])

torch.set_num_threads(1)
policy, contract, bag = sys.argv[1:]
imported_kb = resident_kb()
evaluator = Evaluator(Options((Candidate("policy", policy),), contract))
ready_kb = resident_kb()
result = evaluator.run(bag)
found = report.make(evaluator.options, evaluator.policies(), [result])
peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"imported_kb": imported_kb, "ready_kb": ready_kb, "peak_kb": peak_kb,
                  "stepped": found["runs"][0]["stepped"], "steps": found["runs"][0]["steps"]}))
"""


def run(options: Options) -> Result:
    """Writes two recordings and evaluates them; they are deleted at the end."""
    size_gb = 0.05 if options.quick else options.size_gb
    result = Result("evaluate", "recordings of an arm, evaluated; policies with random weights")
    with tempfile.TemporaryDirectory(prefix="flashrt_ros_evaluate_") as name:
        folder = Path(name)
        _speed(options, folder, result)
        _memory(options, folder, size_gb, result)
    return result


def _speed(options: Options, folder: Path, result: Result) -> None:
    """Real time, by the side of reading alone."""
    from flashrt_ros.bag.reader import BagReader
    from flashrt_ros.evaluate.evaluator import Candidate, Evaluator
    from flashrt_ros.evaluate.evaluator import Options as Evaluation

    seconds = SECONDS / 20 if options.quick else SECONDS
    bag = folder / "numbers.mcap"
    options.say(f"writing {seconds:g} s of numbers")
    count = recorded_arm.write(bag, seconds)
    contract = recorded_arm.write_contract(folder / "numbers.yaml", cameras=False)
    policy = Candidate("policy", "flashrt_ros.bench.policies:light")
    evaluator = Evaluator(Evaluation((policy,), str(contract), device=options.device))
    reads, runs, busy = [], [], []
    for _ in range(options.rounds(7)):
        options.say(f"evaluating {seconds:g} s of numbers")
        begun_ns = time.perf_counter_ns()
        with BagReader(bag) as reader:
            for _ in reader.messages():
                pass
        reads.append((time.perf_counter_ns() - begun_ns) / 1e6)
        begun_ns, busy_ns = time.perf_counter_ns(), time.process_time_ns()
        track = evaluator.run(bag).tracks[0]
        runs.append((time.perf_counter_ns() - begun_ns) / 1e6)
        busy.append((time.process_time_ns() - busy_ns) / 1e6)
    evaluator.close()
    options.say("")
    floor = make_row(f"read {count} messages of 4 topics", reads, "ms")
    target = f"< {seconds * 1e3 / FACTOR:.0f} ms"
    result.rows += [
        floor,
        make_row(f"evaluate {seconds:g} s of them", runs, "ms", floor=floor, target=target),
        make_row("the same, on a processor", busy, "ms", target=target),
    ]
    wall, alone = (seconds * 1e3 / row.p50 for row in result.rows[-2:])
    result.notes.append(
        f"{wall:.0f} times real time, {alone:.0f} of the processor's time ({seconds:g} s, "
        f"{track.steps} control steps, GRU); to be reached: {FACTOR:.0f}"
    )


def _memory(options: Options, folder: Path, size_gb: float, result: Result) -> None:
    """In a process of its own, whose peak is of nothing else."""
    bag = folder / "pictures.mcap"
    options.say(f"writing {size_gb:g} GB of pictures")
    recorded_arm.write(bag, recorded_arm.seconds_of(size_gb * 1e9), cameras=True)
    contract = recorded_arm.write_contract(folder / "pictures.yaml", cameras=True)
    options.say(f"evaluating {size_gb:g} GB of pictures")
    begun_ns = time.perf_counter_ns()
    words = [sys.executable, "-c", CHILD, "flashrt_ros.bench.camera_policy:make"]
    done = subprocess.run(
        [*words, str(contract), str(bag)], capture_output=True, text=True, check=False
    )
    taken_s = (time.perf_counter_ns() - begun_ns) / 1e9
    options.say("")
    if done.returncode:
        raise InternalError(f"evaluation in a process of its own failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    size_bytes = bag.stat().st_size
    for case, kb, target in (
        ("policy and contract, above the imports", found["ready_kb"], ""),
        (f"evaluating {size_gb:g} GB, above the imports", found["peak_kb"], MEMORY_TARGET),
    ):
        above_mb = (kb - found["imported_kb"]) / 1e3
        result.rows.append(make_row(case, [above_mb], "MB", target=target))
    result.notes.append(
        f"{size_bytes / 1e9:.2f} GB with pictures in {taken_s:.1f} s: {found['stepped']} of "
        f"{found['steps']} control steps; the imports take {found['imported_kb'] / 1e3:.0f} MB"
    )
