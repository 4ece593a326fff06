"""Which topics a recording needs so that what a policy did can be done again and compared."""

from __future__ import annotations

from flashrt_ros.contract.contract import Contract

REPORTS = ("policy_step", "capsule_event", "provenance", "status", "action_chunk")
"""Below the node's name: what each step was computed from and by, whence its state, and why."""
ABSOLUTE = ("/clock", "/diagnostics")


def recorded_topics(contract: Contract, namespace: str = "", node: str = "policy") -> list[str]:
    """Full names of everything that a verified evaluation reads, and of what was commanded.

    Args:
        contract: Of robot and policy.
        namespace: Of the node; names of the contract without a slash in front are in it.
        node: Its name.

    Returns:
        Inputs, the stop input and outputs of the contract, the node's reports, the clock and
        diagnostics; sorted, each once.
    """
    inside = "/" + namespace.strip("/")
    names = [topic for topic, *_ in contract.topics()]
    names += [output.topic for output in contract.actions]
    if contract.stop is not None:
        names.append(contract.stop.topic)
    names += [f"~/{name}" for name in REPORTS]
    names += [f"~/shadow/{below(output.topic)}" for output in contract.actions]
    found = set(ABSOLUTE)
    for name in names:
        if name.startswith("/"):
            found.add(name)
            continue
        own = name.replace("~/", f"{node}/", 1) if name.startswith("~/") else name
        found.add(f"{inside.rstrip('/')}/{own}")
    return sorted(found)


def below(topic: str) -> str:
    """A topic of the contract as it stands below ``~/shadow``."""
    return topic.lstrip("/").replace("~/", "")
