"""Fixtures and limits shared by all tests."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from flashrt_ros.process import free_domain, keep_local

# Times vary on a shared machine, so no example has a deadline, nor the making of examples.
# Examples are the same in every run, so that a failure is one of the change that was made; new
# ones come with `--hypothesis-profile new`.
for profile, same in (("same", True), ("new", False)):
    settings.register_profile(
        profile, derandomize=same, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("same")


def pytest_configure() -> None:
    # A shell's background jobs ignore Ctrl-C and so would every process that a test starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Two threads that contend for the same cores make small calls tens of times slower.
    torch.set_num_threads(1)
    # Whoever names no domain is in one of this session's own, on this machine only, and not in 0
    # with all the others who name none.
    keep_local(os.environ)
    os.environ["ROS_DOMAIN_ID"] = str(free_domain())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """The run of a node ends with SIGINT and SIGTERM ignored, as its process ends; tests go on."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        if handler is not None:
            signal.signal(number, handler)


@pytest.fixture
def no_link_left() -> Iterator[None]:
    """A tree without ROS begins with an empty blackboard and leaves none of its clients behind."""
    import py_trees

    from flashrt_ros.trees.link import _links

    yield
    py_trees.blackboard.Blackboard.clear()
    py_trees.blackboard.Blackboard.metadata.clear()
    left = dict(_links)
    _links.clear()
    assert left == {}, "a test left a link behind"
