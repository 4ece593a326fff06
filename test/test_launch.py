"""Pins what the launch files start: command lines, parameters, environment; and that it comes up.

On a robot a launch file is the only thing typed, and one that fails is found out there. The real
files are evaluated by stand-ins (launch_double.py) and the resulting command line is started.
Where the real launch_ros is installed, `ros2 launch` starts them instead.
"""

import itertools
import os
import shutil
import sys
import time
from pathlib import Path

import launch_double
import pytest
import yaml

from flashrt_ros.contract import Contract
from flashrt_ros.contract.recording import recorded_topics
from flashrt_ros.ros.parameters import DECLARATIONS

ROOT = Path(__file__).resolve().parents[1]
POLICY = ROOT / "launch" / "policy.launch.py"


@pytest.fixture(autouse=True)
def _no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE", "ROS_DISTRO"):
        monkeypatch.delenv(name, raising=False)


def policy(**arguments: str) -> launch_double.Launched:
    return launch_double.evaluate(POLICY, Path("/prefix"), **arguments)


def parameters(command: list[str]) -> list[str]:
    return [word for flag, word in itertools.pairwise(command) if flag == "-p"]


def test_without_arguments_the_file_decides() -> None:
    """Nothing overrules the parameter file but autostart."""
    launched = policy()
    (command,) = launched.commands
    assert command[:2] == ["/prefix/lib/flashrt_ros/policy_node", "--ros-args"]
    assert "__node:=policy" in command
    assert parameters(command) == ["autostart:=true"]
    file = Path(command[command.index("--params-file") + 1])
    assert file == ROOT / "config" / "policy_node.yaml"
    assert not [word for word in command if word.startswith("__ns:=")]


def test_arguments_overrule_the_file() -> None:
    (command,) = policy(
        autostart="false",
        contract="/tmp/with space.yaml",
        device="cuda:1",
        numerics="fast",
        dry_run="true",
        namespace="/left/",
        params_file="/tmp/p.yaml",
        policy="cue_reach",
    ).commands
    assert parameters(command) == [
        "autostart:=false",
        "policy:='cue_reach'",
        "contract:='/tmp/with space.yaml'",
        "device:='cuda:1'",
        "numerics:='fast'",
        "dry_run:=true",
    ]
    assert "__ns:=/left" in command
    # The last one wins in ROS 2, so the file must stand first.
    assert command.index("--params-file") < command.index("-p")


DEMO = ROOT / "config" / "demo_arm.contract.yaml"


def test_recording_has_exactly_what_an_evaluation_reads() -> None:
    assert len(policy().commands) == 1
    recorder = policy(
        record="true", contract=str(DEMO), namespace="left", record_to="/b"
    ).commands[1]
    assert recorder[: recorder.index("--topics")] == [
        *("ros2", "bag", "record", "-s", "mcap", "-o", "/b")
    ]
    contract = Contract.load(DEMO)
    topics = recorder[recorder.index("--topics") + 1 :]
    assert topics == recorded_topics(contract, "/left/")
    own = {"policy_step", "capsule_event", "provenance", "status", "action_chunk"}
    named = {topic for topic, *_ in contract.topics()} | {o.topic for o in contract.actions}
    resolved = {t if t.startswith("/") else f"/left/{t}" for t in named}
    assert set(topics) == resolved | {f"/left/policy/{name}" for name in own} | {
        "/left/policy/shadow/joint_command",
        "/clock",
        "/diagnostics",
    }
    assert recorded_topics(contract)[-1].startswith("/"), "names in the root namespace"


def test_a_recording_without_a_contract_is_refused() -> None:
    with pytest.raises(RuntimeError, match="expected the argument contract:=FILE"):
        policy(record="true")


def test_the_profile_of_a_machine_stands_between_file_and_arguments() -> None:
    (command,) = policy(profile="thor", device="cpu").commands
    files = [word for flag, word in itertools.pairwise(command) if flag == "--params-file"]
    assert files == [str(ROOT / "config" / name) for name in ("policy_node.yaml", "thor.yaml")]
    assert parameters(command)[-1] == "device:='cpu'"
    profile = yaml.safe_load((ROOT / "config" / "thor.yaml").read_text())["/**"]["ros__parameters"]
    known = {declaration.name: declaration for declaration in DECLARATIONS}
    for name, value in profile.items():
        assert type(value) is type(known[name].default), name
        assert known[name].most == 0 or known[name].least <= value <= known[name].most


