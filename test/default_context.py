"""rclpy's default context, for nodes that know no other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashrt_ros.process import Domain, private_environment


@contextlib.contextmanager
def default_context(folder: Path) -> Iterator[None]:
    """It is in a domain of its own, and shut down whatever happens: there is but one a process."""
    import rclpy

    domain = Domain()
    with contextlib.closing(domain), pytest.MonkeyPatch.context() as patch:
        environment = private_environment(domain.id, folder)
        for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_LOG_DIR"):
            patch.setenv(name, environment[name])
        rclpy.init()
        try:
            assert rclpy.get_default_context().get_domain_id() == domain.id
            yield
        finally:
            rclpy.try_shutdown()
