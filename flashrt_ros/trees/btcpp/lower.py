"""XML for BehaviorTree.CPP, rewritten for bindings whose nodes have no ports and no children.

Leaves lose their ports, which are kept by the leaf's name, and the control nodes become sequences,
fallbacks and retries of BehaviorTree.CPP itself around leaves that do their calls. What a program
with the C++ plug-in is given stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, SubElement, fromstring, tostring

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.trees.btcpp.model import NEEDED, NodeModel

KINDS = ("Action", "Condition", "Decorator", "Control")
"""Tags of the explicit form, ``<Action ID="..."/>``."""
KEEP, DROP = "Capsules.Keep", "Capsules.Drop"
SNAPSHOT, AGAIN = "RetryFromCapsule.Snapshot", "RetryFromCapsule.Again"
LIMIT = "Timeout.Limit"
BESIDE = (KEEP, LIMIT)
"""Leaves that are RUNNING as long as what stands beside them."""
FORK, BRANCH = "TryBranches.Fork", "TryBranches.Branch"
WON, BACK = "TryBranches.Won", "TryBranches.Back"
FAILED = 1
"""Index of the last step of a retry that failed."""
STEPS = (KEEP, SNAPSHOT, AGAIN, DROP, FORK, BRANCH, WON, BACK)
"""Leaves that stand for the calls of control nodes."""


@dataclass(frozen=True)
class LeafUse:
    """One leaf in XML.

    Attributes:
        id: Its type.
        ports: By port, the text in XML.
        group: The control node that it is a step of; empty: none.
        index: Of the branch that it is a step of; of a fork, how many; of a last step, ``FAILED``.
        name: As in XML; its type if it has none.
    """

    id: str
    ports: Mapping[str, str]
    group: str = ""
    index: int = 0
    name: str = ""


@dataclass
class Lowered:
    """What is left for the bindings, and what is kept beside.

    Attributes:
        text: XML without ports.
        main: ID of the tree to be run; empty: none is named, and there are several.
        uses: By unique name, each leaf.
    """

    text: str = ""
    main: str = ""
    uses: dict[str, LeafUse] = field(default_factory=dict)


def lower(path: Path, models: Mapping[str, NodeModel]) -> Lowered:
    """Reads a file and those that it includes.

    Args:
        path: XML, ``BTCPP_format="4"``.
        models: Nodes with ports by name; all others are left to BehaviorTree.CPP.

    Raises:
        InvalidArgumentError: It is no XML of that format, has a port that its node has not, or
            lacks one that it needs.
    """
    root = Element("root", BTCPP_format="4")
    lowered = Lowered()
    trees = _trees(path, lowered, set())
    for tree in trees:
        tree[:] = [_Lowering(models, lowered, path).node(child) for child in tree]
        root.append(tree)
    if not lowered.main and len(trees) == 1:
        lowered.main = trees[0].get("ID", "")
    lowered.text = tostring(root, encoding="unicode")
    return lowered


def _trees(path: Path, lowered: Lowered, seen: set[Path]) -> list[Element]:
    path = path.resolve()
    if path in seen:
        return []
    seen.add(path)
    try:
        found = fromstring(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ParseError) as error:
        raise InvalidArgumentError(f"{path}: expected XML of a behaviour tree: {error}") from None
    if found.tag != "root" or found.get("BTCPP_format") != "4":
        raise InvalidArgumentError(
            f'{path}: expected <root BTCPP_format="4">, found <{found.tag} '
            f'BTCPP_format="{found.get("BTCPP_format", "")}">'
        )
    if len(seen) == 1:
        lowered.main = found.get("main_tree_to_execute", "")
    trees: list[Element] = []
    for child in found:
        if child.tag == "include":
            if "ros_pkg" in child.attrib:
                raise InvalidArgumentError(f"{path}: include: expected a path, found ros_pkg")
            trees += _trees(path.parent / child.get("path", ""), lowered, seen)
        elif child.tag == "BehaviorTree":
            trees.append(child)
    return trees


class _Lowering:
    """Rewrites the nodes of one tree."""

    def __init__(self, models: Mapping[str, NodeModel], lowered: Lowered, path: Path) -> None:
        self._models, self._lowered, self._path = models, lowered, path

    def node(self, element: Element) -> Element:
        """The node that stands for this one."""
        id_ = element.get("ID", "") if element.tag in KINDS else element.tag
        model = self._models.get(id_)
        children = [self.node(child) for child in element]
        if id_ == "Timeout":
            return self._timeout(element, children)
        if model is None:
            element[:] = children
            return element
        ports = self._ports(element, model)
        if model.kind == "Decorator" and len(children) != 1:
            self._refuse(id_, f"one child, found {len(children)}")
        if model.kind == "Control" and not children:
            self._refuse(id_, "at least one child, found none")
        if model.kind == "Action" and children:
            self._refuse(id_, f"no child, found {len(children)}")
        new = {"RetryFromCapsule": self._retry, "TryBranches": self._branches}.get(id_)
        if new is None:
            made = self._leaf(LeafUse(id_, ports, name=element.get("name", id_)))
        else:
            name = self._unique(element.get("name", id_))
            made = new(name, ports, children)
        self._keep_conditions(element, made)
        return made

    def _refuse(self, id_: str, words: str) -> None:
        raise InvalidArgumentError(f"{self._path}: {id_}: expected {words}")

    def _ports(self, element: Element, model: NodeModel) -> dict[str, str]:
        ports = {
            name: text
            for name, text in element.attrib.items()
            if name not in ("name", "ID") and not name.startswith("_")
        }
        known = {*model.inputs, *model.outputs}
        if unknown := sorted(set(ports) - known):
            self._refuse(model.id, f"ports {sorted(known)}, found {unknown}")
        needed = NEEDED.get(model.id, ())
        if missing := [port for port in needed if not ports.get(port, "").strip()]:
            self._refuse(model.id, f"a value for {', '.join(missing)}, found none")
        return ports

    def _unique(self, name: str) -> str:
        tried, number = name, 1
        while tried in self._lowered.uses:
            number += 1
            tried = f"{name} ({number})"
        # Also names of control nodes, which are no leaves, are taken from now on.
        self._lowered.uses[tried] = LeafUse("", {})
        return tried

    def _leaf(self, use: LeafUse) -> Element:
        name = self._unique(use.name)
        self._lowered.uses[name] = use
        return Element("Action", ID=use.id, name=name)

    def _step(self, id_: str, group: str, ports: Mapping[str, str], index: int = 0) -> Element:
        name = f"{group}: {id_.partition('.')[2].lower()}"
        return self._leaf(LeafUse(id_, ports, group, index, name))

    def _kept(self, name: str, ports: Mapping[str, str]) -> tuple[Element, Element]:
        """A control node, and what is to be filled with its steps.

        A leaf beside them is RUNNING as long as they are, so that it is halted with them whoever
        halts them, which the steps themselves are not: one may not be under way.
        """
        whole = Element("Parallel", name=name, success_count="1", failure_count="1")
        whole.append(self._step(KEEP, name, ports))
        return whole, SubElement(whole, "Fallback", name=name)

    def _retry(self, name: str, ports: Mapping[str, str], children: list[Element]) -> Element:
        whole, steps = self._kept(name, ports)
        good = SubElement(steps, "Sequence")
        good.append(self._step(SNAPSHOT, name, ports))
        attempts = ports.get("num_attempts", self._default("RetryFromCapsule", "num_attempts"))
        retry = SubElement(good, "RetryUntilSuccessful", num_attempts=attempts)
        attempt = SubElement(retry, "Sequence")
        attempt.append(self._step(AGAIN, name, ports))
        attempt.extend(children)
        good.append(self._step(DROP, name, ports))
        bad = SubElement(steps, "ForceFailure")
        bad.append(self._step(DROP, name, ports, FAILED))
        return whole

    def _branches(self, name: str, ports: Mapping[str, str], children: list[Element]) -> Element:
        whole, steps = self._kept(name, ports)
        good = SubElement(steps, "Sequence")
        good.append(self._step(FORK, name, ports, len(children)))
        ways = SubElement(good, "Fallback")
        for index, child in enumerate(children):
            way = SubElement(ways, "Sequence")
            way.append(self._step(BRANCH, name, ports, index))
            way.append(child)
            way.append(self._step(WON, name, ports, index))
        good.append(self._step(DROP, name, ports))
        bad = SubElement(SubElement(steps, "ForceFailure"), "Sequence")
        bad.append(self._step(BACK, name, ports))
        bad.append(self._step(DROP, name, ports))
        return whole

    def _timeout(self, element: Element, children: list[Element]) -> Element:
        """A limit beside the child.

        BehaviorTree.CPP's own halts its child in a thread of its own. That waits for Python's
        lock, which the tick has, and the tick for that thread: for ever.
        """
        if len(children) != 1 or "msec" not in element.attrib:
            self._refuse("Timeout", "one child, and msec")
        name = element.get("name", "Timeout")
        whole = Element("Parallel", name=name, success_count="1", failure_count="1")
        limit = LeafUse(LIMIT, {"msec": element.attrib["msec"]}, name=f"{name}: limit")
        whole.extend([children[0], self._leaf(limit)])
        self._keep_conditions(element, whole)
        return whole

    @staticmethod
    def _keep_conditions(element: Element, made: Element) -> None:
        for attribute, value in element.attrib.items():
            if attribute.startswith("_"):
                made.set(attribute, value)

    def _default(self, id_: str, port: str) -> str:
        return self._models[id_].inputs[port][1]
