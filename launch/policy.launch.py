"""Starts the node ``policy``: parameters from a file, the common ones also as arguments.

    ros2 launch flashrt_ros policy.launch.py policy:=cue_reach contract:=/path/to/contract.yaml

``ros2 launch flashrt_ros policy.launch.py --show-args`` lists the arguments.
"""

import os
from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    SetEnvironmentVariable,
)
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

SHARE = Path(__file__).absolute().parents[1]
SWITCH = ["true", "false"]
PROFILES = {"": None, "thor": SHARE / "config" / "thor.yaml"}

# The variable that names the Fast DDS profile, by ROS 2 distribution: renamed after Jazzy, which
# reads the old name only; later ones warn about it.
OLD_PROFILE_VARIABLE = "FASTRTPS_DEFAULT_PROFILES_FILE"
PROFILE_VARIABLE = "FASTDDS_DEFAULT_PROFILES_FILE"
READS_OLD_PROFILE_VARIABLE = ("", "humble", "iron", "jazzy")


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "params_file",
                default_value=str(SHARE / "config" / "policy_node.yaml"),
                description="parameters of the node; profile and arguments below overrule it",
            ),
            DeclareLaunchArgument(
                "profile",
                default_value="",
                choices=list(PROFILES),
                description="parameters for a machine, over those of params_file",
            ),
            DeclareLaunchArgument(
                "namespace", default_value="", description="namespace of the node and its topics"
            ),
            DeclareLaunchArgument(
                "policy",
                default_value="",
                description="checkpoint directory or registered name; empty: as in params_file",
            ),
            DeclareLaunchArgument(
                "contract",
                default_value="",
                description="contract file; empty: as in params_file",
            ),
            DeclareLaunchArgument(
                "device",
                default_value="",
                description="cpu, cuda or cuda:N; empty: as in params_file",
            ),
            DeclareLaunchArgument(
                "numerics",
                default_value="",
                choices=["", "exact", "fast"],
                description="how the policy calculates; empty: as in params_file",
            ),
            DeclareLaunchArgument(
                "dry_run",
                default_value="",
                choices=["", *SWITCH],
                description="true: everything but commands; empty: as in params_file",
            ),
            DeclareLaunchArgument(
                "autostart",
                default_value="true",
                choices=SWITCH,
                description="configure and activate at once; false: a lifecycle manager does",
            ),
            DeclareLaunchArgument(
                "record",
                default_value="false",
                choices=SWITCH,
                description="record what a verified evaluation needs; needs the argument contract",
            ),
            DeclareLaunchArgument(
                "record_to",
                default_value="",
                description="folder of the recording; empty: one with the time in its name",
            ),
            DeclareLaunchArgument(
                "log_level",
                default_value="info",
                choices=["debug", "info", "warn", "error"],
                description="least level that the node logs",
            ),
            DeclareLaunchArgument(
                "large_messages",
                default_value="true",
                choices=SWITCH,
                description="give Fast DDS room for camera images, unless it has a profile",
            ),
            OpaqueFunction(function=_actions),
        ]
    )


def _actions(context: LaunchContext) -> list:
    def argument(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    # Only what was given, so that an argument left out does not overrule the file.
    given: dict[str, str | bool] = {"autostart": argument("autostart") == "true"}
    for name in ("policy", "contract", "device", "numerics"):
        if argument(name):
            given[name] = argument(name)
    if argument("dry_run"):
        given["dry_run"] = argument("dry_run") == "true"

    actions = []
    if argument("large_messages") == "true":
        actions += _profile()
    profile = PROFILES[argument("profile")]
    actions.append(
        Node(
            package="flashrt_ros",
            executable="policy_node",
            name="policy",
            namespace=argument("namespace"),
            parameters=[argument("params_file"), *([str(profile)] if profile else []), given],
            arguments=["--ros-args", "--log-level", argument("log_level")],
            output="screen",
        )
    )
    if argument("record") == "true":
        actions.append(
            _recorder(argument("contract"), argument("namespace"), argument("record_to"))
        )
    return actions


def _recorder(contract: str, namespace: str, folder: str) -> ExecuteProcess:
    if not contract:
        raise RuntimeError(
            "record:=true: expected the argument contract:=FILE, which says what is to be "
            "recorded, found none"
        )
    # Takes a second, and only a recording needs it.
    from flashrt_ros.contract import Contract
    from flashrt_ros.contract.recording import recorded_topics
    from flashrt_ros.ros.parameters import contract_path

    topics = recorded_topics(Contract.load(contract_path(contract)), namespace)
    to = ["-o", folder] if folder else []
    command = ["ros2", "bag", "record", "-s", "mcap", *to, "--topics", *topics]
    return ExecuteProcess(cmd=command, output="screen")


def _profile() -> list:
    if os.environ.get(PROFILE_VARIABLE) or os.environ.get(OLD_PROFILE_VARIABLE):
        return []
    profile = str(SHARE / "config" / "fastdds_large_messages.xml")
    names = [PROFILE_VARIABLE]
    if os.environ.get("ROS_DISTRO", "") in READS_OLD_PROFILE_VARIABLE:
        names.append(OLD_PROFILE_VARIABLE)
    return [SetEnvironmentVariable(name, profile) for name in names]
