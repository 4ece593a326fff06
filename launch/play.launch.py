"""Plays a recording into the live node: begins when the node is active, ends with the recording.

    ros2 launch flashrt_ros play.launch.py bag:=/path/to/bag policy:=... contract:=/path/to/FILE

Only what the contract reads is played, and nothing is commanded unless dry_run:=false.
``ros2 launch flashrt_ros play.launch.py --show-args`` lists the arguments.
"""

from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
)
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition

SHARE = Path(__file__).absolute().parents[1]
PROGRAM = SHARE.parents[1] / "lib" / "flashrt_ros" / "flashrt_ros"
SWITCH = ["true", "false"]


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", description="folder, .mcap or .db3 file"),
            DeclareLaunchArgument("policy", description="checkpoint directory or registered name"),
            DeclareLaunchArgument("contract", description="contract file"),
            DeclareLaunchArgument(
                "params_file",
                default_value=str(SHARE / "config" / "policy_node.yaml"),
                description="parameters of the node; the arguments overrule it",
            ),
            DeclareLaunchArgument("device", default_value="cpu", description="cpu, cuda, cuda:N"),
            DeclareLaunchArgument(
                "dry_run",
                default_value="true",
                choices=SWITCH,
                description="false: what the policy does is commanded, also to a real robot",
            ),
            DeclareLaunchArgument(
                "rate", default_value="1.0", description="recorded seconds per second"
            ),
            DeclareLaunchArgument(
                "loop", default_value="false", choices=SWITCH, description="begin again at the end"
            ),
            DeclareLaunchArgument(
                "clock",
                default_value="false",
                choices=SWITCH,
                description="play the recorded time too, and give the node simulated time",
            ),
            OpaqueFunction(function=_actions),
        ]
    )


def _actions(context: LaunchContext) -> list:
    def argument(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    def holds(name: str) -> bool:
        return argument(name) == "true"

    node = LifecycleNode(
        package="flashrt_ros",
        executable="policy_node",
        name="policy",
        namespace="",
        parameters=[
            argument("params_file"),
            {
                "policy": argument("policy"),
                "contract": argument("contract"),
                "device": argument("device"),
                "dry_run": holds("dry_run"),
                "use_sim_time": holds("clock"),
                "autostart": True,
            },
        ],
        output="screen",
    )
    # Not a node's command line: launch_ros would add --ros-args.
    words = [str(PROGRAM), "play", argument("bag"), "--contract", argument("contract")]
    words += ["--rate", argument("rate")]
    words += [f"--{name}" for name in ("loop", "clock") if holds(name)]
    player = ExecuteProcess(
        cmd=words, name="play", output="screen", on_exit=Shutdown(reason="the recording has ended")
    )
    begin = OnStateTransition(target_lifecycle_node=node, goal_state="active", entities=[player])
    # The handler first: no transition may be missed.
    return [RegisterEventHandler(begin), node]
