"""Pins that a ROS domain belongs to one process of ours from the moment that it is chosen.

Nodes take seconds to start, and a domain looks free until they have: a demonstration that began in
one that a test had just chosen would command the test's robot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashrt_ros import process
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.process import Domain, log_folder, with_this_package


def test_a_domain_is_taken_before_anybody_takes_part_in_it() -> None:
    with contextlib.closing(Domain(range(90, 100))) as first:
        with contextlib.closing(Domain(range(90, 100))) as second:
            assert second.id != first.id
        with pytest.raises(UnsupportedError, match=f"no free ROS domain from {first.id} to"):
            Domain([first.id])
    with contextlib.closing(Domain([first.id])) as again:
        assert again.id == first.id, "it was given back"


def test_another_process_is_not_given_it() -> None:
    with contextlib.closing(Domain()) as ours, contextlib.closing(Domain()) as free:
        free.close()
        code = f"from flashrt_ros.process import Domain; print(Domain({[ours.id, free.id]}).id)"
        words = [sys.executable, "-c", code]
        environment = with_this_package(os.environ)
        found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert int(found.stdout) == free.id


def test_one_in_which_a_participant_listens_is_in_use() -> None:
    with contextlib.closing(Domain()) as ours:
        pass
    # DDS-RTPS 9.6.2.3: the second participant of the domain, and one that has no number.
    for port in (12, 0):
        listener = process._bound(7400 + 250 * ours.id + port)
        assert listener is not None
        with contextlib.closing(listener), pytest.raises(UnsupportedError):
            Domain([ours.id])


def test_a_private_environment_names_no_other_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in process.OVERRULING:
        monkeypatch.setenv(name, "10.0.0.7")
    monkeypatch.setenv("CYCLONEDDS_URI", "file:///etc/robot.xml")
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    found = process.private_environment(7, tmp_path)
    assert not found.keys() & set(process.OVERRULING)
    assert found["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert found["CYCLONEDDS_URI"] == f"file:///etc/robot.xml,{process.NO_MULTICAST}"
    monkeypatch.setattr(os, "environ", found)
    assert process.private_environment(7, tmp_path)["CYCLONEDDS_URI"] == found["CYCLONEDDS_URI"]
    del found["CYCLONEDDS_URI"]
    assert "CYCLONEDDS_URI" not in process.private_environment(7, tmp_path)


@pytest.mark.ros
def test_who_names_no_domain_is_in_that_of_the_session() -> None:
    import rclpy

    with rclpy.Context() as context:
        assert context.get_domain_id() == int(os.environ["ROS_DOMAIN_ID"]) > 0
        with pytest.raises(UnsupportedError):
            Domain([context.get_domain_id()])


def test_logs_go_when_all_went_well_and_their_place_is_said_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with log_folder("test") as (folder, well):
        (folder / "node.log").write_text("fine")
        well()
    assert not folder.exists()
    assert capsys.readouterr().err == ""
    with log_folder("test") as (folder, well):
        (folder / "node.log").write_text("not so fine")
    assert (folder / "node.log").is_file()
    assert capsys.readouterr().err == f"logs: {folder}\n"
    shutil.rmtree(folder)
