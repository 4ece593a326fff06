"""The doctor sees that installed interfaces are not those of the source tree, and names which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flashrt_ros.doctor.command import judge
from flashrt_ros.doctor.facts import Facts, Ros
from flashrt_ros.doctor.interfaces import differing, installed_share
from flashrt_ros.hardware.finding import Level


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        kind = name.partition("_")[0]
        path = folder / kind / f"{name}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_what_differs_is_named_and_comments_do_not_count(tmp_path: Path) -> None:
    source = write(
        tmp_path / "source",
        msg_same="# new words\nuint8 A=0   # zero\nstring reason\n",
        msg_changed="string reason\nbool dry_run\n",
        srv_new="---\nbool success\n",
    )
    share = write(
        tmp_path / "share",
        msg_same="uint8 A=0\n\nstring   reason\n",
        msg_changed="string reason\n",
        srv_old="---\n",
    )
    expected = ("msg/msg_changed.msg", "srv/srv_new.srv", "srv/srv_old.srv")
    assert differing(source, share) == expected
    assert differing(source, source) == (), "control"


def test_a_sourced_installation_comes_before_the_prefix(tmp_path: Path) -> None:
    first = write(tmp_path / "a" / "share" / "flashrt_ros", msg_x="").parents[1]
    second = write(tmp_path / "b" / "share" / "flashrt_ros", msg_x="").parents[1]
    path = {"AMENT_PREFIX_PATH": f"{tmp_path / 'none'}:{first}"}
    assert installed_share(path, str(second)) == first / "share" / "flashrt_ros"
    assert installed_share({}, str(second)) == second / "share" / "flashrt_ros"
    assert installed_share({}, str(tmp_path)) is None


def test_a_difference_is_a_warning_with_a_cure() -> None:
    ros = replace(Ros(), source_tree=True, interfaces_differing=("msg/PolicyStatus.msg",))
    (found,) = (f for f in judge(Facts(ros=ros)) if f.subject == "interfaces")
    assert found.level is Level.WARN
    assert "msg/PolicyStatus.msg" in found.text
    assert "pip install ." in found.cure
    (fine,) = (f for f in judge(Facts()) if f.subject == "interfaces")
    assert fine.level is Level.OK, "control"
