"""The file of figures and the page made of it: the JSON is the truth, the page shows it.

What is pinned is that nothing is lost on the way through the file, that a file of another kind is
refused with its reason, and that the page has one figure a curve with the numbers of the JSON.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros import cli
from flashrt_ros.bench.figures import Figures, read, write
from flashrt_ros.bench.page import draw, write_page
from flashrt_ros.bench.report import Count, Curve, Point, Result, make_row
from flashrt_ros.errors import CorruptError, InvalidArgumentError, NotFoundError, UnsupportedError


def example() -> Figures:
    floor = make_row(
        "small: copy", [1.0, 2.0, 3.0], "us", 4096, point=Point("by size", "copy", 4096)
    )
    work = make_row(
        "small: <verb>", [2.0, 4.0, 9.0], "us", 4096, floor, "<= 3", Point("by size", "verb", 4096)
    )
    drawn = Result("verbs", "a title", [floor, work], [Curve("by size", "bytes", "us")])
    drawn.counts.append(Count("counted", 3, 3, "all"))
    drawn.notes.append("read <this>")
    bare = Result("step", "no curve", [make_row("alone", [1.0])])
    return Figures({"device": "cpu", "torch.deterministic": "False"}, (drawn, bare))


def figures_of(page: str) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Data and layout of every figure of a page, as the browser gets them."""
    match = re.search(r'<script type="application/json" id="figures">(.*)</script>', page)
    assert match is not None
    return [(figure["data"], figure["layout"]) for figure in json.loads(match[1])]


def test_a_file_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    write(path, example())
    assert read(path) == example()
    content = json.loads(path.read_text())
    assert content["format"] == 1
    assert content["results"][0]["rows"][1]["gb_per_s"] == pytest.approx(2.048)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c: c.update(format=2), InvalidArgumentError, "format: expected 1, found 2"),
        (lambda c: c.pop("format"), InvalidArgumentError, "format: expected 1, found None"),
        (lambda c: c.pop("facts"), CorruptError, "expected an object with 'facts'"),
        (lambda c: c.pop("results"), CorruptError, "KeyError: 'results'"),
        (lambda c: c["results"][0].update(colour="red"), CorruptError, "colour"),
        (
            lambda c: c["results"][0]["rows"][0].update(p50="x"),
            CorruptError,
            "p50 of 'small: copy'",
        ),
        (lambda c: c["results"][0]["rows"][0].pop("unit"), CorruptError, "unit"),
    ],
)
def test_other_files_are_refused(
    change: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    content = json.loads(json.dumps(example().to_json()))
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(error, match=re.escape(message)):
        read(path)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("{")
    with pytest.raises(CorruptError, match="expected a JSON file of figures"):
        read(path)
    with pytest.raises(NotFoundError, match="no such file"):
        read(tmp_path / "other.json")


def test_a_page_has_a_figure_for_each_curve(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path = tmp_path / "report.html"
    assert write_page(path, example()) == 1
    text = path.read_text(encoding="utf-8")
    ((data, layout),) = figures_of(text)
    assert layout["title"]["text"] == "by size"
    by_name = {line["name"]: line for line in data}
    assert by_name["verb"]["x"] == [4096]
    assert by_name["verb"]["y"] == [4.0]
    assert by_name["verb"]["error_y"]["array"] == [5.0]  # up to the p99
    assert by_name["copy"]["line"]["dash"] == "dash"  # the floor
    assert by_name["verb"]["line"]["dash"] == "solid"
    # Facts on top, markup harmless, nothing fetched from elsewhere.
    assert "<td>device</td><td>cpu</td>" in text
    assert "small: &lt;verb&gt;" in text
    assert "torch.deterministic" not in text
    assert not re.search(r"<script[^>]+src=", text)


def test_zero_bytes_are_drawn_on_a_linear_axis() -> None:
    curve = Curve("bytes", "branches", "bytes")
    point = Point("bytes", "taken", 1)
    zero = Result("memory", "title", [make_row("fork", [0.0], "B", point=point)], [curve])
    some = Result("memory", "title", [make_row("fork", [1.0], "B", point=point)], [curve])
    assert draw(curve, zero)["layout"]["yaxis"]["type"] == "linear"
    assert draw(curve, some)["layout"]["yaxis"]["type"] == "log"


def test_a_run_its_file_and_its_pages_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly")
    stored, page, again = (tmp_path / name for name in ("f.json", "run.html", "later.html"))
    words = ["bench", "verbs", "memory", "--quick", "--json", str(stored), "--html", str(page)]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert cli.main(["bench", "--from", str(stored), "--html", str(again)]) == 0
    table = printed.partition("== verbs")[2].partition("\nwritten:")[0]
    assert table in capsys.readouterr().out
    assert page.read_text() == again.read_text()
    results = json.loads(stored.read_text())["results"]
    curves = [curve["title"] for result in results for curve in result["curves"]]
    found = figures_of(page.read_text())
    assert [layout["title"]["text"] for _, layout in found] == curves
    rows = {
        (row["point"]["curve"], row["point"]["series"], row["point"]["x"]): row["p50"]
        for result in results
        for row in result["rows"]
        if row["point"]
    }
    shown = {
        (layout["title"]["text"], line["name"], x): y
        for data, layout in found
        for line in data
        for x, y in zip(line["x"], line["y"], strict=True)
    }
    assert shown == rows
    assert len(curves) == 4


def test_without_plotly_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'flashrt_ros\[report\]'"):
        write_page(tmp_path / "report.html", example())
    assert cli.main(["bench", "step", "--quick", "--html", str(tmp_path / "report.html")]) == 3
    output = capsys.readouterr()
    assert "flashrt_ros[report]" in output.err
    assert "== step" not in output.out
    assert not (tmp_path / "report.html").exists()
