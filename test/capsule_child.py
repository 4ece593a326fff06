"""A process of its own that continues from capsule files: FOLDER NAME... on its command line.

Prints JSON: file to the continuation, as ``continuation`` gives it.
"""

from __future__ import annotations

import json
import sys

import torch
from toy_policies import ToyChunk, ToyRecurrent, observations

from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

STEPS = 60
POLICIES: dict[str, type[Policy]] = {"recurrent": ToyRecurrent, "chunk": ToyChunk}

Continuation = list[tuple[str, list[float], dict[str, object]]]


def continuation(session: PolicySession, steps: int = STEPS) -> Continuation:
    """State digest, action and host record of the next steps."""
    found = []
    for _ in range(steps):
        action = session.step(observations(session.host.step))
        found.append((session.state_digest(), action.values.tolist(), dict(vars(session.host))))
    return found


def main(device: str, folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    files = CapsuleFolder(folder)
    answers = {}
    for name in names:
        session = PolicySession(POLICIES[name.partition("-")[0]](), device=device, seed=1)
        for step in range(5):  # an episode of its own, of which nothing may be left
            session.step(observations(step + 40))
        session.import_(files.load(name), "loaded")
        session.restore("loaded")
        answers[name] = continuation(session)
        session.close()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
