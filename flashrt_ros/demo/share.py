"""Where the package's data files are, for the demonstrations."""

from flashrt_ros.ros.share import PACKAGE, shared

__all__ = ["PACKAGE", "shared"]
