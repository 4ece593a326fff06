"""Where the package's data files are: in the source tree, a sourced workspace or the venv."""

from __future__ import annotations

import sys
from pathlib import Path

from flashrt_ros.errors import NotFoundError

PACKAGE = "flashrt_ros"


def shared(name: str) -> Path:
    """A file or folder of the package's share directory.

    Args:
        name: Relative path, such as ``config/demo_arm.contract.yaml`` or ``msg``.

    Raises:
        NotFoundError: In none of the places; lists them.
    """
    places = [Path(__file__).parents[2]]
    try:
        from ament_index_python.packages import get_package_share_directory

        places.append(Path(get_package_share_directory(PACKAGE)))
    except (ImportError, LookupError, OSError):
        # No ROS workspace is sourced: the venv is left.
        pass
    places.append(Path(sys.prefix) / "share" / PACKAGE)
    for place in places:
        if (place / name).exists():
            return place / name
    raise NotFoundError(
        f"{name} of {PACKAGE}: expected in one of {[str(place) for place in places]}, found in "
        "none; install the package or source its workspace"
    )
