"""The page of an evaluation: verdicts, tables, and the plots of each recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashrt_ros.evaluate.fan import Fan
from flashrt_ros.evaluate.page import conduct, figures, tables
from flashrt_ros.evaluate.page.recording import Recording
from flashrt_ros.evaluate.page.series import Pack, share
from flashrt_ros.evaluate.track import Track
from flashrt_ros.page import Page, check_plotly, escaped, facts, table

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
    page = Page("flashrt_ros evaluate", (HERE / "style.css").read_text(encoding="utf-8"))
    page.add(_head(report))
    page.add(f"<h2>Policies and recordings</h2>{tables.policies(report)}{tables.sources(report)}")
    page.add(f"<h3>Runs</h3>{tables.runs(report)}")
    drawn, left = _chosen(report, tracks)
    count = sum(len(each.names) * (1 + 2 * len(drawn)) for group in drawn for each in group)
    pack = Pack(share(POINTS, count))
    specs = []
    for number, group in enumerate(drawn, start=1):
        words, spec = _recording(page, report, number, group, pack, CHUNK_VALUES // len(drawn))
        page.add(words)
        specs.append(spec)
    if not drawn:
        page.add('<p class="note">No series were kept, so nothing is drawn over time.</p>')
    elif left:
        names = ", ".join(tables.short(name, report) for name in left[:20])
        names += " and others" if len(left) > 20 else ""
        page.add(
            f'<p class="note">Drawn are the {len(drawn)} recordings with the largest errors. In'
            f" the tables only: {escaped(names)}.</p>"
        )
    for fan in fans[:MOST_FANS]:
        page.add(_fan(page, fan, report))
    if len(fans) > MOST_FANS:
        page.add(f'<p class="note">{len(fans) - MOST_FANS} more forks are not drawn.</p>')
    page.add(
        f'<p class="note">Plots over time hold {pack.kept:,} of {pack.given:,} points; of each'
        " span that was cut, the smallest and the largest value and any gap were kept. They zoom:"
        " drag across one, double-click for all of it.</p></main>"
    )
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
        lines.append(_verdict(False, f"{source['name']}: {source['error']}", "not evaluated"))
    defects = sum(len(source["defects"]) for source in report["sources"])
    lines += [_verdict(False, f"{defects:,} in the recordings", "defects")] if defects else []
    head = [("contract", str(report.get("contract") or "none"))]
    head += [("made", f"{report.get('created')} by flashrt_ros {report.get('flashrt_ros')}")]
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
        words = f"{len(passed):,} of {len(judged):,} conditions do not hold: {names}"
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


def _recording(
    page: Page,
    report: Mapping[str, Any],
    number: int,
    group: Sequence[Track],
    pack: Pack,
    chunk_values: int,
) -> tuple[str, dict[str, Any]]:
    """Returns the section of one recording, and what its script gets."""
    name, first = group[0].source, group[0]
    runs = [run for run in report["runs"] if run["source"] == name]
    order = {track.policy: k for k, track in enumerate(group)}
    runs = sorted((r for r in runs if r["policy"] in order), key=lambda r: order[r["policy"]])
    source = next((each for each in report["sources"] if each["name"] == name), None)
    limits = {i["name"]: i.get("limit_ms") for run in runs for i in run.get("inputs") or ()}
    view = Recording(number, group, limits, pack, chunk_values)
    plots, cards = [], []
    for element, (joint, unit) in enumerate(zip(first.names, first.units, strict=True)):
        plots.append(view.joint(element))
        beside = figures.horizon(page, runs, element, unit)
        cards.append(
            f'<div class="joint{" chunked" if beside else ""}"><h4>{escaped(joint)}'
            f" ({escaped(unit)})</h4>{_place(plots[-1], 230)}{beside}</div>"
        )
    words = [f"<h2>{escaped(tables.short(name, report))}</h2>"]
    if source is not None:
        words.append(tables.listed("Defects of the recording", source["defects"]))
        words.append(tables.listed("Topics", [_topic(each) for each in source.get("topics", ())]))
    if runs:
        words += [figures.error_bars(page, runs), tables.joints(runs)]
    words += [f'<section id="{view.id}"><h3>Recorded against predicted</h3>', view.controls()]
    words += [_BANDS, *cards]
    if latency := view.latency():
        plots.append(latency)
        dashed = ", dashed" if "limit" in latency else ""
        period = f"the control period is {tables.number(first.period_s * 1e3)} ms{dashed}"
        words.append(f"<h4>Latency of a step (ms); {period}</h4>")
        words += [_place(latency, 200)]
    if lanes := view.lanes():
        plots.append(lanes)
        words += ["<h3>Age of inputs</h3>", _AGES, _place(lanes, 60 + 44 * len(lanes["lanes"]))]
    if view.chunks_kept < view.chunks_given:
        kept = f"{view.chunks_kept:,} of {view.chunks_given:,} chunks are in the page."
        words.append(f'<p class="note">{kept}</p>')
    words.append("</section>")
    if lanes:
        words += [tables.inputs(runs) if runs else "", tables.stale_spans(first)]
    words += [conduct.splices(runs), conduct.grippers(runs)]
    words += ["<h3>Episodes</h3>", tables.episodes(group), tables.faults(group)]
    remarks = [f"{track.policy}: {remark}" for track in group for remark in track.remarks]
    words.append(tables.listed("Remarks", remarks))
    return "\n".join(words), view.spec(plots)


_BANDS = '<p class="note">Grey bands: no step was made. Dotted lines: a new episode.</p>'
_AGES = (
    '<p class="legend ages"><span><i style="background:#e6f0fa"></i>fresh</span>'
    '<span><i style="background:#2f6fb0"></i>oldest that was taken</span>'
    '<span><i style="background:#d55e00"></i>stale</span>'
    '<span><i style="background:#333"></i>no message yet</span></p>'
)


def _place(plot: Mapping[str, Any], height: int) -> str:
    return f'<div id="{plot["id"]}" class="figure" style="height:{height}px"></div>'


def _topic(topic: Mapping[str, Any]) -> str:
    return f"{topic['name']}: {tables.number(topic.get('messages'))} of {topic['type']}"


def _fan(page: Page, fan: Fan, report: Mapping[str, Any]) -> str:
    """Returns the section of one fork."""
    cards = [
        f"<div><h4>{escaped(name)} ({escaped(unit)})</h4>{figures.fan(page, fan, element)}</div>"
        for element, (name, unit) in enumerate(zip(fan.names, fan.units, strict=True))
    ]
    lines = [["joint", "unit", "apart from step", "apart from (s)", "largest spread", "last"]]
    for joint in fan.as_json()["joints"]:
        keys = ("diverges_step", "diverges_s", "spread_max", "spread_end")
        lines.append([joint["name"], joint["unit"], *(tables.number(joint[k]) for k in keys)])
    return (
        f"<section><h2>Fork of {escaped(fan.policy)} at step {fan.index:,} of"
        f" {escaped(tables.short(fan.source, report))}</h2><p>{len(fan.branches)} branches from"
        " one state, over the same recorded observations; their spread shaded, the recorded"
        " command dashed.</p>"
        f"{figures.fan_legend(fan)}"
        f'<div class="fans">{"".join(cards)}</div>{table(lines)}{tables.fan(fan)}</section>'
    )
