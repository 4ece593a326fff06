"""HTML pages that hold everything they show: plotly.js, figures, tables and scripts.

Such a page opens on a robot without a network, and anywhere else years later. Its content security
policy lets it load nothing from anywhere and run no script but those written here, each named by
its hash: text from recordings is escaped, and would do nothing if it were not.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashrt_ros.errors import StorageError, UnsupportedError

EXTRA = "report"
"""Optional dependencies of the package that bring plotly."""

STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em;
  color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px }
td, th { padding: .15em .7em; border-bottom: 1px solid #ddd; text-align: left;
  white-space: nowrap }
.number { text-align: right }
.long { white-space: normal; overflow-wrap: anywhere; min-width: 14em }
.wide { overflow-x: auto }
.note { color: #555; margin: .2em 0 }
"""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c564b", "#6a3d9a")
"""Of lines that are to be told apart, also by the colour-blind (Okabe and Ito's, darkened)."""

_NUMBER = re.compile(
    r"((x )?[\N{MINUS SIGN}+-]?[\d.,]+(e[\N{MINUS SIGN}+-]?\d+)?( \S.*)?|\N{EN DASH}( \S.*)?)?$"
)
"""A number, perhaps with a unit behind it, or none."""
_LONG = 30
"""Characters of a cell that may be broken anywhere."""
_GRID = {"gridcolor": "#e4e4e4", "linecolor": "#999", "zeroline": False, "automargin": True}
_LAYOUT = {
    "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#222"},
    "paper_bgcolor": "#fff",
    "plot_bgcolor": "#fff",
    "margin": {"l": 60, "r": 15, "t": 40, "b": 45},
    "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    "colorway": list(COLORS),
}
_DRAW = """\
const touch = window.matchMedia("(pointer: coarse)").matches;
const waiting = new Map();
for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
  waiting.set(document.getElementById(figure.id), figure);
}

function draw(place) {
  const {data, layout, bar} = waiting.get(place);
  waiting.delete(place);
  watcher.unobserve(place);
  // A finger that meets a plot scrolls the page.
  if (touch) layout.dragmode = false;
  const shown = bar && !touch ? "hover" : false;
  const options = {responsive: true, displaylogo: false, displayModeBar: shown};
  Plotly.newPlot(place, data, layout, options);
}

// What is out of sight is drawn when it comes near: a page may have hundreds of figures.
const watcher = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((e) => draw(e.target)),
  {rootMargin: "600px"});
for (const place of waiting.keys()) watcher.observe(place);
window.addEventListener("beforeprint", () => [...waiting.keys()].forEach(draw));
"""


def check_plotly(otherwise: str = "") -> None:
    """Raises if no page can be made here; called before anything is measured.

    Args:
        otherwise: What else can be done, for the message.

    Raises:
        UnsupportedError: plotly is missing; says which extra brings it.
    """
    try:
        import plotly  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "an HTML report needs plotly, which is not installed: pip install"
            f" 'flashrt_ros[{EXTRA}]', or pip install plotly{otherwise}"
        ) from error


