"""What demo.launch.py starts: the arm and the policy with the demonstration's contract."""

from __future__ import annotations

import itertools
from pathlib import Path

import launch_double

ROOT = Path(__file__).resolve().parents[1]


def parameters(words: list[str]) -> dict[str, str]:
    given = [word for flag, word in itertools.pairwise(words) if flag == "-p"]
    return {name: value for name, _, value in (word.partition(":=") for word in given)}


def commands(**arguments: str) -> tuple[list[str], list[str]]:
    file = ROOT / "launch" / "demo.launch.py"
    arm, policy = launch_double.evaluate(file, Path("/prefix"), **arguments).commands
    return arm, policy


def test_it_starts_both_nodes_with_the_demonstrations_contract() -> None:
    arm, policy = commands()
    assert arm[0] == "/prefix/lib/flashrt_ros/arm_node"
    assert policy[0] == "/prefix/lib/flashrt_ros/policy_node"
    assert parameters(arm) == {"viewer": "false"}
    assert parameters(policy) == {
        "policy": "cue_reach",
        "contract": str(ROOT / "config" / "demo_arm.contract.yaml"),
        "autostart": "true",
    }


def test_arguments_reach_the_nodes() -> None:
    arm, policy = commands(viewer="true", policy="/w", contract="/c.yaml")
    assert parameters(arm) == {"viewer": "true"}
    assert parameters(policy)["policy"] == "/w"
    assert parameters(policy)["contract"] == "/c.yaml"
