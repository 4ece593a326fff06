"""``flashrt_ros check``: the conformance suite on one policy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashrt_ros.policies.fast.deviation import Deviation
    from flashrt_ros.runtime.policy import Policy
    from flashrt_ros.testing.progress import Say

OBSERVATIONS = 1000
"""With so many a fast policy is compared with the exact one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``check``."""
    parser.add_argument(
        "policy", help="directory with config.json, registered name, or package.module:factory"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--numerics",
        default="exact",
        help="exact, or fast: float16 and fused operations (LeRobot checkpoints on a GPU)",
    )
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

    from flashrt_ros.policies.fast.deviation import LIMIT
    from flashrt_ros.policies.registry import load_policy
    from flashrt_ros.testing import check_policy
    from flashrt_ros.testing.progress import on_terminal

    # One thread: more of them contend for the cores of a small machine, and the report does not
    # depend on it.
    torch.set_num_threads(1)
    options = {} if arguments.steps is None else {"steps": arguments.steps}
    say = on_terminal()
    policy = load_policy(arguments.policy, arguments.trust, arguments.numerics)
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
    report = check_policy(policy, device=arguments.device, say=say, **options)
    strayed = _strayed(policy, say) if report.ok else None
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
            "deviation": None if strayed is None else strayed.share,
            "cautions": list(cautions),
        }
        print(json.dumps(content, indent=2))
    else:
        print(report)
        if strayed is not None:
            print(f"{strayed.words}; at most {100 * LIMIT:g} % is allowed")
    return 0 if report.ok and (strayed is None or strayed.share <= LIMIT) else 1


def _strayed(policy: Policy, say: Say) -> Deviation | None:
    """How far a fast policy strays from the exact one; None for an exact one."""
    from flashrt_ros.policies.chunked import ChunkedPolicy

    if not isinstance(policy, ChunkedPolicy) or policy.numerics == "exact":
        return None
    device = next(policy.module().parameters()).device
    say(f"comparing with exact actions: {OBSERVATIONS} observations")
    found = policy.compare(OBSERVATIONS, device)
    say("")
    return found
