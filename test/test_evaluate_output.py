"""``flashrt_ros evaluate --html --mcap``: a real evaluation, through the command, into its files.

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
from flashrt_ros.bag.reader import BagReader


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
    assert cli.main(words(tmp_path, "--html", str(page), "--json", str(stored))) == 3
    assert "pip install 'flashrt_ros[report]'" in capsys.readouterr().err
    assert not stored.exists()
    assert not page.exists()


def test_a_page_nowhere_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly")
    page, stored = tmp_path / "none" / "page.html", tmp_path / "report.json"
    assert cli.main(words(tmp_path, "--html", str(page), "--json", str(stored))) != 0
    assert "none/page.html: there is no such folder; make it first" in capsys.readouterr().err
    assert not stored.exists()


def test_the_mcap_file_is_that_of_the_run(tmp_path: Path) -> None:
    made, more = tmp_path / "out.mcap", ("--json", str(tmp_path / "report.json"))
    line = words(tmp_path, "--mcap", str(made), "--mcap-with-recording", *more)
    assert cli.main(line) == 0
    with BagReader(made) as found, BagReader(tmp_path / "arm.mcap") as bag:
        counts = {topic.name: topic.count for topic in found.topics}
        recorded = {topic.name: topic.count for topic in bag.topics}
    assert counts.items() >= recorded.items()
    stepped = json.loads((tmp_path / "report.json").read_text())["runs"][0]["stepped"]
    assert counts["/evaluation/h/prediction"] == stepped == 100
    assert (tmp_path / "out.foxglove.json").exists()


def test_of_several_recordings_each_has_its_file(tmp_path: Path) -> None:
    line = words(
        tmp_path, "--mcap", str(tmp_path / "out"), "--json", str(tmp_path / "report.json")
    )
    second = write_arm(tmp_path / "other.mcap")
    assert cli.main([*line[:2], str(second), *line[2:]]) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["arm.foxglove.json", "arm.mcap", "other.foxglove.json", "other.mcap"]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("--mcap-with-recording",), 2, "expected --mcap FILE too, found none"),
        (("--mcap", "arm.mcap"), 2, "arm.mcap: exists, and no evaluation wrote it"),
        (("--mcap", "."), 2, "arm.mcap: exists, and no evaluation wrote it"),
        (("second", "--mcap", "out.mcap"), 2, "expected a folder for 2 sources, found out.mcap"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(
    more: tuple[str, ...],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = words(tmp_path, "--json", "report.json")
    monkeypatch.chdir(tmp_path)
    before = (tmp_path / "arm.mcap").read_bytes()
    assert cli.main([*line[:2], *more, *line[2:]]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "report.json").exists()
    assert (tmp_path / "arm.mcap").read_bytes() == before


def test_a_data_set_has_no_messages_to_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(tmp_path, "--mcap", str(tmp_path / "out.mcap"), "--mcap-with-recording")
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    assert cli.main([line[0], str(tmp_path / "set"), *line[2:]]) == 2
    assert "a data set; leave the option out" in capsys.readouterr().err
