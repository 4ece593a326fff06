"""Behaviours for py_trees that snapshot, restore, fork and choose the state of a policy node.

They work in any tree whose ``setup`` hands out a ROS node, as those of ``py_trees_ros`` do:

    root = RetryFromCapsule("pick", pick, attempts=3)
    py_trees.trees.setup(root, node=node)

Words that return everywhere: ``policy`` is the name of the policy node, absolute or relative to
the namespace of the tree's node; ``timeout_s`` is counted on the steady clock from the first tick;
an argument may be a value or a ``Key`` of the blackboard; an argument ``..._key`` names the key
that a result is written to. A tick never waits, and never raises for what a service or a key says.
"""

try:
    import py_trees as _py_trees  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "flashrt_ros.trees needs py_trees, which is not installed: pip install "
        "'flashrt_ros[trees]', or the package ros-$ROS_DISTRO-py-trees",
        name=_error.name,
    ) from _error

from flashrt_ros.trees.branches import TryBranches
from flashrt_ros.trees.choice import ChooseByPreview, rows
from flashrt_ros.trees.episode import EpisodeReset
from flashrt_ros.trees.housekeeping import (
    DropCapsule,
    GetCapsule,
    ListCapsules,
    LoadCapsule,
    MoveCapsule,
    SaveCapsule,
)
from flashrt_ros.trees.key import Key
from flashrt_ros.trees.link import PolicyLink
from flashrt_ros.trees.motion import ClearStop, Pause, Resume, Stop
from flashrt_ros.trees.picture import text_tree, verb_table, write_svg
from flashrt_ros.trees.retry import RetryFromCapsule
from flashrt_ros.trees.runner import tick_through
from flashrt_ros.trees.service import ServiceBehaviour
from flashrt_ros.trees.verb import Fork, Preview, ResetEpisode, Restore, Rollback, Snapshot
from flashrt_ros.trees.watch import WaitUntilFresh

__all__ = [
    "ChooseByPreview",
    "ClearStop",
    "DropCapsule",
    "EpisodeReset",
    "Fork",
    "GetCapsule",
    "Key",
    "ListCapsules",
    "LoadCapsule",
    "MoveCapsule",
    "Pause",
    "PolicyLink",
    "Preview",
    "ResetEpisode",
    "Restore",
    "Resume",
    "RetryFromCapsule",
    "Rollback",
    "SaveCapsule",
    "ServiceBehaviour",
    "Snapshot",
    "Stop",
    "TryBranches",
    "WaitUntilFresh",
    "rows",
    "text_tree",
    "tick_through",
    "verb_table",
    "write_svg",
]
