"""Configure of a running node: what does not fit is named, and the node is none the worse.

Pinned here because rclpy swallows what a transition raises, because a node that must be started
again after a typing error is a nuisance on a robot, and because a node that is configured for
every task of a day must not grow.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from flashrt_ros.msg import PolicyStatus
from lifecycle_msgs.msg import State, Transition
from rcl_interfaces.srv import DescribeParameters
from stage import Stage, arm_contract, write_contract

from flashrt_ros.errors import ErrorCode
from flashrt_ros.hardware.memory import available_bytes
from flashrt_ros.ros.parameters import DECLARATIONS

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.ros
POLICY = "puppet:Puppet"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("configure")) as stage:
        yield stage


def contract_with(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    contract = arm_contract()
    change(contract)
    return contract


def misspell(contract: dict[str, Any]) -> None:
    contract["actions"][0]["max_stepp"] = contract["actions"][0].pop("max_step")


def mistype(contract: dict[str, Any]) -> None:
    contract["observations"][0]["parts"][0]["type"] = "sensor_msgs/msg/JointStates"


def outgrow(contract: dict[str, Any]) -> None:
    contract["observations"][0]["parts"][1]["names"] = ["a", "b", "c"]


def rename_port(contract: dict[str, Any]) -> None:
    contract["observations"][0]["key"] = "observation.pose"


def forget_rate(contract: dict[str, Any]) -> None:
    del contract["control_rate_hz"]


def modernise(contract: dict[str, Any]) -> None:
    contract["version"] = 2


FILE = "arm.contract.yaml"
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "wrong key": (
        {"contract": contract_with(misspell)},
        (FILE, "actions[0]", "max_stepp", "expected one of topic", "max_step"),
    ),
    "wrong topic type": (
        {"contract": contract_with(mistype)},
        (FILE, "observations[0].parts[0].type", "JointStates", "sensor_msgs/msg/JointState"),
    ),
    "wrong size": (
        {"contract": contract_with(outgrow)},
        (FILE, "observation.state", "expected", "found"),
    ),
    "wrong port": (
        {"contract": contract_with(rename_port)},
        (FILE, "observation.pose", "observation.state"),
    ),
    "missing key": (
        {"contract": contract_with(forget_rate)},
        (FILE, "control_rate_hz", "expected"),
    ),
    "newer version": ({"contract": contract_with(modernise)}, (FILE, "version", "1", "2")),
    "no such policy": (
        {"policy": "puppets"},
        ("'puppets'", "cue_reach", "package.module:factory"),
    ),
    "no such factory": ({"policy": "puppet:Pupet"}, ("puppet:Pupet", "puppet has no 'Pupet'")),
    "no policy": ({"policy": ""}, ("'policy'", "expected a value, found none")),
    "no such device": ({"device": "tpu"}, ("tpu", "cpu")),
    "store too small": ({"store_bytes": 10}, ("store_bytes", "10")),
    "not for large states": (
        {"policy": "puppet:large", "store_bytes": 1000},
        ("store_bytes", "1000"),
    ),
}
if (available_bytes() or 2**40) < 2**40:
    BAD["store larger than the machine"] = (
        {"store_bytes": 2**40},
        ("1.0 TiB needed", " free", f"lower store_bytes from {2**40} to at most", "pool"),
    )
if not torch.cuda.is_available():
    BAD["no such GPU"] = ({"device": "cuda"}, ("device 'cuda'", "driver", "'cpu'"))


def refusal(stage: Stage, begun: int) -> str:
    """What the log says about the last configure."""
    text = stage.process.output()[begun:]
    assert "Traceback" not in text, text
    lines = re.findall(r"\[ERROR\].*configure failed: (.*(?:\n(?!\[).*)*)", text)
    assert len(lines) == 1, text
    return str(lines[0])


@pytest.mark.parametrize("case", BAD)
def test_configure_names_what_does_not_fit(stage: Stage, case: str) -> None:
    wrong, words = BAD[case]
    stage.prepare(**wrong)
    begun = len(stage.process.output())
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    assert stage.state() == State.PRIMARY_STATE_UNCONFIGURED
    message = refusal(stage, begun)
    for word in words:
        assert word in message
    assert stage.wait_status(PolicyStatus.UNCONFIGURED, message.splitlines()[0])
    assert stage.ask("snapshot").error_code == ErrorCode.NOT_CONFIGURED


def test_configure_works_after_all_that(stage: Stage) -> None:
    """In the same process, with nothing but the parameters put right."""
    stage.prepare()
    begun = len(stage.process.output())
    stage.transit(Transition.TRANSITION_CONFIGURE)
    assert stage.wait_status(PolicyStatus.INACTIVE).reason == "", "the failure is past"
    lines = re.findall(r"memory on cpu: .*", stage.process.output()[begun:])
    assert len(lines) == 1
    for word in ("needed", "free", "state", "inputs", "outputs", "pool", "named snapshots"):
        assert word in lines[0]
    stage.run()
    stage.wait_steps(3)


def test_a_gripper_command_needs_its_package(stage: Stage) -> None:
    if importlib.util.find_spec("control_msgs") is not None:
        pytest.skip("control_msgs is installed here")
    gripper = {"topic": "gripper", "type": "control_msgs/msg/GripperCommand", "field": "position"}
    contract = arm_contract(names=["a"], index=[0], limits={"a": [-3.0, 3.0]})
    contract["actions"].append({**gripper, "names": ["finger"], "index": [1], "unit": "rad"})
    contract["start"]["measured"]["names"], contract["start"]["index"] = ["a"], [0]
    stage.prepare(contract=contract)
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    status = stage.wait_status(PolicyStatus.UNCONFIGURED, "actions[1].type: message type")
    assert "install ros-$ROS_DISTRO-control-msgs" in status.reason


def test_ranges_are_there_when_asked_for_or_it_is_said_why_not(stage: Stage) -> None:
    stage.run(nvtx=True, tracing=True)
    stage.wait_steps(3)
    stage.do("snapshot", name="ranged", replace=True)
    for name in ("nvtx", "tracing"):
        said = re.search(rf"{name}: (ranges flashrt_ros.step|expected)", stage.process.output())
        assert said, name
    stage.prepare(nvtx=False, tracing=False)


def test_missing_contract_file_is_named(stage: Stage, tmp_path: Path) -> None:
    stage.prepare()
    assert stage.set(contract=str(tmp_path / "none.yaml")).successful
    begun = len(stage.process.output())
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    message = refusal(stage, begun)
    assert str(tmp_path / "none.yaml") in message
    path = write_contract(tmp_path, arm_contract(), "none")
    path.rename(tmp_path / "none.yaml")
    stage.transit(Transition.TRANSITION_CONFIGURE)


def test_parameters_of_configure_are_refused_while_configured(stage: Stage) -> None:
    stage.run()
    result = stage.set(policy="puppet:Planner")
    assert not result.successful
    assert "policy is read at configure" in result.reason
    assert "clean up" in result.reason
    assert not stage.set(start_timeout_s=-1.0).successful, "outside its range"
    assert stage.set(start_timeout_s=2.0).successful
    stage.wait_steps(3)


def test_every_parameter_is_described_and_in_the_file(stage: Stage) -> None:
    """Numbers have a range, in which the file's value lies; the file names every default."""
    file = yaml.safe_load((ROOT / "config" / "policy_node.yaml").read_text(encoding="utf-8"))
    listed = file["/**"]["ros__parameters"]
    service = stage.name("describe_parameters")
    stage.peer.client(DescribeParameters, service)
    stage.introduce()
    described = stage.peer.call(DescribeParameters, service, names=list(listed)).descriptors
    assert len(described) == len(listed), "the file has a parameter that is none of the node's"
    for descriptor in described:
        assert descriptor.description, descriptor.name
        value = listed[descriptor.name]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            (limits,) = descriptor.integer_range or descriptor.floating_point_range
            assert limits.from_value <= value <= limits.to_value
    assert [d.name for d in described if d.read_only] == ["autostart"]
    assert {d.name: d.default for d in DECLARATIONS} == listed


