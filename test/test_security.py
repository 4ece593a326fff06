"""The SROS 2 policy permits what the node really has, and nothing that it has not.

A service or topic that is missing there shows only where security is switched on, as a service
that never answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from lifecycle_msgs.msg import Transition
from stage import Stage

from flashrt_ros.contract import Contract
from flashrt_ros.contract.recording import REPORTS

ROOT = Path(__file__).resolve().parents[1]
POLICY = ROOT / "config" / "sros2_policy.xml"
DEMO = ROOT / "config" / "demo_arm.contract.yaml"


def permitted(kind: str, way: str) -> set[str]:
    """Full names of the ``topics`` or ``services`` that are allowed one way."""
    found = set()
    for group in ElementTree.parse(POLICY).getroot().iter(kind):
        if group.get(way) == "ALLOW":
            found |= {_full(str(each.text)) for each in group}
    return found


def _full(name: str) -> str:
    if name.startswith("/"):
        return name
    return f"/policy/{name[2:]}" if name.startswith("~/") else f"/{name}"


def test_topics_are_those_of_the_demonstrations_contract_and_of_the_node() -> None:
    contract = Contract.load(DEMO)
    inputs = {_full(topic) for topic, *_ in contract.topics()}
    assert permitted("topics", "subscribe") == inputs | {"/clock"}
    outputs = {_full(output.topic) for output in contract.actions}
    published = permitted("topics", "publish")
    assert outputs | {f"/policy/{name}" for name in REPORTS} <= published
    assert not outputs & permitted("topics", "subscribe")


def test_partners_may_do_what_the_node_offers_and_nothing_else() -> None:
    partners = ElementTree.parse(POLICY.with_name("sros2_partners.xml")).getroot()
    asked: dict[str, set[str]] = {}
    for group in partners.iter():
        for way in ("publish", "subscribe", "request"):
            if group.get(way) == "ALLOW":
                asked.setdefault(way, set()).update(str(each.text) for each in group)
    offered = {
        "publish": permitted("topics", "subscribe"),
        "subscribe": permitted("topics", "publish") | permitted("topics", "subscribe"),
        "request": permitted("services", "reply"),
    }
    own = {"/rosout", "/parameter_events", "~/show_cue", "~/bump"}
    for way, names in asked.items():
        assert {_full(name) for name in names - own} <= offered[way], way
    assert "/policy/snapshot" in asked["request"]
    assert not asked["request"] & {f"/policy/{name}" for name in ("change_state", "clear_stop")}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("security")) as stage:
        yield stage


@pytest.mark.ros
def test_what_is_permitted_is_what_the_node_has(stage: Stage) -> None:
    stage.prepare("cue_reach", contract=None)
    stage.set(contract=str(DEMO))
    stage.transit(Transition.TRANSITION_CONFIGURE)
    node = stage.peer.node

    def by_node(ask: str) -> set[str]:
        return {name for name, _ in getattr(node, ask)("policy", "/")}

    services = permitted("services", "reply")
    stage.peer.wait(
        lambda: by_node("get_service_names_and_types_by_node") == services,
        "the services of the policy",
        seen=lambda: by_node("get_service_names_and_types_by_node") ^ services,
    )
    published = permitted("topics", "publish")
    stage.peer.wait(
        lambda: by_node("get_publisher_names_and_types_by_node") == published,
        "the topics of the policy",
        seen=lambda: by_node("get_publisher_names_and_types_by_node") ^ published,
    )
    read = by_node("get_subscriber_names_and_types_by_node")
    assert read | {"/clock"} == permitted("topics", "subscribe")
