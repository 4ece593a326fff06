"""The part of the page that shows one recording over time: what `view.js` draws, and its controls.

T control steps, A elements of the action, C chunks of H rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashrt_ros.evaluate.page.series import Pack, bins, packed, spans, stale
from flashrt_ros.evaluate.track import Track
from flashrt_ros.page import COLORS, escaped, titled

RECORDED, MEASURED = "#222222", "#9a9a9a"
MOST_BANDS = 200
MOST_COLUMNS = 4000
"""Spans of time that a lane is cut into."""
LARGEST_TICK = 2**31 - 1
SPANS_S = (2, 5, 10, 30, 60, 300)
PERIOD_SHARE = 0.2
"""The control period is drawn where a step took more than this share of it."""
JUMP_STEPS = 10
"""A line is broken where the next step is further away than so many periods."""


class Recording:
    """What the tracks of several policies over one recording become.

    Args:
        number: Of the recording on its page, from 1.
        tracks: One a policy, all of one source.
        limits_ms: Largest age by input; None: no limit.
        pack: Where the page's series go.
        chunk_values: Values of chunks that may go into the page.
    """

    def __init__(
        self,
        number: int,
        tracks: Sequence[Track],
        limits_ms: Mapping[str, float | None],
        pack: Pack,
        chunk_values: int,
    ) -> None:
        self.id = f"recording-{number}"
        self.tracks, self.limits_ms, self.pack = tracks, limits_ms, pack
        first = tracks[0]
        self.start_ns = min(int(t.time_ns_T[0]) for t in tracks if len(t.time_ns_T))
        end_ns = max(int(t.time_ns_T[-1]) for t in tracks if len(t.time_ns_T))
        self.end_s = max((end_ns - self.start_ns) / 1e9, first.period_s)
        # Times are whole ticks of a tenth of a millisecond, longer only beyond 59 hours.
        self.tick_s = max(1e-4, self.end_s / LARGEST_TICK)
        self.chunk_values = chunk_values
        self.has_chunks = False
        self.is_measured = bool(np.isfinite(first.state_TA).any())
        self.chunks_kept, self.chunks_given = 0, 0
        series = [s for t in tracks for s in (t.recorded_TA, t.predicted_TA, t.state_TA)]
        self.has_values = any(np.isfinite(values_TA).any() for values_TA in series)
        self._longer = [max(tracks, key=lambda t: len(t.time_ns_T))]

    def joint(self, element: int) -> dict[str, Any]:
        """Returns the plot of one element, as JSON."""
        first = self.tracks[0]
        recorded = self._line(
            first, first.recorded_TA[:, element], "recorded", RECORDED, group="recorded"
        )
        values, errors, chunks = [recorded | {"width": 1.5}], [], []
        if self.is_measured:
            state_T = first.state_TA[:, element]
            values.insert(0, self._line(first, state_T, "measured", MEASURED, "measured"))
        for k, track in enumerate(self.tracks):
            color, group = COLORS[k % len(COLORS)], f"policy-{k}"
            predicted_T, sent_T = track.predicted_TA[:, element], track.sent_TA[:, element]
            recorded_T = track.recorded_TA[:, element]
            values.append(self._line(track, predicted_T, track.policy, color, group))
            clipped_T = np.isfinite(sent_T) & (np.abs(sent_T - predicted_T) > 1e-9)
            if clipped_T.any():
                limited_T = np.where(clipped_T, sent_T, np.nan)
                name = f"{track.policy}, after limits"
                line = self._line(track, limited_T, name, color, group)
                values.append(line | {"width": 3, "dash": "dot"})
            errors.append(self._line(track, predicted_T - recorded_T, track.policy, color, group))
            chunks += self._chunks(track, element, color, group)
        unit = first.units[element]
        return {
            "id": f"{self.id}-joint-{element}",
            "kind": "curves",
            "y": {"values": escaped(unit), "errors": escaped(titled("error", unit))},
            "lines": {"values": values, "errors": errors},
            "chunks": chunks,
        }

    def latency(self) -> dict[str, Any] | None:
        """Returns the plot of latencies, with the period if near, as JSON; None without any."""
        lines = [
            self._line(track, track.latency_ms_T, track.policy, COLORS[k % 8], f"policy-{k}")
            for k, track in enumerate(self.tracks)
            if np.isfinite(track.latency_ms_T).any()
        ]
        if not lines:
            return None
        plot = {"id": f"{self.id}-latency", "kind": "curves", "y": {"values": "ms"}}
        worst_ms = max(float(np.nanmax(t.latency_ms_T, initial=0.0)) for t in self.tracks)
        period_ms = self.tracks[0].period_s * 1e3
        # Far below it, its line would press the curves flat.
        limit = {"limit": period_ms} if worst_ms > PERIOD_SHARE * period_ms else {}
        return plot | {"lines": {"values": lines}} | limit

    def lanes(self) -> dict[str, Any] | None:
        """Returns the ages of the inputs as lanes, as JSON; None without inputs."""
        track = self._longer[0]
        if not track.ages_ms:
            return None
        starts = bins(len(track.time_ns_T), MOST_COLUMNS)
        ticks = self._ticks(track)
        period = round(track.period_s / self.tick_s)
        edges = np.append(ticks[starts], ticks[-1] + period)
        lanes = []
        for name, ages_T in reversed(track.ages_ms.items()):  # drawn from below
            limit_ms = self.limits_ms.get(name)
            stale_T = stale(track, name)
            fresh_ms = float(np.nanmax(ages_T, initial=0.0, where=~stale_T))
            scale_ms = limit_ms or fresh_ms or 1.0
            words = f"limit {scale_ms:g} ms" if limit_ms else f"up to {scale_ms:,.0f} ms"
            # Of a span its worst: an age or, where a message is missing, NaN; stale ones negative.
            oldest = np.maximum.reduceat(ages_T, starts)
            is_stale = np.maximum.reduceat(stale_T, starts)
            lanes.append(
                {
                    "name": escaped(name),
                    "title": f"{escaped(name)}, {words}",
                    "scale_ms": scale_ms,
                    "ages": packed(np.where(is_stale, -oldest, oldest)),
                }
            )
        self.pack.given += sum(len(ages_T) for ages_T in track.ages_ms.values())
        self.pack.kept += len(starts) * len(lanes)
        edges_words = packed(edges, "<i4")
        return {"id": f"{self.id}-lanes", "kind": "lanes", "edges": edges_words, "lanes": lanes}

    def spec(self, plots: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns what ``view.js`` gets of this recording."""
        track = self._longer[0]
        ticks_s = self._ticks(track) * self.tick_s
        changes = np.flatnonzero(np.diff(track.episode_T)) + 1
        held = sorted(spans(~track.stepped_T), key=lambda span: span[0] - span[1])[:MOST_BANDS]
        return {
            "id": self.id,
            "tick_s": self.tick_s,
            "end_s": self.end_s,
            "marks": [round(float(s), 4) for s in ticks_s[changes][:MOST_BANDS]],
            "bands": [
                [round(float(ticks_s[a]), 4), round(float(ticks_s[b] + track.period_s), 4)]
                for a, b in held
            ],
            "plots": list(plots),
        }

    def controls(self) -> str:
        """Returns the markup of slider, span, legend and switches."""
        shown = [n for n in SPANS_S if n < self.end_s]
        options = "".join(f'<option value="{n}">{n} s</option>' for n in shown)
        swatches = [("recorded", "recorded", RECORDED)]
        swatches += [("measured", "measured", MEASURED)] if self.is_measured else []
        swatches += [
            (f"policy-{k}", track.policy, COLORS[k % len(COLORS)])
            for k, track in enumerate(self.tracks)
        ]
        legend = "".join(
            f'<label><input type="checkbox" data-group="{group}" checked>'
            f'<i style="background:{color}"></i>{escaped(name)}</label>'
            for group, name, color in swatches
        )
        chunks = '<label><input type="checkbox" class="chunks" checked>chunks</label>'
        return (
            '<div class="controls"><div class="bar">'
            '<label class="slide">from <input class="from" type="range" min="0" max="1000"'
            ' value="0" aria-label="start of the span shown"></label>'
            '<output class="now"></output>'
            f'<label>span <select class="span"><option value="0">all</option>{options}'
            '<option value="other" hidden>other</option></select></label>'
            '<label>show <select class="what"><option value="values">values</option>'
            '<option value="errors">errors</option></select></label></div>'
            f'<div class="legend">{legend}{chunks if self.has_chunks else ""}</div></div>'
        )

    def _ticks(self, track: Track) -> np.ndarray:
        ticks: np.ndarray = np.rint((track.time_ns_T - self.start_ns) / 1e9 / self.tick_s)
        return ticks.astype(np.int32)

    def _line(
        self, track: Track, values_T: np.ndarray, name: str, color: str, group: str
    ) -> dict[str, Any]:
        ticks = self._ticks(track)
        jumps = np.flatnonzero(np.diff(ticks) * self.tick_s > JUMP_STEPS * track.period_s) + 1
        if len(jumps):
            ticks = np.insert(ticks, jumps, ticks[jumps - 1])
            values_T = np.insert(values_T, jumps, np.nan)
        line = {"name": escaped(name), "color": color, "dash": "solid", "width": 1.25}
        return line | {"group": group} | self.pack.series(ticks, values_T)

    def _chunks(self, track: Track, element: int, color: str, group: str) -> list[dict[str, Any]]:
        c, h, a = track.chunks_CHA.shape
        if not c or h < 2:
            return []
        every = -(-c * h * a * len(self.tracks) // max(1, self.chunk_values))
        kept = np.arange(0, c, every)
        if element == 0:
            self.chunks_given += max(c, track.chunks)
            self.chunks_kept += len(kept)
        self.has_chunks = True
        starts = np.searchsorted(track.index_T, track.chunk_start_C[kept])
        starts = np.minimum(starts, len(track.index_T) - 1)
        return [
            {
                "name": escaped(track.policy),
                "color": color,
                "group": group,
                "horizon": h,
                "period_s": track.period_s,
                "starts": packed(self._ticks(track)[starts], "<i4"),
                "rows": packed(track.chunks_CHA[kept, :, element]),
            }
        ]
