"""``flashrt_ros check``: the conformance suite on one policy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``check``."""
    parser.add_argument(
        "policy", help="directory with config.json, registered name, or package.module:factory"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--steps",
        type=int,
        default=None,
        help="control steps of each comparison (suite's default)",
    )
    parser.add_argument(
        "--contract",
        type=Path,
        metavar="FILE",
        help="first: does this contract fit the policy, and what in it is worth a word",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let torch unpickle programs (.pt2) that cannot be read otherwise; runs any code",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Checks the policy, and the contract if one is named; 1 if a check failed."""
    import torch

    from flashrt_ros.policies.registry import load_policy
    from flashrt_ros.testing import check_policy

    # One thread: more of them contend for the cores of a small machine, and the report does not
    # depend on it.
    torch.set_num_threads(1)
    options = {} if arguments.steps is None else {"steps": arguments.steps}
    policy = load_policy(arguments.policy, arguments.trust)
    cautions: tuple[str, ...] = ()
    if arguments.contract is not None:
        from flashrt_ros.contract.contract import Contract

        contract = Contract.load(arguments.contract)
        contract.check(policy.ports(), policy.layout())
        cautions = contract.cautions()
        if not arguments.json:
            print(f"contract {contract.source} fits the policy")
            for words in cautions:
                print(f"  caution: {words}")
    report = check_policy(policy, device=arguments.device, **options)
    if arguments.json:
        content = {
            "policy": arguments.policy,
            "device": arguments.device,
            "steps": report.steps,
            "ok": report.ok,
            "passed": report.passed,
            "failures": report.failures,
            "skipped": report.skipped,
            "inert": dict(report.inert),
            "cautions": list(cautions),
        }
        print(json.dumps(content, indent=2))
    else:
        print(report)
    return 0 if report.ok else 1
