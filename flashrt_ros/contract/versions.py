"""Versions of what makes observations of messages: they can change bits as weights can."""

from __future__ import annotations

import platform
from importlib import metadata

import flashrt_ros

LIBRARIES = ("numpy", "pillow", "rosbags", "torch", "xxhash")


def versions() -> dict[str, str]:
    """Name to version: this package, Python, and those of the libraries that are there."""
    found = {"flashrt_ros": flashrt_ros.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
