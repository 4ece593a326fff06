"""The page of an evaluation: verdicts, tables, and the plots of each recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashrt_ros.evaluate.fan import Fan
from flashrt_ros.evaluate.own_files import TITLE
from flashrt_ros.evaluate.page import conduct, sections, tables
from flashrt_ros.evaluate.page.series import Pack, share
from flashrt_ros.evaluate.track import Track
from flashrt_ros.page import Page, check_plotly, escaped, facts

POINTS = 400_000
"""Of all series over time: some 4 MB of the page, beside plotly.js's 5."""
CHUNK_VALUES = 300_000
"""Of all chunks: some 2 MB."""
MOST_RECORDINGS = 8
"""That are drawn; the others are in the tables."""
MOST_FANS = 8
MOST_VERDICTS = 20
HERE = Path(__file__).parent


def check() -> None:
    """Raises if no page can be made here; called before a run.

    Raises:
        UnsupportedError: plotly is missing; says which extra brings it.
    """
    check_plotly("; or write --json, which needs nothing")


def write_page(
    path: Path, report: Mapping[str, Any], tracks: Sequence[Track], fans: Sequence[Fan] = ()
) -> None:
    """Writes the page.

    Args:
        path: The file.
        report: As in the JSON file.
        tracks: One a policy and recording; those whose recordings are not drawn may be missing.
        fans: To be drawn.

    Raises:
        UnsupportedError: As ``check``.
        StorageError: The file cannot be written.
    """
    page = Page(TITLE, (HERE / "style.css").read_text(encoding="utf-8"))
    page.add(_head(report))
    page.add(f"<h2>Policies and recordings</h2>{tables.policies(report)}{tables.sources(report)}")
    if report["runs"]:
        page.add(f"<h3>Runs</h3>{tables.runs(report)}")
    drawn, left = _chosen(report, tracks)
    # Recorded and measured, and of each policy predictions, errors, and a latency in all.
    count = sum(len(group[0].names) * (2 + 2 * len(group)) + len(group) for group in drawn)
    pack = Pack(share(POINTS, count))
    specs = []
    for number, group in enumerate(drawn, start=1):
        words, spec = sections.recording(
            page, report, number, group, pack, CHUNK_VALUES // len(drawn)
        )
        page.add(words)
        specs.append(spec)
    again = bool(conduct.reproductions(report))
    if not drawn and not again:
        page.add('<p class="note">No series were kept, so nothing is drawn over time.</p>')
    elif left:
        names = ", ".join(tables.short(name, report) for name in left[:20])
        names += " and others" if len(left) > 20 else ""
        page.add(
            f'<p class="note">Drawn are the {len(drawn)} recordings with the largest errors. In'
            f" the tables only: {escaped(names)}.</p>"
        )
    for fan in fans[:MOST_FANS]:
        page.add(sections.fork(page, fan, report))
    if len(fans) > MOST_FANS:
        page.add(f'<p class="note">{len(fans) - MOST_FANS} more forks are not drawn.</p>')
    if pack.given:
        page.add(
            f'<p class="note">Plots over time hold {pack.kept:,} of {pack.given:,} points; of each'
            " span that was cut, the smallest and the largest value and any gap were kept. They"
            " zoom: drag across one, double-click for all of it.</p>"
        )
    page.add("</main>")
    if specs:
        script = (HERE / "view.js").read_text(encoding="utf-8")
        page.script(script, series={"times": pack.times(), "recordings": specs})
    page.write(path)


def _head(report: Mapping[str, Any]) -> str:
    lines = _thresholds(report.get("thresholds") or ())
    for found in conduct.reproductions(report):
        good = found["verdict"] == "reproduced"
        lines.append(_verdict(good, conduct.reproduction_words(found), "reproduction"))
    errors = [source for source in report["sources"] if source.get("error")]
    for source in errors[:MOST_VERDICTS]:
        words = source["error"].removeprefix(f"{source['name']}: ")
        lines.append(_verdict(False, f"{source['name']}: {words}", "not evaluated"))
    defects = sum(len(source["defects"]) for source in report["sources"])
    lines += [_verdict(False, f"{defects:,} in the recordings", "defects")] if defects else []
    head = [("contract", str(report.get("contract") or "none"))]
    head += [("made", f"{report.get('created')} by flashrt_ros {report.get('flashrt_ros')}")]
    if report["runs"]:
        head += [("hash over all actions", str(report.get("digest") or ""))]
    return (
        f'<main><h1>flashrt_ros evaluate</h1>{facts(head)}<ul class="verdicts">'
        f"{''.join(lines)}</ul>"
        + "".join(map(conduct.reproduction, conduct.reproductions(report)))
    )


def _thresholds(judged: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each that failed, and how many did not."""
    lines = []
    failed = [each for each in judged if not each["passed"]]
    for each in failed[:MOST_VERDICTS]:
        where = f"{each['policy']}, {each['source']}"
        found = f"{each['expression']}: found {tables.number(each['value'])} ({where})"
        lines.append(_verdict(False, found, "failed"))
    if len(failed) > MOST_VERDICTS:
        lines.append(_verdict(False, f"{len(failed) - MOST_VERDICTS:,} more", "failed"))
    if passed := [each["expression"] for each in judged if each["passed"]]:
        names = ", ".join(dict.fromkeys(passed))
        words = f"{len(passed):,} of {len(judged):,} thresholds: {names} did not happen"
        lines.append(_verdict(True, words, "passed"))
    return lines


def _verdict(good: bool, words: str, title: str) -> str:
    kind = "good" if good else "bad"
    return f'<li class="verdict {kind}"><b>{title}</b>: {escaped(words)}</li>'


def _chosen(
    report: Mapping[str, Any], tracks: Sequence[Track]
) -> tuple[list[list[Track]], list[str]]:
    """Returns the tracks of the recordings that are drawn, and the names of the others."""
    groups: dict[str, list[Track]] = {}
    for track in tracks:
        if track.steps:
            groups.setdefault(track.source, []).append(track)
    errors: dict[str, float] = {}
    for run in report["runs"]:
        found = [joint["mae"] for joint in run["joints"] if joint.get("mae") is not None]
        errors[run["source"]] = max(errors.get(run["source"], 0.0), *found, 0.0)
    worst = sorted(groups, key=lambda name: -errors.get(name, 0.0))[:MOST_RECORDINGS]
    drawn = [groups[name] for name in groups if name in worst]
    return drawn, [name for name in errors if name not in worst]
