"""Restore of a random hybrid at random boundaries, then greedy tokens, byte for byte.

``flashrt_ros ablate`` does the same and leaves out one buffer at a time besides; here its two
controls stand alone, at many boundaries.
"""

from __future__ import annotations

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.hybrids import setting_of, words_of
from flashrt_ros.bench.random_hybrid import random_hybrid
from flashrt_ros.bench.report import Count, Result
from flashrt_ros.testing.ablation import FULL, NOTHING, ablate
from flashrt_ros.testing.drive import TOKENS_OF_A_STEP

ON_GPU, ON_CPU = (100, 256), (20, 64)
"""Boundaries, and tokens behind each."""
LATEST_CUT, QUICK_CUT, CAPACITY = 150, 6, 4096
"""Steps before a cut, and rows that suffice for them and for the tokens behind it."""


def run(options: Options) -> Result:
    """Compares at every boundary."""
    setting = setting_of(options)
    options.say("making the model")
    policy = random_hybrid(setting.size, options.device, 1024 if options.quick else CAPACITY)
    words = words_of(policy.model, setting.size)
    result = Result("continuation", f"restore, then greedy tokens: {words}")
    cuts, tokens = (3, 32) if options.quick else ON_GPU if options.cuda else ON_CPU
    steps, latest = tokens // TOKENS_OF_A_STEP, QUICK_CUT if options.quick else LATEST_CUT
    options.say(f"{cuts} boundaries, {tokens} tokens behind each")
    report = ablate(policy, options.device, cuts, steps, latest=latest, controls_alone=True)
    options.say("")
    full, nothing = report.find(FULL), report.find(NOTHING)
    result.counts += [
        Count(f"the same {tokens} tokens after restore", cuts - full.actions, cuts, "all"),
        Count("equal after restore, byte for byte", cuts - full.differs, cuts, "all"),
        Count("control, no restore: other tokens", nothing.actions, cuts, ">= 1"),
        Count("control, no restore: differs", nothing.differs, cuts, "all"),
    ]
    result.notes += [
        f"{cuts} random boundaries; state, rows and acceptance are compared after every"
        f" {TOKENS_OF_A_STEP} tokens. Another episode runs before each restore.",
        "flashrt_ros ablate --random-large: the same with each buffer left out.",
    ]
    return result
