"""The page of an evaluation, as a browser shows it.

Pinned: every plot is drawn, without a complaint or a request; the slider moves what all plots over
time show; extremes of a long recording stay visible; ages turn up in their lanes where they are
stale; text from recordings stays text; a telephone needs no scrolling sideways; and a long
recording does not make a large page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Browser, require_chromium
from evaluate_tracks import fan, report, track
from PIL import Image

from flashrt_ros.evaluate.page.document import MOST_RECORDINGS, write_page
from flashrt_ros.evaluate.report import run_part
from flashrt_ros.evaluate.track import Track
from flashrt_ros.page import COLORS

pytest.importorskip("plotly")
HOSTILE = "</script><script>window.bad=1</script><img src=x onerror='window.bad=1'><b>x</b>"


class Shown(Browser):
    """A browser with words for what is on the page."""

    def plot(self, name: str) -> dict[str, Any]:
        """Data, span and SVG of a plot over time, as drawn; scrolls there first."""
        self.evaluate(f"document.getElementById('{name}').scrollIntoView()")
        self.wait(f"document.getElementById('{name}').dataset.drawn")
        words = self.evaluate(
            f"""(() => {{ const div = document.getElementById('{name}'); return JSON.stringify({{
              names: div.data.map((trace) => trace.name),
              x: div.data.map((trace) => trace.x), y: div.data.map((trace) => trace.y),
              z: div.data.map((trace) => trace.z), range: div.layout.xaxis.range,
              paths: [...div.querySelectorAll('.scatterlayer .trace')].map((trace) =>
                [...trace.querySelectorAll('.js-line')].map((e) => e.getAttribute('d')).join(' ')),
              images: div.querySelectorAll('.heatmaplayer image').length,
            }}) }})()"""
        )
        return dict(json.loads(words))

    def set(self, control: str, value: str | float, event: str = "change") -> None:
        """Uses a control of the first recording."""
        self.evaluate(
            f"(() => {{ const e = document.querySelector('#recording-1 {control}');"
            f" e.value = '{value}'; e.dispatchEvent(new Event('{event}')) }})()"
        )
        self.settle()

    def reset(self) -> None:
        """Puts all controls back to where they stand when the page is opened."""
        self.evaluate(
            """(() => {
              const changed = (e) => e.dispatchEvent(new Event('change'));
              for (const e of document.querySelectorAll('#recording-1 input[type=checkbox]')) {
                if (!e.checked) e.click();
              }
              for (const e of document.querySelectorAll('#recording-1 select')) {
                e.selectedIndex = 0;
                changed(e);
              }
            })()"""
        )
        self.settle()

    def toggle(self, control: str) -> None:
        self.evaluate(f"document.querySelector('#recording-1 {control}').click()")
        self.settle()


@pytest.fixture(scope="module")
def browser() -> Iterator[Shown]:
    require_chromium()
    with Shown() as started:
        assert isinstance(started, Shown)
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    tracks = [track(spike_at=123), track("diffusion", offset=-0.1, replan=20)]
    found = report(tracks, thresholds=[*judged("mae>0.2", 0.1, True), *judged("max>1", 9, False)])
    for run in found["runs"]:
        run["inputs"][0]["limit_ms"] = 50.0
    write_page(path, found, tracks, [fan()])
    return path


@pytest.fixture
def desk(browser: Shown, page: Path) -> Shown:
    """The page at a desk; opened again only if need be, since plotly.js takes half a second."""
    here = browser.evaluate("location.href")
    if here != page.as_uri() or browser.evaluate("innerWidth") < 1000:
        browser.open(page)
    browser.reset()
    return browser


def judged(expression: str, value: float | None, passed: bool) -> list[dict[str, Any]]:
    where = {"policy": "act", "source": "run_0"}
    return [{"expression": expression, "value": value, "passed": passed, **where}]


def reproduction(words: str) -> dict[str, Any]:
    where = {"run": words, "tick": 7, "episode": 1, "step": 3, "time_ns": 0}
    return {
        "source": words,
        "verdict": "differs",
        **{"steps": 100, "reproduced": 90, "differing": 4, "skipped": 6, "capsules": 1},
        "verbs": {words: 2},
        "first": {"where": where, "what": words, "words": words}
        | {"recorded": [1.0, None], "computed": [1.0, 2.0]}
        | {"inputs": [{"topic": words, "sequence": 7, "digest": words, "found": False}]},
        "gaps": [{"where": where, "lost": words, "words": words, "steps": 6}],
        "changes": [{"what": words, "recorded": words, "here": "other"}],
        "remarks": [words],
    }


def test_every_plot_is_drawn_in_silence(desk: Shown) -> None:
    for element in range(3):
        drawn = desk.plot(f"recording-1-joint-{element}")
        lines = dict(zip(drawn["names"], drawn["paths"], strict=True))
        for line in ("recorded", "measured", "act", "diffusion"):
            assert lines[line].startswith("M")
            assert len(lines[line]) > 1000, line  # hundreds of points
    assert len(desk.plot("recording-1-latency")["paths"]) == 2
    assert desk.plot("recording-1-lanes")["images"] == 1
    desk.scroll_through()
    drawn = "'.scatterlayer path, .barlayer path, .heatmaplayer image'"
    figures = "[...document.querySelectorAll('.figure')]"
    assert desk.evaluate(f"{figures}.filter(e => !e.querySelector({drawn})).length") == 0
    assert desk.evaluate(f"{figures}.length") == 3 + 1 + 1 + 2 + 3 + 3
    assert desk.evaluate("document.querySelectorAll('.fans .js-plotly-plot').length") == 3
    assert desk.complaints() == []
    assert desk.requests() == []


def test_the_slider_moves_what_is_shown(desk: Shown) -> None:
    name = "recording-1-joint-1"
    whole = desk.plot(name)
    assert whole["range"] == [0, pytest.approx(599 / 30)]
    desk.set(".span", 5)
    narrow = desk.plot(name)
    assert narrow["range"] == [0, 5]
    desk.set(".from", 1000, "input")
    moved = desk.plot(name)
    assert moved["range"] == [pytest.approx(599 / 30 - 5), pytest.approx(599 / 30)]
    lines = [shown["paths"][shown["names"].index("act")] for shown in (whole, narrow, moved)]
    assert len(set(lines)) == 3
    inside = [x for x in moved["x"][moved["names"].index("act")] if x is not None]
    assert 14.9 < min(inside) < max(inside) < 20
    assert desk.plot("recording-1-lanes")["range"] == moved["range"]
    assert desk.evaluate("document.querySelector('.now').textContent") == "15.0 to 20.0 s"
    desk.set(".span", 0)
    assert desk.plot(name)["range"] == whole["range"]
    desk.set(".from", 500, "input")  # from all of it, the slider itself narrows the view
    assert desk.plot(name)["range"] == [pytest.approx(8.985), pytest.approx(10.982, abs=0.01)]


def test_zooming_in_one_plot_moves_all(desk: Shown) -> None:
    desk.plot("recording-1-joint-0")
    desk.evaluate(
        "Plotly.relayout('recording-1-joint-0', {'xaxis.range[0]': 3, 'xaxis.range[1]': 4.5})"
        ".then(() => 0)"
    )
    desk.settle()
    assert desk.plot("recording-1-joint-2")["range"] == [3, 4.5]
    desk.evaluate(
        "Plotly.relayout('recording-1-joint-2', {'xaxis.autorange': true}).then(() => 0)"
    )
    desk.settle()
    assert desk.plot("recording-1-latency")["range"] == [0, pytest.approx(599 / 30)]


def test_lines_are_there_to_be_seen(desk: Shown, tmp_path: Path) -> None:
    """In a picture of the screen, not in the document: pixels of each policy's colour."""

    def pixels(color: str) -> int:
        desk.plot("recording-1-joint-1")
        desk.settle()
        desk.screenshot(tmp_path / "screen.png", whole=False)
        screen = np.asarray(Image.open(tmp_path / "screen.png").convert("RGB")).astype(int)
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        # Below the bar of controls, whose legend has the colours, too.
        return int((np.abs(screen[150:] - wanted).max(axis=2) < 20).sum())

    before = [pixels(color) for color in COLORS[:2]]
    assert min(before) > 500
    desk.toggle("[data-group=policy-0]")
    assert pixels(COLORS[0]) < 0.5 * before[0]
    assert pixels(COLORS[1]) >= 0.8 * before[1]


