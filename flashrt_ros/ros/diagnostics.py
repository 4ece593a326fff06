"""What ``/diagnostics`` says: an entry for motion, timing, storage, each input and output."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from flashrt_ros.contract import Contract, Sample
from flashrt_ros.contract.observing import NONE_YET, TOO_EARLY
from flashrt_ros.contract.sampler import CAMERA_INFO
from flashrt_ros.ros.arrivals import GAP
from flashrt_ros.ros.intake import InputFigures, Intake
from flashrt_ros.ros.messages import time_of
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.plan_timing import PlanTiming
from flashrt_ros.ros.records import StatusRecord
from flashrt_ros.ros.relay import Relay
from flashrt_ros.ros.stop_guard import StopGuard
from flashrt_ros.ros.timing import Timing
from flashrt_ros.ros.watchdog import Watchdog
from flashrt_ros.ros.worker import Loss

SKEW_MS = 250.0
"""Header clocks of two inputs that lie farther apart than transport explains."""
PATIENCE_MS = 250.0
"""So long a message after a verb may take to come on a busy machine before that is an error."""
SILENT_S = 3.0
"""A topic without messages for this long is shown with its age even if nothing needs it now."""


class Level(enum.IntEnum):
    """Values of ``level``."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass
class Entry:
    """One ``DiagnosticStatus`` without node and hardware names."""

    name: str
    level: Level = Level.OK
    message: str = "ok"
    values: dict[str, str] = field(default_factory=dict)

    def worsen(self, level: Level, message: str) -> None:
        """Raises the level and adds words."""
        self.message = message if self.level is Level.OK else f"{self.message}; {message}"
        self.level = max(self.level, level)


def motion_entry(status: StatusRecord) -> Entry:
    """Mode and why the node holds, or why the last transition failed."""
    entry = Entry("motion", message=status.mode.name.lower())
    if status.mode in (Mode.HOLDING, Mode.STOPPED):
        entry.level = Level.ERROR
    elif status.mode in (Mode.WAITING, Mode.PAUSED) or (
        status.reason and status.mode is not Mode.RUNNING
    ):
        entry.level = Level.WARN
    if status.reason:
        entry.message += f": {status.reason}"
    if status.dry_run:
        entry.message += " (dry run: commands are not published)"
    for name in ("policy", "device", "tick", "step", "episode", "generation", "task", "capsule"):
        entry.values[name] = str(getattr(status, name))
    return entry


def timing_entry(timing: Timing, period_ms: float, missed_before: int) -> Entry:
    """Jitter, latencies and missed periods; a warning if some were missed since last time."""
    entry = Entry("control period")
    late = timing.late_ms.percentiles(50, 99, 100)
    latency = timing.latency_ms.percentiles(50, 99, 100)
    verbs = timing.verb_ms.percentiles(50, 99, 100)
    entry.values = {
        "period_ms": f"{period_ms:.3f}",
        "measured period_ms p1 p50 p99": _row(timing.period_ms.percentiles(1, 50, 99)),
        "jitter_ms p99": f"{_jitter(timing, period_ms):.3f}",
        "late_ms p50 p99 max": _row(late),
        "observation_age_ms p50 p99 max": _row(timing.observation_age_ms.percentiles(50, 99, 100)),
        "latency_ms p50 p99 max": _row(latency),
        "verb_ms p50 p99 max": _row(verbs),
        "missed periods": str(timing.missed),
    }
    if (new := timing.missed - missed_before) > 0:
        entry.worsen(Level.WARN, f"{new} control periods missed: a step or verb took too long")
    return entry


def _jitter(timing: Timing, period_ms: float) -> float:
    """How far the measured period is from the one that was asked for, in 99 of 100 periods."""
    low, high = timing.period_ms.percentiles(0.5, 99.5)
    return max(high - period_ms, period_ms - low)


def watchdog_entry(watchdog: Watchdog) -> Entry:
    """How often another thread had to act for the control thread, and how late that was."""
    return Entry(
        "watchdog",
        values={
            "late control steps": str(watchdog.barks),
            "late_ms max": f"{watchdog.late_ms:.1f}",
        },
    )


def plans_entry(plans: PlanTiming, late_before: int) -> Entry:
    """Plans beside; a warning if control steps had to wait for one since last time."""
    entry = Entry("plans")
    entry.values = {
        "inference_delay": str(plans.inference_delay),
        "inference_delay p50 p99 max": _row(plans.delay_periods.percentiles(50, 99, 100)),
        "latency_ms p50 p99 max": _row(plans.took_ms.percentiles(50, 99, 100)),
        "plan_ahead": str(plans.plan_ahead),
        "rows left at begin p50 min": _row(plans.rows_left.percentiles(50, 0)),
        "adopted": str(plans.adopted),
        "discarded": str(plans.discarded),
        "late": str(plans.late),
    }
    if (new := plans.late - late_before) > 0:
        entry.worsen(
            Level.WARN,
            f"{new} control periods without an action: a plan came later than its chunk allows:"
            f" {plans.budget()}",
        )
    return entry


