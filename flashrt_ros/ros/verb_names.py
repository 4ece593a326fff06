"""Names of the node's services and transitions, to be read before ROS is imported."""

from __future__ import annotations

from collections.abc import Mapping

VERBS: Mapping[str, str] = {
    "snapshot": "Snapshot",
    "restore": "Restore",
    "fork": "Fork",
    "rollback": "Rollback",
    "preview": "Preview",
    "reset_episode": "ResetEpisode",
    "list_capsules": "ListCapsules",
    "get_capsule": "GetCapsule",
    "drop_capsule": "DropCapsule",
    "save_capsule": "SaveCapsule",
    "load_capsule": "LoadCapsule",
    "move_capsule": "MoveCapsule",
    "pause": "Command",
    "resume": "Command",
    "stop": "Command",
    "clear_stop": "Command",
}
"""Service below the node's name to its type."""
TRANSITIONS: Mapping[str, str] = {
    "configure": "CONFIGURE",
    "activate": "ACTIVATE",
    "deactivate": "DEACTIVATE",
    "cleanup": "CLEANUP",
}
"""As ``ros2 lifecycle set`` has them, to the words of ``lifecycle_msgs``."""
