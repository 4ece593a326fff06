"""Pins that services, C++ nodes and the XML model of the nodes say the same.

A field that is added to a service and forgotten in the C++ header compiles, and trees silently
cannot use it. The header is read as text here, so that this holds wherever Python runs; that the
XML is exactly what the compiled header prints is checked where there is a compiler (.ci/run).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from stage import SERVICES

ROOT = Path(__file__).resolve().parents[1]
HEADER = (ROOT / "include/flashrt_ros/bt/verbs.hpp").read_text()
MODEL = ElementTree.parse(ROOT / "trees/flashrt_ros_nodes.xml").getroot()
OF_ALL = ["success", "message", "error_code"]
CPP_TYPES = {
    "string": "std::string",
    "bool": "bool",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long",
}
RESERVED = {"name", "ID"}


def fields(text: str) -> dict[str, str]:
    """Fields of one half of a .srv file and their types, without constants."""
    words = [line.split("#")[0].split() for line in text.splitlines()]
    return {w[1]: w[0] for w in words if len(w) == 2 and "=" not in w[1]}


def halves(service: str) -> tuple[dict[str, str], dict[str, str]]:
    name = SERVICES[service].__name__
    request, response = (ROOT / f"srv/{name}.srv").read_text().split("\n---\n")
    return fields(request), fields(response)


def structs(header: str) -> dict[str, str]:
    """Text of the struct of each service, by the service's name."""
    header = re.sub(r"//.*", "", header)
    bodies = re.findall(r"^struct \w+.*?^\};", header, re.MULTILINE | re.DOTALL)
    found = {}
    for body in bodies:
        service = re.search(r'service = "(\w+)"', body)
        if service is not None:
            found[service[1]] = body
    return found


def visited(body: str, of: str) -> dict[str, str]:
    """Port to the field that it stands for; of: ``request`` or ``response``."""
    pattern = rf'visit\("(\w+)", [^;]*?\b{of}\.(\w+)'
    ports = dict(re.findall(pattern, body))
    if of == "response" and "capsule_outputs(" in body:
        ports["capsule_name"] = "capsule"
    return ports


def forgotten(header: str) -> list[str]:
    """Fields of services that no port stands for."""
    found = []
    for service, body in structs(header).items():
        request, response = halves(service)
        wanted = [f"request.{name}" for name in request if name != "request_id"]
        wanted += [f"response.{name}" for name in response if name not in OF_ALL]
        has = {f"{of}.{f}" for of in ("request", "response") for f in visited(body, of).values()}
        found += [f"{service}: {name}" for name in wanted if name not in has]
    return found


def ports(element: ElementTree.Element, tag: str) -> Mapping[str, ElementTree.Element]:
    return {str(port.get("name")): port for port in element.iter(tag)}


def node_of(service: str) -> ElementTree.Element:
    found = [
        node
        for node in MODEL.iter("Action")
        if any(entry.get("service") == service for entry in node.iter("Metadata"))
    ]
    assert len(found) == 1, f"{service}: {len(found)} nodes in the model"
    return found[0]


def test_every_service_has_a_node() -> None:
    assert set(structs(HEADER)) == set(SERVICES)


def test_every_field_has_a_port() -> None:
    assert forgotten(HEADER) == []


@pytest.mark.parametrize(
    "line", ['visit("allow_inexact", request.allow_inexact', 'visit("generation", response.gener']
)
def test_a_forgotten_field_is_found(line: str) -> None:
    assert HEADER.count(line) > 0
    assert forgotten(HEADER.replace(line, "// " + line)) != []


@pytest.mark.parametrize("service", SERVICES)
def test_the_model_has_the_ports_of_the_header(service: str) -> None:
    request, response = halves(service)
    body, node = structs(HEADER)[service], node_of(service)
    inputs, outputs = ports(node, "input_port"), ports(node, "output_port")
    expected = visited(body, "request")
    of_all = {"service_name", "timeout_ms", *({"request_id"} & set(request))}
    assert set(inputs) == set(expected) | of_all
    for port, field in expected.items():
        kind = request[field]
        # Lists are text with semicolons.
        assert inputs[port].get("type") == CPP_TYPES.get(kind, "std::string"), port
        default = {"bool": "false", "uint32": "0", "uint64": "0"}.get(kind, "")
        assert inputs[port].get("default") == default, port
    assert {"message", "error_code", *visited(body, "response")} <= set(outputs)
    for port, field in visited(body, "response").items():
        if response[field] in CPP_TYPES:
            assert outputs[port].get("type") == CPP_TYPES[response[field]], port


def test_ports_have_names_that_behaviortree_cpp_allows() -> None:
    for element in MODEL.iter():
        if element.tag.endswith("_port"):
            name = str(element.get("name"))
            assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
            assert name not in RESERVED
            assert element.text, f"{name} is not explained"


def test_no_port_stands_twice() -> None:
    for node in MODEL.findall("TreeNodesModel/*"):
        names = [port.get("name") for port in node if port.tag.endswith("_port")]
        assert len(names) == len(set(names)), node.get("ID")


def test_the_page_names_every_node_and_port() -> None:
    page = (ROOT / "docs/behaviortree_cpp.md").read_text()
    said = set(re.findall(r"`(\w+)`", page))
    for node in MODEL.findall("TreeNodesModel/*"):
        names = {str(port.get("name")) for port in node if port.tag.endswith("_port")}
        assert {str(node.get("ID")), *names} <= said
