"""The sections of the page: one a recording, one a fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashrt_ros.evaluate.fan import Fan
from flashrt_ros.evaluate.page import conduct, figures, tables
from flashrt_ros.evaluate.page.recording import Recording
from flashrt_ros.evaluate.page.series import Pack
from flashrt_ros.evaluate.track import Track
from flashrt_ros.page import Page, escaped, table, titled

_BANDS = '<p class="note">Grey bands: no step was made. Dotted lines: a new episode.</p>'
_NO_VALUES = "<p>No step was made, and nothing was recorded to compare with.</p>"
_AGES = (
    '<p class="legend ages"><span><i style="background:#e6f0fa"></i>fresh</span>'
    '<span><i style="background:#2f6fb0"></i>oldest that was taken</span>'
    '<span><i style="background:#d55e00"></i>stale</span>'
    '<span><i style="background:#333"></i>no message yet</span></p>'
)


def recording(
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
    named = enumerate(zip(first.names, first.units, strict=True))
    for element, (joint, unit) in named if view.has_values else ():
        plots.append(view.joint(element))
        beside = figures.horizon(page, runs, element, unit)
        cards.append(
            f'<div class="joint{" chunked" if beside else ""}">'
            f"<h4>{escaped(titled(joint, unit))}</h4>{_place(plots[-1], 230)}{beside}</div>"
        )
    words = [f"<h2>{escaped(tables.short(name, report))}</h2>"]
    if source is not None:
        words.append(tables.listed("Defects of the recording", source["defects"]))
        words.append(tables.listed("Notes", source.get("notes") or ()))
        words.append(tables.listed("Topics", [_topic(each) for each in source.get("topics", ())]))
    if runs:
        words += [figures.error_bars(page, runs), tables.joints(runs)]
    words += [f'<section id="{view.id}"><h3>Recorded against predicted</h3>', view.controls()]
    words += [_BANDS, *cards] if cards else [_NO_VALUES]
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


def _place(plot: Mapping[str, Any], height: int) -> str:
    return f'<div id="{plot["id"]}" class="figure" style="height:{height}px"></div>'


def _topic(topic: Mapping[str, Any]) -> str:
    return f"{topic['name']}: {tables.number(topic.get('messages'))} of {topic['type']}"


def fork(page: Page, fan: Fan, report: Mapping[str, Any]) -> str:
    """Returns the section of one fork."""
    cards = [
        f"<div><h4>{escaped(titled(name, unit))}</h4>{figures.fan(page, fan, element)}</div>"
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
