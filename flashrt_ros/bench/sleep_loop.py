"""A bare loop that sleeps until absolute deadlines: the floor of every control loop.

Run as a process: ``python -m flashrt_ros.bench.sleep_loop PERIOD_S SECONDS`` prints, as one JSON
line, periods and lateness in milliseconds.
"""

from __future__ import annotations

import json
import sys
import time


def run(period_s: float, seconds: float) -> dict[str, list[float]]:
    """Returns the times between wake-ups, and from each deadline to its wake-up."""
    period_ms, late_ms = [], []
    deadline_s = last_s = time.monotonic()
    end_s = deadline_s + seconds
    while deadline_s < end_s:
        deadline_s += period_s
        time.sleep(max(deadline_s - time.monotonic(), 0.0))
        now_s = time.monotonic()
        period_ms.append((now_s - last_s) * 1e3)
        late_ms.append((now_s - deadline_s) * 1e3)
        last_s = now_s
    return {"period_ms": period_ms, "late_ms": late_ms}


if __name__ == "__main__":
    print(json.dumps(run(float(sys.argv[1]), float(sys.argv[2]))))
