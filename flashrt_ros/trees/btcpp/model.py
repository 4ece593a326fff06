"""The nodes of ``trees/flashrt_ros_nodes.xml``: their kinds, services and ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from xml.etree import ElementTree

from flashrt_ros.ros.share import shared

MODEL = "trees/flashrt_ros_nodes.xml"

NEEDED: Mapping[str, Sequence[str]] = {
    "Restore": ("capsule",),
    "GetCapsule": ("capsule",),
    "DropCapsule": ("capsule",),
    "SaveCapsule": ("capsule",),
    "LoadCapsule": ("file",),
    "MoveCapsule": ("capsule", "tier"),
}
"""By node, the inputs without which its service would refuse every call."""


@dataclass(frozen=True)
class NodeModel:
    """One node.

    Attributes:
        id: Its name in XML.
        kind: ``Action``, ``Decorator`` or ``Control``.
        service: That it calls; empty: none, or several.
        inputs: By port, the type as the model has it and the default.
        outputs: Ports that it writes.
    """

    id: str
    kind: str
    service: str
    inputs: Mapping[str, tuple[str, str]]
    outputs: frozenset[str]


@cache
def nodes() -> Mapping[str, NodeModel]:
    """All nodes by name.

    Raises:
        NotFoundError: The model is not installed.
    """
    root = ElementTree.parse(shared(MODEL)).getroot()
    return {node.id: node for node in map(_node, root.findall("TreeNodesModel/*"))}


def _node(element: ElementTree.Element) -> NodeModel:
    services = [entry.get("service") for entry in element.iter("Metadata") if entry.get("service")]
    return NodeModel(
        id=element.attrib["ID"],
        kind=element.tag,
        service=str(services[0]) if services else "",
        inputs={
            port.attrib["name"]: (port.attrib["type"], port.attrib["default"])
            for port in element.iter("input_port")
        },
        outputs=frozenset(port.attrib["name"] for port in element.iter("output_port")),
    )
