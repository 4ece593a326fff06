"""``flashrt_ros evaluate --html``: a real evaluation, through the command, onto the page.

Pinned: what the command line writes is the report of that run and nothing half-done, and what
cannot be written here is refused before anything runs.
"""

import json
import sys
from pathlib import Path

import pytest
from chromium import Browser, require_chromium
from evaluate_bags import write_arm, write_contract, write_hold

from flashrt_ros import cli


def words(tmp_path: Path, *more: str) -> list[str]:
    """The command line of an evaluation of a policy that holds, over two seconds."""
    bag = write_arm(tmp_path / "arm.mcap", lead=8)
    contract = write_contract(tmp_path / "arm.contract.yaml")
    policy = write_hold(tmp_path / "hold")
    return ["evaluate", str(bag), "--policy", f"h={policy}", "--contract", str(contract), *more]


def test_the_page_is_that_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    require_chromium()
    page, stored = tmp_path / "page.html", tmp_path / "report.json"
    assert cli.main(words(tmp_path, "--html", str(page), "--json", str(stored))) == 0
    digest = json.loads(stored.read_text())["runs"][0]["digest"]
    with Browser() as browser:
        browser.open(page)
        assert digest[:12] in browser.evaluate("document.body.innerText")
        browser.scroll_through()
        names = "document.getElementById('recording-1-joint-0').data.map(trace => trace.name)"
        assert browser.evaluate(names) == ["measured", "recorded", "h"]
        assert browser.complaints() == []


def test_a_page_that_cannot_be_made_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    page, stored = tmp_path / "page.html", tmp_path / "report.json"
    assert cli.main(words(tmp_path, "--html", str(page), "--json", str(stored))) == 1
    assert "pip install 'flashrt_ros[report]'" in capsys.readouterr().err
    assert not stored.exists()
    assert not page.exists()


def test_a_page_nowhere_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    assert cli.main(words(tmp_path, "--html", str(tmp_path / "none" / "page.html"))) == 1
    assert "cannot be written" in capsys.readouterr().err