def test_errors_chunks_and_policies_can_be_chosen(desk: Shown) -> None:
    name = "recording-1-joint-1"
    assert "act, chunks" not in desk.plot(name)["names"]  # too many to tell apart
    desk.set(".span", 5)
    assert "act, chunks" in desk.plot(name)["names"]
    desk.toggle(".chunks")
    assert "act, chunks" not in desk.plot(name)["names"]
    desk.toggle("[data-group=policy-0]")
    assert desk.plot(name)["names"] == ["measured", "recorded", "diffusion"]
    desk.set(".what", "errors")
    drawn = desk.plot(name)
    assert drawn["names"] == ["diffusion"]
    values = [y for y in drawn["y"][0] if y is not None]
    assert np.mean(values) == pytest.approx(-0.1, abs=0.005)


def test_lanes_show_where_inputs_are_stale(desk: Shown) -> None:
    drawn = desk.plot("recording-1-lanes")
    edges, rows = drawn["x"][0], drawn["z"][0]
    image, state = rows[0], rows[2]  # drawn from below, with empty rows between
    assert len(edges) == len(image) + 1 == 601
    assert [i for i, z in enumerate(state) if z > 1] == list(range(300, 310))
    assert [i for i, z in enumerate(image) if z > 1.1] == [0, 1, 2, 3]
    assert all(0 < z < 1 for z in image[4:])
    desk.set(".span", 2)
    assert max(desk.plot("recording-1-lanes")["z"][0][2]) < 0.5  # nothing stale in sight