def threads_entry(losses: Mapping[str, tuple[bool, Loss]]) -> Entry:
    """Threads of ours that failed: an error at first, a warning later, if they run again."""
    entry = Entry("threads")
    for name, (fresh, loss) in losses.items():
        entry.worsen(Level.ERROR if fresh else Level.WARN, loss.words)
        entry.values[f"failures of {name}"] = str(loss.count)
    return entry


def storage_entry(status: StatusRecord) -> Entry:
    """Capsules and their bytes."""
    entry = Entry("capsules", message=f"{status.capsules} capsules")
    entry.values = {
        "bytes_used": str(status.bytes_used),
        "bytes_budget": str(status.bytes_budget),
        "state_id": status.state_id,
        "exec_id": status.exec_id,
    }
    return entry


def stop_entry(guard: StopGuard, publishers: int) -> Entry:
    """The stop input: what it objects to, and what it has done."""
    entry = Entry(f"stop input {guard.stop.topic}")
    if objection := guard.objection:
        entry.worsen(Level.ERROR, objection)
    elif not publishers:
        entry.worsen(Level.WARN, "no publisher: only the services stop the robot")
    entry.values = {
        "mode": guard.stop.mode,
        "received": str(guard.received),
        "age_ms": f"{guard.age_ms:.1f}",
        "stops": str(guard.stops),
        "last stop, ROS clock, ns": str(guard.heard_stamp_ns),
        "publishers": str(publishers),
    }
    return entry


def input_entry(
    figures: InputFigures,
    topic: str,
    sample: Sample | None,
    incompatible: str,
    publishers: int,
    now_ns: int,
    active: bool,
) -> Entry:
    """One input topic: faults, age, rate, jitter, QoS.

    Args:
        figures: What arrived.
        topic: Name in the graph.
        sample: What the control thread saw last; None while inactive.
        incompatible: QoS policy that a publisher does not offer; empty where all is well.
        publishers: How many there are.
        now_ns: Steady clock.
        active: Whether the node is active: only then a lack is an error.
    """
    entry = Entry(f"input {topic}")
    lack = Level.ERROR if active else Level.WARN
    if not figures.needed:
        lack = Level.OK
    if incompatible:
        entry.worsen(
            Level.ERROR,
            f"incompatible QoS: a publisher of {topic} does not offer the {incompatible} that the "
            "contract asks for; change `qos` in the contract",
        )
    last_ns = figures.arrivals.last_ns
    if not last_ns:
        hint = "no publisher" if publishers == 0 else f"{publishers} publishers"
        optional = "" if figures.needed else "; optional: no fault"
        entry.worsen(lack, f"no message ({hint}; expected {figures.type}{optional})")
    for stamp in sample.stamps if sample is not None else ():
        if stamp.topic == figures.topic and stamp.fault and last_ns:
            # After a verb only what comes next counts: no fault while that is not due.
            level = Level.OK if _due(figures, stamp.fault, now_ns) else Level.ERROR
            entry.worsen(level, f"{stamp.observation}: {stamp.fault}")
        if stamp.topic == figures.topic and not stamp.present and not stamp.fault:
            entry.values[f"{stamp.observation}"] = "absent, its fill value is used"
    if sample is None and figures.fault:
        entry.worsen(Level.ERROR, figures.fault)
    age_ms = (now_ns - last_ns) / 1e6 if last_ns else math.nan
    # What a camera says of itself may come once.
    if last_ns and age_ms > SILENT_S * 1e3 and figures.type != CAMERA_INFO:
        level = lack if sample is None else min(lack, Level.WARN)
        entry.worsen(level, f"silent for {age_ms / 1e3:.0f} s")
    for words in figures.notices:
        entry.worsen(Level.WARN if "unstamped" in words else Level.OK, words)
    entry.values |= _rates(figures, age_ms)
    entry.values["publishers"] = str(publishers)
    return entry


def _compare_clocks(entries: Sequence[Entry], intake: Intake) -> None:
    """Warns of publishers whose header clocks do not agree, as on machines without time sync."""
    figures = intake.figures.values()
    behind = [
        (each.arrivals.behind_ms, entry) for each, entry in zip(figures, entries, strict=True)
    ]
    stamped = sorted((ms, entry.name) for ms, entry in behind if not math.isnan(ms))
    if len(stamped) < 2:
        return
    (least, ahead), (most, _) = stamped[0], stamped[-1]
    for ms, entry in behind:
        if not math.isnan(ms):
            entry.values["header clock behind the foremost_ms"] = f"{ms - least:.1f}"
        if most - least > SKEW_MS and ms == most:
            entry.worsen(
                Level.WARN,
                f"its header stamps are {most - least:.0f} ms behind those of {ahead}: the clocks "
                "of their publishers differ; synchronise them (ages are not judged by stamps)",
            )


def _due(figures: InputFigures, fault: str, now_ns: int) -> bool:
    """Whether the next message is about to come, and nothing is wrong but that it has not."""
    due_ms = max(GAP * figures.arrivals.usual_ms, PATIENCE_MS)
    waits = (now_ns - figures.arrivals.last_ns) / 1e6 < due_ms
    return waits and not figures.fault and fault in (NONE_YET, TOO_EARLY)