def test_parameter_that_is_none_is_said(tmp_path: Path) -> None:
    """A typing error in a file of parameters is easily overlooked: rclpy says nothing."""
    parameters = {"miss_limits_s": 0.1, "use_sim_time": False}
    with Stage(tmp_path, parameters=parameters) as stage:
        text = stage.process.output()
        assert "'miss_limits_s' is none of this node's" in text
        assert "did you mean 'miss_limit_s'?" in text
        assert text.count("has no effect") == 1, "control: use_sim_time is a parameter"


@pytest.mark.slow
def test_configure_and_clean_up_again_and_again_does_not_grow(stage: Stage) -> None:
    """Twenty times; the first ones fill caches that stay."""

    def cycle() -> None:
        stage.transit(Transition.TRANSITION_CONFIGURE)
        stage.transit(Transition.TRANSITION_ACTIVATE)
        stage.clear()
        stage.wait_running()
        stage.do("snapshot", name="x")
        stage.put_away()

    stage.prepare()
    for _ in range(5):
        cycle()
    threads, resident_bytes = stage.process.threads(), stage.process.resident_bytes()
    for _ in range(20):
        cycle()
    # A thread that was joined is still counted for a moment, in either figure.
    stage.peer.wait(
        lambda: stage.process.threads() <= threads,
        f"at most {threads} threads, as after five cycles",
        seen=stage.process.threads,
    )
    # Twenty stores that were left behind would be 20 MiB.
    growth_bytes = stage.process.resident_bytes() - resident_bytes
    assert growth_bytes < 6 << 20, f"{growth_bytes / 2**20:.1f} MiB more after twenty cycles"