def test_a_telephone_needs_no_scrolling_sideways(browser: Shown, page: Path) -> None:
    columns = "getComputedStyle(document.querySelector('.joint')).gridTemplateColumns"
    browser.open(page, 1200)
    assert len(browser.evaluate(columns).split()) == 2
    browser.open(page, 390, 844, touch=True)
    for name in ("joint-0", "latency", "lanes"):
        browser.plot(f"recording-1-{name}")
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    assert len(browser.evaluate(columns).split()) == 1
    widths = browser.evaluate(
        "[...document.querySelectorAll('.figure')].map(e => e.getBoundingClientRect().right)"
    )
    assert max(widths) <= 390
    # A finger that meets a plot scrolls the page.
    assert browser.evaluate("document.getElementById('recording-1-joint-0').layout.dragmode") in (
        False,
        None,
    )
    browser.evaluate("document.body.insertAdjacentHTML('beforeend', '<p>' + 'wide'.repeat(99))")
    assert browser.evaluate("document.documentElement.scrollWidth") > 390  # it would be seen


def test_long_names_do_not_widen_a_telephone(browser: Shown, tmp_path: Path) -> None:
    long = "/".join(["a_rather_long_name"] * 12) + "x" * 80
    made = track(long, f"/bags/{long}", steps=60, inputs=(long,))
    made.names, made.remarks = (long, *made.names[1:]), [long]
    made.fault_T = [f"{long}: stale"] * 60
    found = report([made], thresholds=judged(long, 1.0, False), reproduction=reproduction(long))
    found["sources"][0] |= {"defects": [long], "error": long}
    write_page(tmp_path / "report.html", found, [made], [fan(branches=3)])
    browser.open(tmp_path / "report.html", 390, 844, touch=True)
    browser.scroll_through()
    assert browser.evaluate("document.documentElement.scrollWidth") == 390


def test_text_from_recordings_stays_text(browser: Shown, tmp_path: Path) -> None:
    made = track(HOSTILE, HOSTILE, steps=60, inputs=(HOSTILE,))
    made.names, made.units = (HOSTILE, *made.names[1:]), (HOSTILE, *made.units[1:])
    made.fault_T, made.remarks = [HOSTILE] * 60, [HOSTILE]
    found = report([made], thresholds=judged(HOSTILE, None, False))
    found["sources"][0] |= {"defects": [HOSTILE], "topics": [{"name": HOSTILE, "type": HOSTILE}]}
    found["sources"][0]["error"] = HOSTILE
    found |= {"contract": HOSTILE, "reproduction": reproduction(HOSTILE), "created": HOSTILE}
    write_page(tmp_path / "report.html", found, [made])
    browser.open(tmp_path / "report.html")
    for name in ("joint-0", "latency", "lanes"):
        browser.plot(f"recording-1-{name}")
    assert browser.evaluate("window.bad === undefined") is True
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.querySelector('h2 + details li').textContent") == HOSTILE
    lane = "document.querySelector('#recording-1-lanes .annotation-text').textContent"
    assert browser.evaluate(lane).startswith(f"{HOSTILE}, up to")
    assert browser.complaints() == []


def test_a_long_recording_makes_no_large_page(browser: Shown, tmp_path: Path) -> None:
    made = [track(p, steps=60_000, joints=3, spike_at=43_210, horizon=0) for p in ("a", "b")]
    write_page(tmp_path / "report.html", report(made), made)
    assert (tmp_path / "report.html").stat().st_size < 12e6
    browser.open(tmp_path / "report.html")
    drawn = browser.plot("recording-1-joint-0")
    line = drawn["y"][drawn["names"].index("a")]
    assert 500 < len(line) <= 1600
    assert max(y for y in line if y is not None) == 9.0  # one point of 60,000
    for start in (100, 720, 1400):  # seconds
        browser.set(".span", 300)
        browser.evaluate(
            f"Plotly.relayout('recording-1-joint-1', {{'xaxis.range[0]': {start},"
            f" 'xaxis.range[1]': {start + 300}}}).then(() => 0)"
        )
        browser.settle()
        drawn = browser.plot("recording-1-joint-1")
        line = [y for y in drawn["y"][drawn["names"].index("b")] if y is not None]
        inside_T = made[1].predicted_TA[start * 30 + 1 : (start + 300) * 30, 1]
        assert max(line) >= np.nanmax(inside_T) - 1e-6
        assert min(line) <= np.nanmin(inside_T) + 1e-6
    words = browser.evaluate("document.body.textContent")
    count = re.search(r"Plots over time hold ([0-9,]+) of ([0-9,]+) points", words)
    assert count is not None
    kept, given = (int(number.replace(",", "")) for number in count.groups())
    assert kept < 420_000
    assert given > 1_000_000


