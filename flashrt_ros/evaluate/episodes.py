"""Where episodes of a recording begin and end: at gaps, at messages, or as a table says."""

from __future__ import annotations

import bisect
import csv
import re
from dataclasses import dataclass
from pathlib import Path

from flashrt_ros.contract.conversions import decode
from flashrt_ros.errors import ContractError, InvalidArgumentError, reason_of

FORMS = "gaps:SECONDS, topic:NAME or table:FILE"
_SECONDS = re.compile(r"(\d+(?:\.\d*)?)\s*(ms|s|min)?")
MOST_S = 1e9
_FACTORS = {"ms": 1e-3, "s": 1.0, "min": 60.0, None: 1.0}
TABLE_COLUMNS = ("start_s", "end_s")


def seconds(name: str, text: str) -> float:
    """Reads ``12.5s``, ``200ms``, ``2min`` or a plain number of seconds.

    Args:
        name: Of the option, for the error.
        text: What was given.

    Raises:
        InvalidArgumentError: It is none of these.
    """
    found = _SECONDS.fullmatch(text.strip())
    if found is None:
        raise InvalidArgumentError(f"{name}: expected a time such as 12.5s or 200ms, got {text!r}")
    value = float(found[1]) * _FACTORS[found[2]]
    if value > MOST_S:
        raise InvalidArgumentError(
            f"{name}: expected a time of at most {MOST_S:g} s, got {text!r}"
        )
    return value


@dataclass(frozen=True)
class Row:
    """One episode of a table.

    Attributes:
        start_s: From the start of the recording.
        end_s: The same; the first moment that does not belong to it.
        task: Text; empty where the table says none.
    """

    start_s: float
    end_s: float
    task: str = ""


@dataclass(frozen=True)
class EpisodeRule:
    """How episodes are told apart; without any of these a recording is one episode.

    Attributes:
        gap_s: A silence of all inputs longer than this ends one; 0: no such rule.
        topic: Each message begins one; a Bool that says false ends one. Empty: no such rule.
        rows: Of a table, in order; empty: no such rule.
    """

    gap_s: float = 0.0
    topic: str = ""
    rows: tuple[Row, ...] = ()

    @classmethod
    def parse(cls, text: str) -> EpisodeRule:
        """Reads the option ``--episodes``.

        Raises:
            InvalidArgumentError: It has another form, or the table is wrong.
        """
        kind, _, rest = text.partition(":")
        if kind == "gaps" and rest:
            gap_s = seconds("--episodes gaps", rest)
            if gap_s > 0:
                return cls(gap_s=gap_s)
        if kind == "topic" and rest:
            return cls(topic=rest)
        if kind == "table" and rest:
            return cls(rows=_table(Path(rest)))
        raise InvalidArgumentError(f"--episodes: expected {FORMS}, found {text!r}")


def _table(path: Path) -> tuple[Row, ...]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in TABLE_COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"its first line lacks {', '.join(missing)}")
            rows = tuple(
                Row(float(line["start_s"]), float(line["end_s"]), line.get("task") or "")
                for line in reader
            )
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise InvalidArgumentError(
            f"{path}: expected a CSV table with the columns start_s, end_s and perhaps task, in "
            f"seconds from the start of the recording: {reason_of(error)}"
        ) from error
    last_s = float("-inf")
    for number, row in enumerate(rows, 1):
        if not last_s <= row.start_s < row.end_s:
            raise InvalidArgumentError(
                f"{path}: episode {number}: expected a start not before the last end and before "
                f"its own end, found {row.start_s:g} to {row.end_s:g}"
            )
        last_s = row.end_s
    if not rows:
        raise InvalidArgumentError(f"{path}: expected at least one episode, found none")
    return rows


@dataclass(frozen=True)
class Standing:
    """Which episode a moment belongs to.

    Attributes:
        number: From 0.
        begin_ns: When it began; 0: with the recording.
        inside: False between two episodes.
        task: That a table gives it; empty: none.
    """

    number: int = 0
    begin_ns: int = 0
    inside: bool = True
    task: str = ""


class EpisodeTracker:
    """Follows a recording and knows the episode under way."""

    def __init__(
        self,
        rule: EpisodeRule | None,
        start_ns: int,
        standing: Standing | None = None,
        last_ns: int = 0,
    ) -> None:
        """Begins at the start of a recording, or within it.

        Args:
            rule: None: one episode.
            start_ns: Of the recording.
            standing: What holds there; None: as at the start.
            last_ns: When an input's message came last; 0: none so far.
        """
        self._rule = rule or EpisodeRule()
        self._start_ns = start_ns
        self.last_ns = last_ns
        if standing is None:
            standing = Standing(-1, 0, False) if self._rule.topic else Standing()
        self.standing = standing

    def heed(self, time_ns: int) -> None:
        """An input's message came."""
        gap_s = self._rule.gap_s
        if gap_s and self.last_ns and time_ns - self.last_ns > gap_s * 1e9:
            self._begin(time_ns)
        self.last_ns = time_ns

    def mark(self, type_name: str, cdr: bytes, time_ns: int) -> None:
        """A message of the rule's topic came."""
        if type_name == "std_msgs/msg/Bool":
            try:
                if not decode(type_name, cdr).message.data:
                    now = self.standing
                    self.standing = Standing(now.number, now.begin_ns, False)
                    return
            except ContractError:
                return
        self._begin(time_ns)

    def jump(self, time_ns: int) -> None:
        """A jump in time begins a new episode, as ``on_time_jump: reset`` says."""
        if not self._rule.rows:
            self._begin(time_ns)

    def at(self, now_ns: int) -> Standing:
        """The episode as of a moment."""
        if not self._rule.rows:
            return self.standing
        at_s = (now_ns - self._start_ns) / 1e9
        number = bisect.bisect_right(self._rule.rows, at_s, key=lambda row: row.start_s) - 1
        if number < 0:
            return Standing(0, 0, False)
        row = self._rule.rows[number]
        if at_s >= row.end_s:
            return Standing(number, 0, False)
        return Standing(number, self._start_ns + round(row.start_s * 1e9), True, row.task)

    def _begin(self, time_ns: int) -> None:
        self.standing = Standing(self.standing.number + 1, time_ns, True)