def test_a_recording_is_played_once_the_node_is_active_and_nothing_is_commanded() -> None:
    file = ROOT / "launch" / "play.launch.py"
    launched = launch_double.evaluate(
        file, Path("/prefix"), bag="/b", policy="hold3", contract=str(DEMO), loop="true"
    )
    (node,) = launched.commands
    assert {"dry_run:=true", "autostart:=true", "use_sim_time:=false"} <= set(parameters(node))
    ((program, *words),) = launched.later["active"]
    assert program.endswith("lib/flashrt_ros/flashrt_ros")
    assert words == ["play", "/b", "--contract", str(DEMO), "--rate", "1.0", "--loop"]
    with pytest.raises(ValueError, match="'bag' was not given"):
        launch_double.evaluate(file, Path("/prefix"))


@pytest.mark.parametrize(
    ("distro", "names"),
    [
        ("jazzy", {"FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE"}),
        ("kilted", {"FASTDDS_DEFAULT_PROFILES_FILE"}),
    ],
)
def test_fast_dds_profile_is_named_as_each_distribution_reads_it(
    distro: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DISTRO", distro)
    environment = policy().environment
    assert set(environment) == names
    assert all(Path(path).is_file() for path in environment.values())
    assert policy(large_messages="false").environment == {}


def test_a_profile_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTRTPS_DEFAULT_PROFILES_FILE", "/etc/mine.xml")
    assert policy().environment == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"autostart": "yes"}, "autostart:=yes: expected one of"),
        ({"dryrun": "true"}, r"\['dryrun'\] are not declared"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(**arguments)


def installed_prefix() -> Path:
    """Where flashrt_ros is installed, found as ament would, else beside this Python."""
    listed = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    for prefix in [*filter(None, listed), sys.prefix]:
        if (Path(prefix) / "lib" / "flashrt_ros" / "policy_node").is_file():
            return Path(prefix)
    pytest.skip("flashrt_ros is not installed here")


@pytest.mark.ros
@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True], ids=["double", "ros2 launch"])
def test_launch_brings_the_node_up(real: bool, tmp_path: Path) -> None:
    """Namespaced, active by itself, with the parameters that the arguments named."""
    pytest.importorskip("rclpy")
    from lifecycle_msgs.srv import GetState
    from rcl_interfaces.srv import GetParameters
    from running_node import READY_S, running

    prefix = installed_prefix()
    file = prefix / "share" / "flashrt_ros" / "launch" / "policy.launch.py"
    arguments = {
        "contract": str(prefix / "share" / "flashrt_ros" / "config" / "demo_arm.contract.yaml"),
        "dry_run": "true",
        "namespace": "left",
        "policy": "cue_reach",
    }
    if real:
        if not launch_double.available() or shutil.which("ros2") is None:
            pytest.skip("launch_ros and ros2cli are not installed")
        command = ["ros2", "launch", str(file)]
        command += [f"{name}:={value}" for name, value in arguments.items()]
        environment: dict[str, str] = {}
    else:
        launched = launch_double.evaluate(file, prefix, **arguments)
        (command,) = launched.commands
        environment = launched.environment
    with running(command, int(os.environ["ROS_DOMAIN_ID"]), str(tmp_path), environment) as (
        process,
        asker,
    ):
        label = ""
        end_s = time.monotonic() + READY_S
        while label != "active":
            assert time.monotonic() < end_s, f"still {label} after {READY_S} s"
            request = GetState.Request()
            state = asker.call(GetState, "/left/policy/get_state", request, process)
            label = state.current_state.label
        request = GetParameters.Request(names=["dry_run", "policy"])
        answer = asker.call(GetParameters, "/left/policy/get_parameters", request, process)
        assert answer.values[0].bool_value is True
        assert answer.values[1].string_value == "cue_reach"