def test_of_many_recordings_the_worst_are_drawn(tmp_path: Path) -> None:
    made = [track(source=f"run_{i}", steps=40, offset=0.1 + 0.01 * i) for i in range(12)]
    write_page(tmp_path / "report.html", report(made), made)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [f"<h2>run_{i}</h2>" in text for i in range(12)] == [i >= 4 for i in range(12)]
    assert f"the {MOST_RECORDINGS} recordings with the largest errors" in text
    assert "only: run_0, run_1, run_2, run_3." in text
    assert all(f"<td>run_{i}</td>" in text for i in range(12))


def cut(steps: int) -> Track:
    """A track of so few steps, of which nothing is known."""
    made = track(source=f"run_{steps}", steps=60, horizon=0, inputs=())
    for name in ("index_T", "time_ns_T", "episode_T", "stepped_T", "latency_ms_T", "fault_T"):
        setattr(made, name, getattr(made, name)[:steps])
    for name in ("recorded_TA", "predicted_TA", "sent_TA", "state_TA"):
        setattr(made, name, np.full((steps, 3), np.nan))
    return made


def test_what_has_next_to_nothing_makes_a_page(browser: Shown, tmp_path: Path) -> None:
    found = report([track(source=f"run_{steps}", steps=60) for steps in range(3)])
    tracks = [cut(steps) for steps in range(3)]
    found["runs"] = [run_part(each) for each in tracks]
    write_page(tmp_path / "report.html", found, tracks)
    browser.open(tmp_path / "report.html")
    browser.scroll_through()
    assert browser.complaints() == []
    words = browser.evaluate("document.body.innerText")
    assert "nan" not in words.lower()
    assert words.count("Recorded against predicted") == 2  # run_0 has no step
    assert words.count("No step was made, and nothing was recorded") == 2


def test_what_failed_stands_on_top(browser: Shown, tmp_path: Path) -> None:
    tracks = [track(steps=60)]
    found = report(tracks, thresholds=[*judged("mae>1", 0.1, True), *judged("max>1", None, False)])
    found["reproduction"] = reproduction("weights")
    found["sources"][0]["defects"] = ["/tf: cut", "/odom: zero stamps"]
    write_page(tmp_path / "report.html", found, tracks)
    browser.open(tmp_path / "report.html")
    words = browser.evaluate("[...document.querySelectorAll('.verdict')].map(e => e.innerText)")
    counts = "90 of 100 actions bit for bit, 4 differ, 6 not compared (weights)"
    assert words == [
        "failed: max>1: found \N{EN DASH} (act, run_0)",
        "passed: 1 of 2 thresholds: mae>1 did not happen",
        f"reproduction: differs: {counts}",
        "defects: 2 in the recordings",
    ]
    bad = browser.evaluate("document.querySelectorAll('.verdict.bad').length")
    assert bad == 3
    changed = "[...document.querySelectorAll('td')].filter(e => e.innerText == 'other').length"
    assert browser.evaluate(changed) == 1


def test_without_series_the_tables_stand(browser: Shown, tmp_path: Path) -> None:
    found = report([track(steps=60), track("other", steps=60)])
    write_page(tmp_path / "report.html", found, [])
    browser.open(tmp_path / "report.html")
    assert "No series were kept" in browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.querySelectorAll('tr').length") > 5
    assert browser.complaints() == []


def test_where_nothing_could_be_evaluated_the_reasons_stand(
    browser: Shown, tmp_path: Path
) -> None:
    found = report([track(steps=60)])
    found["runs"], found["sources"][0]["error"] = [], "no topic /joints"
    write_page(tmp_path / "report.html", found, [])
    browser.open(tmp_path / "report.html")
    assert browser.evaluate("document.querySelector('.verdict').innerText") == (
        "not evaluated: run_0: no topic /joints"
    )
    assert browser.complaints() == []


def test_a_reproduction_has_no_empty_tables(tmp_path: Path) -> None:
    found = report([]) | {"reproduction": reproduction("weights"), "runs": []}
    write_page(tmp_path / "report.html", found, [])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for words in ("<h3>Runs</h3>", "hash over all actions", "0 of 0", "No series were kept"):
        assert words not in text
    write_page(tmp_path / "report.html", report([track(steps=60)]), [])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h3>Runs</h3>" in text
    assert "hash over all actions" in text