class Page:
    """A page under construction: what is added is shown in that order.

    Args:
        title: Of the window.
        style: CSS beyond ``STYLE``.
    """

    def __init__(self, title: str, style: str = "") -> None:
        self.title, self.style = title, STYLE + style
        self._body: list[str] = []
        self._figures: list[dict[str, Any]] = []
        self._data: dict[str, object] = {}
        self._scripts: list[str] = []

    @property
    def figures(self) -> int:
        """Figures so far."""
        return len(self._figures)

    def add(self, markup: str) -> None:
        """Adds HTML; text in it has gone through ``escaped``."""
        self._body.append(markup)

    def figure(
        self, data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], bar: bool = True
    ) -> str:
        """Returns the markup of a place where plotly draws a figure.

        Args:
            data: plotly's traces.
            layout: plotly's layout; what it leaves open is as on the other figures.
            bar: Show plotly's buttons under the mouse.
        """
        name = f"figure-{len(self._figures) + 1}"
        full = {**_LAYOUT, **layout}
        for key in ("xaxis", "yaxis"):
            full[key] = {**_GRID, **full.get(key, {})}
        self._figures.append({"id": name, "data": data, "layout": full, "bar": bar})
        height = full.get("height", 450)
        return f'<div id="{name}" class="figure" style="height:{height}px"></div>'

    def script(self, text: str, **data: object) -> None:
        """Adds a script that runs after the figures are drawn.

        Args:
            text: JavaScript.
            data: JSON values, which it finds as the text of elements with these ids.
        """
        self._scripts.append(text)
        self._data.update(data)

    def text(self) -> str:
        """Returns the page.

        Raises:
            UnsupportedError: As ``check_plotly``.
        """
        check_plotly()
        from plotly.offline import get_plotlyjs

        data = {"figures": self._figures, **self._data}
        # Each script has names of its own.
        scripts = [get_plotlyjs(), *(f"(() => {{\n{t}}})();\n" for t in (_DRAW, *self._scripts))]
        allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
        policy = (
            f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline';"
            " img-src data: blob:"
        )
        return "\n".join(
            [
                "<!DOCTYPE html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light">',
                # Browsers ask for an icon unless they are given one.
                '<link rel="icon" href="data:,">',
                f"<title>{escaped(self.title)}</title><style>{self.style}</style>",
                f"<script>{scripts[0]}</script></head>",
                "<body>",
                *self._body,
                *(
                    f'<script type="application/json" id="{name}">{_json(value)}</script>'
                    for name, value in data.items()
                ),
                *(f"<script>{script}</script>" for script in scripts[1:]),
                "</body></html>\n",
            ]
        )

    def write(self, path: Path) -> None:
        """Writes the page.

        Raises:
            UnsupportedError: As ``check_plotly``.
            StorageError: The file cannot be written.
        """
        text = self.text()
        try:
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise StorageError(f"page {path}: cannot be written ({error})") from error


def table(lines: Sequence[Sequence[str]], name: str = "") -> str:
    """Returns a table whose first line is its head; it scrolls by itself where it is too wide.

    Columns of numbers stand at the right.

    Args:
        lines: Cells as plain text.
        name: CSS class.
    """
    columns = zip(*lines[1:], strict=True)
    numbers = [all(map(_NUMBER.match, cells)) for cells in columns] or [False] * len(lines[0])
    rows = "\n".join(_line(line, "td" if i else "th", numbers) for i, line in enumerate(lines))
    return f'<div class="wide"><table class="{name}">{rows}</table></div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Returns a table of names and values, all plain text."""
    rows = "\n".join(_line(pair, "td", (False, False)) for pair in pairs)
    return f'<div class="wide"><table class="facts">{rows}</table></div>'


def escaped(words: str) -> str:
    """Returns plain text as HTML, and as the markup that plotly reads in titles and names.

    Not for attributes: quotes stay, which plotly would show as ``&quot;``.
    """
    return html.escape(words, quote=False)


def titled(name: str, unit: str) -> str:
    """Returns a name with its unit, where it has one; plain text."""
    return f"{name} ({unit})" if unit else name


def _line(words: Sequence[str], tag: str, numbers: Sequence[bool]) -> str:
    cells = []
    for word, is_number in zip(words, numbers, strict=True):
        kind = " class=number" if is_number else " class=long" if len(word) > _LONG else ""
        cells.append(f"<{tag}{kind}>{escaped(word)}</{tag}>")
    return f"<tr>{''.join(cells)}</tr>"


def _digest(script: str) -> str:
    """What a content security policy calls a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: object) -> str:
    """JSON that neither ends the element in which it stands nor holds what is no JSON."""
    words = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return words.replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """The value with null in place of floats that are no numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