def _rates(figures: InputFigures, age_ms: float) -> dict[str, str]:
    arrivals = figures.arrivals
    low, middle, high = arrivals.interval_ms.percentiles(1, 50, 99)
    return {
        "type": figures.type,
        "received": str(arrivals.received),
        "decoded": str(figures.received),
        "faulty": str(figures.faulty),
        "jumps back in time": str(figures.jumps),
        "age_ms": f"{age_ms:.1f}",
        "rate_hz": f"{1e3 / middle:.1f}" if middle > 0 else "nan",
        "jitter_ms": f"{high - low:.1f}",
        "gaps": str(arrivals.gaps),
        "longest_gap_ms": f"{arrivals.longest_gap_ms:.1f}",
        "lost": str(arrivals.lost),
        "missing by header stamps": str(arrivals.skipped),
        "superseded by a newer one": str(arrivals.superseded),
    }


def _row(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


class Diagnostics:
    """Collects the entries of one node.

    Attributes:
        incompatible: Name of an input or output as the contract writes it to the QoS policy that
            does not fit.
    """

    def __init__(self, node_name: str) -> None:
        """Begins without findings.

        Args:
            node_name: Full name of the node; every entry begins with it.
        """
        self.incompatible: dict[str, str] = {}
        self._node_name = node_name
        self._missed = 0
        self._late = 0
        self._limited = 0
        self._relay_missed = 0

    def reset(self) -> None:
        """Forgets findings, at clean-up."""
        self.incompatible.clear()
        self._missed = 0
        self._late = 0
        self._limited = 0
        self._relay_missed = 0

    def inputs(
        self,
        intake: Intake,
        sample: Sample | None,
        resolved: Mapping[str, str],
        count_publishers: Callable[[str], int],
        now_ns: int,
        active: bool,
    ) -> list[Entry]:
        """An entry for each input topic."""
        entries = [
            input_entry(
                figures,
                resolved.get(topic, topic),
                sample if active else None,
                self.incompatible.get(topic, ""),
                count_publishers(topic),
                now_ns,
                active,
            )
            for topic, figures in intake.figures.items()
        ]
        _compare_clocks(entries, intake)
        trailing = intake.sampler.trailing_bytes()
        for entry, topic in zip(entries, intake.figures, strict=True):
            entry.values["trailing_bytes"] = str(trailing[topic])
        if intake.overflow:
            entry = Entry("intake")
            entry.worsen(Level.WARN, f"{intake.overflow} messages dropped: too many to decode")
            entries.append(entry)
        return entries

    def outputs(self, contract: Contract, topic_name: Callable[[str], str]) -> list[Entry]:
        """An entry for each output topic."""
        entries = []
        for output in contract.actions:
            topic = topic_name(output.topic)
            entry = Entry(f"output {topic}", values={"type": output.type})
            if policy := self.incompatible.get(output.topic, ""):
                entry.worsen(
                    Level.ERROR,
                    f"incompatible QoS: a subscriber of {topic} asks for {policy} that the "
                    "contract does not offer; change `qos` in the contract",
                )
            entries.append(entry)
        return entries

    def limits(self, limited: int, words: str) -> Entry:
        """Commands changed by limits; remembers how many so far.

        Args:
            limited: Such commands since configure.
            words: What was changed in the last one.
        """
        entry = Entry("limits", values={"limited commands": str(limited)})
        if (new := limited - self._limited) > 0:
            entry.worsen(Level.WARN, f"{new} commands limited, the last one: {words}")
        self._limited = limited
        return entry

    def timing(self, timing: Timing, period_ms: float) -> Entry:
        """The control period; remembers how many periods were missed so far."""
        entry = timing_entry(timing, period_ms, self._missed)
        self._missed = timing.missed
        return entry

    def plans(self, plans: PlanTiming) -> Entry:
        """Plans beside; remembers how many periods had to wait so far."""
        entry = plans_entry(plans, self._late)
        self._late = plans.late
        return entry

    def relay(self, relay: Relay) -> Entry:
        """Samples between control steps; remembers how many were missed so far."""
        entry = Entry("relay")
        entry.values = {
            "samples": str(relay.samples),
            "missed samples": str(relay.missed),
            "late_ms p50 p99 max": _row(relay.late_ms.percentiles(50, 99, 100)),
        }
        if (new := relay.missed - self._relay_missed) > 0:
            entry.worsen(Level.WARN, f"{new} samples missed between control steps")
        self._relay_missed = relay.missed
        return entry

    def message(self, entries: list[Entry], hardware: str, stamp_ns: int) -> DiagnosticArray:
        """The ROS message."""
        array = DiagnosticArray()
        array.header.stamp = time_of(stamp_ns)
        array.status = [
            DiagnosticStatus(
                level=bytes([entry.level]),
                name=f"{self._node_name}: {entry.name}",
                message=entry.message,
                hardware_id=hardware,
                values=[KeyValue(key=key, value=value) for key, value in entry.values.items()],
            )
            for entry in entries
        ]
        return array
