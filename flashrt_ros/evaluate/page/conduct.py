"""Tables of runs as a whole: how chunks join, grippers, and what a reproduction found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashrt_ros.evaluate.page.tables import number
from flashrt_ros.page import escaped, facts, table

Run = Mapping[str, Any]
SPLICE = ("mean_difference", "max_difference", "step_at", "step_elsewhere", "recorded_step")


def splices(of_source: Sequence[Run]) -> str:
    """Returns how chunks follow one another, by joint and policy; empty without chunks."""
    chunked = [run for run in of_source if run.get("splice")]
    if not chunked:
        return ""
    head = ["joint", "policy", "unit", "mean difference", "largest", "step at a new chunk"]
    lines = [[*head, "elsewhere", "recorded"]]
    for element, joint in enumerate(chunked[0]["joints"]):
        for run in chunked:
            values = [number(run["splice"][key][element]) for key in SPLICE]
            lines.append([joint["name"], run["policy"], joint["unit"], *values])
    counts = [
        f"{run['policy']}: {run['splice']['chunks']:,} chunks, {run['splice']['splices']:,} joins"
        for run in chunked
    ]
    return (
        f"<h3>Joins of chunks</h3><p>{escaped('; '.join(counts))}. Differences are between the"
        " rows of the old and of the new chunk for the same moment; steps between successive"
        f" actions.</p>{table(lines)}"
    )


def grippers(of_source: Sequence[Run]) -> str:
    """Returns how far predicted and recorded state of grippers agree; empty without any."""
    lines = [["gripper", "policy", "agreement", "changes", "recorded changes", "threshold"]]
    for run in of_source:
        for each in run.get("gripper") or ():
            share = each["agreement"]
            agreement = number(None if share is None else 100 * share, "%")
            changes = [number(each[key]) for key in ("predicted_changes", "recorded_changes")]
            lines.append(
                [each["name"], run["policy"], agreement, *changes, number(each["threshold"])]
            )
    return f"<h3>Grippers</h3>{table(lines)}" if len(lines) > 1 else ""


def reproductions(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns what each reproduction found; empty where none was asked for."""
    found = report.get("reproduction") or []
    return [found] if isinstance(found, Mapping) else list(found)


def reproduction_words(found: Mapping[str, Any]) -> str:
    """Returns a reproduction in one line."""
    counts = {key: number(found[key]) for key in ("reproduced", "steps", "differing", "skipped")}
    return (
        f"{found['verdict']}: {counts['reproduced']} of {counts['steps']} actions bit for bit,"
        f" {counts['differing']} differ, {counts['skipped']} not compared ({found['source']})"
    )


def reproduction(found: Mapping[str, Any]) -> str:
    """Returns what a reproduction found: the first difference, gaps, what is another one here."""
    parts = [f"<h3>Verified reproduction of {escaped(found['source'])}</h3>"]
    if found["verbs"] or found["capsules"]:
        pairs = [*found["verbs"].items(), ("capsules with equal state", found["capsules"])]
        parts.append(facts((f"applied again: {name}", number(n)) for name, n in pairs))
    if found["first"]:
        parts.append(_difference(found["first"]))
    if found["changes"]:
        keys = ("what", "recorded", "here")
        lines = [["what is another one", "in the recording", "here"]]
        lines += [[str(each[key]) for key in keys] for each in found["changes"]]
        parts.append(table(lines))
    if found["gaps"]:
        lines = [["tick", "steps", "lost", "what exactly"]]
        for gap in found["gaps"]:
            counts = [number(gap["where"]["tick"]), number(gap["steps"])]
            lines.append([*counts, gap["lost"], gap["words"]])
        parts.append(f"<h4>Steps that could not be computed</h4>{table(lines)}")
    parts += [f'<p class="note">{escaped(words)}</p>' for words in found["remarks"]]
    return "\n".join(parts)


def _difference(first: Mapping[str, Any]) -> str:
    """The first step that came out otherwise: where, by how much, and from which messages."""
    where = first["where"]
    place = f"tick {where['tick']} (episode {where['episode']}, step {where['step']})"
    words = f"{place}: {first['what']}: {first['words']}"
    parts = [f"<h4>First difference</h4><p>{escaped(words)}</p>"]
    if first["recorded"] and first["computed"]:
        lines = [["", *(str(i) for i in range(len(first["recorded"])))]]
        for key in ("recorded", "computed"):
            # All digits: one bit may be all that differs.
            lines.append([key, *(number(v) if v is None else repr(v) for v in first[key])])
        parts.append(table(lines))
    if first["inputs"]:
        lines = [["from", "message", "xxh3", "in the recording"]]
        for each in first["inputs"]:
            found = "yes" if each["found"] else "no"
            lines.append([each["topic"], number(each["sequence"]), each["digest"], found])
        parts.append(table(lines))
    return "\n".join(parts)
