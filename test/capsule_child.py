"""A process of its own that continues from capsule files: FOLDER NAME... on its command line.

Prints JSON: file to the continuation, as ``continuation`` gives it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from toy_policies import ToyChunk, ToyRecurrent, observations

from flashrt_ros.policies.attention import AttentionConfig, AttentionPolicy
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

STEPS = 60


def attention() -> Policy:
    """State that grows by rows: keys and values of 256 tokens at most."""
    return AttentionPolicy(AttentionConfig(observation_size=4))


POLICIES: dict[str, Callable[[], Policy]] = {
    "recurrent": ToyRecurrent,
    "chunk": ToyChunk,
    "attention": attention,
}

Continuation = list[tuple[str, list[float], dict[str, object]]]


def seen(session: PolicySession, step: int) -> dict[str, list[float]]:
    """What the policy observes of ``observations``."""
    known = {port.key for port in session.policy.ports().observations}
    return {key: value for key, value in observations(step).items() if key in known}


def continuation(session: PolicySession, steps: int = STEPS) -> Continuation:
    """State digest, action and host record of the next steps."""
    found = []
    for _ in range(steps):
        action = session.step(seen(session, session.host.step))
        found.append((session.state_digest(), action.values.tolist(), dict(vars(session.host))))
    return found


def main(device: str, folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    files = CapsuleFolder(folder)
    answers = {}
    for name in names:
        session = PolicySession(POLICIES[name.partition("-")[0]](), device=device, seed=1)
        for step in range(5):  # an episode of its own, of which nothing may be left
            session.step(seen(session, step + 40))
        session.import_(files.load(name), "loaded")
        # Forked there, by the key that the capsule brought: the branch goes on alike.
        session.fork("loaded", seeds=(session.store.get("loaded").key,), names=("branch",))
        session.restore("branch")
        answers[name] = continuation(session)
        session.restore("loaded")
        if continuation(session) != answers[name]:
            answers[name] = []
        session.close()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
