"""Nothing is collected while a capture is under way, and everything afterwards."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from flashrt_ros.runtime.device.collector import collector_off


class Ring:
    """Garbage that only the collector finds, and that says so."""

    def __init__(self, freed: list[int]) -> None:
        self._self, self._freed = self, freed

    def __del__(self) -> None:
        self._freed.append(1)


def allocate() -> None:
    """Enough objects for a collection of the youngest, if one is ever made."""
    kept = [[index] for index in range(100_000)]
    assert kept


@pytest.fixture(autouse=True)
def _collector_on() -> Iterator[None]:
    gc.collect()
    assert gc.isenabled()
    yield
    gc.enable()


def test_garbage_waits_for_the_end() -> None:
    freed: list[int] = []
    with collector_off():
        Ring(freed)
        allocate()
        assert not freed
    assert gc.isenabled()
    allocate()
    assert freed, "control: the same allocations free it with the collector on"


def test_it_stays_off_until_the_last_of_several_threads_is_out() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_off():
            inside.set()
            assert leave.wait(30.0)

    thread = threading.Thread(target=other)
    with collector_off():
        thread.start()
        assert inside.wait(30.0)
    assert not gc.isenabled()
    leave.set()
    thread.join(30.0)
    assert gc.isenabled()


def test_who_had_it_off_has_it_off_afterwards() -> None:
    gc.disable()
    with pytest.raises(ValueError, match="within"), collector_off():
        raise ValueError("within")
    assert not gc.isenabled()
