"""``flashrt_ros doctor``: facts, judgement, report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from flashrt_ros.doctor.facts import Facts
from flashrt_ros.doctor.machine_rules import judge_machine, judge_package
from flashrt_ros.doctor.ros_rules import judge_ros
from flashrt_ros.hardware.finding import Finding, Level
from flashrt_ros.hardware.gpu_rules import judge_gpu


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``doctor``."""
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Reads this machine and prints the findings; 1 if one of them is a failure."""
    from flashrt_ros.doctor.gather import gather

    facts = gather()
    findings = judge(facts)
    if arguments.json:
        rows = [{**asdict(finding), "level": finding.level.value} for finding in findings]
        print(json.dumps({"facts": asdict(facts), "findings": rows}, indent=2))
    else:
        print(report(findings))
    return 1 if any(finding.level is Level.FAIL for finding in findings) else 0


def judge(facts: Facts) -> list[Finding]:
    """Returns all findings; depends on nothing but the facts."""
    return [
        *judge_machine(facts.machine),
        *judge_gpu(facts.driver, facts.torch, facts.machine.architecture),
        *judge_ros(facts.ros, facts.machine),
        *judge_package(facts.package),
    ]


def report(findings: Sequence[Finding]) -> str:
    """Returns the report: one line a finding, its cure beneath, a count at the end."""
    lines = []
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = f"{finding.level.value:<4}"
        lines.append(f"{mark}  {finding.area:<7}  {finding.subject:<{width}}  {finding.text}")
        if finding.cure:
            lines.append(f"{'':<{4 + 2 + 7 + 2 + width}}  -> {finding.cure}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    lines.append(f"{counts[Level.OK]} ok, {counts[Level.WARN]} warn, {counts[Level.FAIL]} fail")
    return "\n".join(lines)
