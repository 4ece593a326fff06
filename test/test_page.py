"""Pages that hold everything they show, as a browser sees them.

Pinned: figures are drawn without a request or a complaint; text is shown as text, in HTML and by
plotly; and a script that came in with it does not run, which is what the content security policy
is for. Each "nothing happened" has a control in which it does.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, require_chromium

from flashrt_ros.errors import StorageError, UnsupportedError
from flashrt_ros.page import Page, escaped, facts, table

HOSTILE = "</script><script>window.bad=1</script><img src=x onerror='window.bad=1'>&\"<b>x</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require_chromium()
    with Browser() as started:
        yield started


def example() -> Page:
    pytest.importorskip("plotly")
    page = Page(HOSTILE)
    page.add(f'<h1 id="title">{escaped(HOSTILE)}</h1>{table([["a"], [HOSTILE]])}')
    data = [{"type": "scatter", "x": [1, 2, 3], "y": [1, float("nan"), 2], "name": HOSTILE}]
    page.add(page.figure(data, {"title": {"text": escaped(HOSTILE)}, "showlegend": True}))
    page.script("document.title = JSON.parse(given.textContent).words;", given={"words": HOSTILE})
    return page


def test_a_page_is_drawn_and_asks_for_nothing(browser: Browser, tmp_path: Path) -> None:
    page = example()
    page.write(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.complaints() == []
    assert browser.requests() == []
    assert browser.evaluate("document.querySelectorAll('.scatterlayer .point').length") == 2
    assert page.figures == 1


def test_text_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    example().write(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.evaluate("document.getElementById('title').textContent") == HOSTILE
    assert browser.evaluate("document.querySelector('td').textContent") == HOSTILE
    assert browser.evaluate("document.title") == HOSTILE
    assert browser.evaluate("document.querySelector('.gtitle').textContent") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, b').length") == 0
    assert browser.evaluate("window.bad === undefined") is True


def test_what_is_not_ours_neither_runs_nor_loads(browser: Browser, tmp_path: Path) -> None:
    page = example()
    page.add("<script>window.bad = 1</script><img src='https://example.invalid/x.png'>")
    page.write(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.evaluate("window.bad === undefined") is True
    assert len(browser.complaints()) == 2  # and says so
    text = re.sub("<meta http-equiv[^>]*>", "", page.text())
    (tmp_path / "open.html").write_text(text)
    browser.open(tmp_path / "open.html")
    assert browser.evaluate("window.bad") == 1
    assert browser.requests() == ["https://example.invalid/x.png"]


def test_an_error_in_a_script_is_seen(browser: Browser, tmp_path: Path) -> None:
    page = example()
    page.script("throw new Error('on purpose');")
    page.write(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert "on purpose" in str(browser.complaints())


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"page .*none/page\.html: cannot be written"):
        example().write(tmp_path / "none" / "page.html")


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'flashrt_ros\[report\]'"):
        Page("x").text()


def test_markup_in_tables_is_text() -> None:
    assert "<td>&lt;a&gt;</td><td>1 &amp; 2</td>" in facts([("<a>", "1 & 2")])
