"""``--reproduce`` on the command line: what does not go with it is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_ros.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "b", "--reproduce"], "expected one --policy, the recorded one, found 2"),
        (["--reproduce", "--fail-if", "mae>1"], "--fail-if: expected a run without --reproduce"),
        (["--reproduce", "--from", "1s"], "--from: expected a run without --reproduce"),
        (["--capsule-folder", "x"], "--capsule-folder: expected --reproduce with it, found none"),
        (["--reproduce", "--engine", "processes"], "--engine processes: expected serial"),
        (["--node", "x"], "--node: expected --reproduce with it, found none"),
    ],
)
def test_what_does_not_go_together(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(tmp_path / "none"), "--policy", "a", *words]) != 0
    assert message in capsys.readouterr().err


def test_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path / "none"), "--policy", "hold", "--reproduce"]) != 0
    assert "none" in capsys.readouterr().err
