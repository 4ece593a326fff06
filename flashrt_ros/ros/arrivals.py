"""How one topic's messages arrive: rate, gaps, and how many were lost on the way."""

from __future__ import annotations

from flashrt_ros.ros.timing import Ring

WINDOW = 64
"""Intervals that the usual one is taken from."""
REFRESH = 16
"""Messages after which it is taken anew."""
GAP = 2.0
"""Usual intervals that make a gap."""
SKIPPED = 1.5
"""Usual intervals between header stamps from which on messages in between were never sent."""


class Arrivals:
    """Of one topic since configure; written by the intake thread, read by diagnostics.

    Attributes:
        received: Messages.
        last_ns: Steady clock, reception of the last one; 0 before the first.
        interval_ms: Between receptions.
        gaps: Intervals longer than ``GAP`` usual ones.
        longest_gap_ms: Of these.
        lost: Messages that did not arrive, as the middleware counts them; written by its event.
        skipped: Messages missing between header stamps, lost or never sent, estimated.
        usual_ms: Median of ``interval_ms``, now and then; 0 before it is known.
        superseded: Messages that arrived and were not decoded, as a newer one was there.
    """

    def __init__(self) -> None:
        """Begins with nothing."""
        self.received = 0
        self.last_ns = 0
        self.interval_ms = Ring(WINDOW)
        self.gaps = 0
        self.longest_gap_ms = 0.0
        self.lost = 0
        self.skipped = 0
        self.superseded = 0
        self._behind_ms = Ring(WINDOW)
        self._stamp_ms = Ring(WINDOW)
        self.usual_ms = 0.0
        self._usual_stamp_ms = 0.0
        self._last_stamp_ns = 0

    @property
    def behind_ms(self) -> float:
        """From header stamp to reception, the middle of the last; NaN before the first stamp.

        By itself it says nothing, being of two clocks. Between topics it differs as their
        publishers' clocks do, and by transport.
        """
        return self._behind_ms.percentiles(50)[0]

    def note(self, received_ns: int, stamp_ns: int) -> None:
        """Counts one message.

        Args:
            received_ns: Steady clock.
            stamp_ns: Header stamp, clock of the publisher; 0: none.
        """
        if self.last_ns:
            interval_ms = (received_ns - self.last_ns) / 1e6
            if interval_ms > GAP * self.usual_ms > 0:
                self.gaps += 1
                self.longest_gap_ms = max(self.longest_gap_ms, interval_ms)
            self.interval_ms.add(interval_ms)
        if stamp_ns and self._last_stamp_ns:
            stamp_ms = (stamp_ns - self._last_stamp_ns) / 1e6
            if stamp_ms > SKIPPED * self._usual_stamp_ms > 0:
                self.skipped += round(stamp_ms / self._usual_stamp_ms) - 1
            if stamp_ms > 0:
                self._stamp_ms.add(stamp_ms)
        if stamp_ns:
            self._behind_ms.add((received_ns - stamp_ns) / 1e6)
        self.received += 1
        self.last_ns = received_ns
        self._last_stamp_ns = stamp_ns
        if self.received % REFRESH == 0:
            (self.usual_ms,) = self.interval_ms.percentiles(50)
            (self._usual_stamp_ms,) = self._stamp_ms.percentiles(50)
