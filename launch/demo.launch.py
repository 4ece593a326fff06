"""Starts the demonstration's arm and policy, to look at or to run the experiment on.

    ros2 launch flashrt_ros demo.launch.py
    ros2 run flashrt_ros flashrt_ros demo --attach       # in another terminal: the experiment

``ros2 launch flashrt_ros demo.launch.py --show-args`` lists the arguments.
"""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

SHARE = Path(__file__).absolute().parents[1]


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "viewer",
                default_value="false",
                choices=["true", "false"],
                description="open MuJoCo's window on the arm",
            ),
            DeclareLaunchArgument(
                "policy",
                default_value="cue_reach",
                description="checkpoint directory or registered name",
            ),
            DeclareLaunchArgument(
                "contract",
                default_value=str(SHARE / "config" / "demo_arm.contract.yaml"),
                description="contract file",
            ),
            Node(
                package="flashrt_ros",
                executable="arm_node",
                name="arm",
                parameters=[{"viewer": LaunchConfiguration("viewer")}],
                output="screen",
            ),
            Node(
                package="flashrt_ros",
                executable="policy_node",
                name="policy",
                parameters=[
                    {
                        "policy": LaunchConfiguration("policy"),
                        "contract": LaunchConfiguration("contract"),
                        "autostart": True,
                    }
                ],
                output="screen",
            ),
        ]
    )
