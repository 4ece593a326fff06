"""Trees of BehaviorTree.CPP whose leaves are Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isgenerator
from pathlib import Path
from typing import Any

import behaviortreepy as bt

from flashrt_ros.errors import FlashRTError, InvalidArgumentError, NotFoundError
from flashrt_ros.ros.share import shared
from flashrt_ros.trees.btcpp.leaf import (
    DEFAULT_SERVICE,
    Leaf,
    Limit,
    ServiceLeaf,
    WaitUntilFresh,
)
from flashrt_ros.trees.btcpp.lower import BESIDE, LIMIT, STEPS, LeafUse, Lowered, lower
from flashrt_ros.trees.btcpp.model import MODEL, NodeModel, nodes
from flashrt_ros.trees.btcpp.ports import Ports
from flashrt_ros.trees.btcpp.steps import ControlSteps
from flashrt_ros.trees.link import PolicyLink

OF_CONTROL = ("snapshot", "restore", "fork", "drop_capsule")
"""Services that control nodes call."""
KEPT = 1000
WORDS = {False: bt.NodeStatus.FAILURE, True: bt.NodeStatus.SUCCESS}


@dataclass(frozen=True)
class Outcome:
    """How one activation of a leaf ended.

    Attributes:
        name: Of the leaf.
        status: ``SUCCESS``, ``FAILURE`` or ``HALTED``.
        message: What it wrote to its port ``message``, or would have written.
    """

    name: str
    status: str
    message: str


class TreeFactory:
    """Makes trees from XML; the nodes of the C++ plug-in are there, and leaves of one's own."""

    def __init__(self, node: Any, policy: str = "policy") -> None:
        """Prepares it.

        Args:
            node: ROS node, which somebody spins in another thread, or between ticks.
            policy: Name of the policy node.
        """
        self.node, self.policy = node, policy
        self._models = dict(nodes())
        self._own: dict[str, Leaf] = {}

    def leaf(
        self, id_: str, leaf: Leaf, inputs: Iterable[str] = (), outputs: Iterable[str] = ()
    ) -> None:
        """Adds a leaf of one's own.

            def grasp(ports):
                gripper.close(ports.read("object"))
                while not gripper.still():
                    yield                       # RUNNING until the next tick
                return gripper.holds()          # SUCCESS or FAILURE

        Args:
            id_: Its name in XML.
            leaf: Called with ``Ports`` at the first tick of each activation.
            inputs: Its ports.
            outputs: Its ports.

        Raises:
            InvalidArgumentError: There is a node of that name.
        """
        if id_ in self._models:
            raise InvalidArgumentError(f"leaf {id_!r}: expected a new name, found one of a node")
        ports = dict.fromkeys(inputs, ("std::string", ""))
        self._models[id_] = NodeModel(id_, "Action", "", ports, frozenset(outputs))
        self._own[id_] = leaf

    def load(self, path: str | Path, tree: str = "") -> Tree:
        """Makes a tree.

        Args:
            path: XML file; a bare name that is no file here is one of ``share/flashrt_ros/trees``.
            tree: Its ID; empty: the one of ``main_tree_to_execute``, or the only one.

        Raises:
            NotFoundError: There is no such file; names the places.
            InvalidArgumentError: It is no tree that can be made, with what BehaviorTree.CPP says.
        """
        return Tree(self, lower(_found(Path(path)), self._models), tree, str(path))


def _found(path: Path) -> Path:
    """The file of a path."""
    if path.is_file():
        return path
    words = f"expected an XML file, found none at {path.absolute()}"
    if path.name != str(path):
        raise NotFoundError(words)
    folder = shared(MODEL).parent
    if not (folder / path).is_file():
        there = ", ".join(sorted(each.name for each in folder.glob("*.xml")))
        raise NotFoundError(f"{words}, nor among the examples in {folder}: {there}")
    return folder / path


class Tree:
    """A tree that can be ticked; ``close`` it in the end, or use it in a ``with`` block.

    Attributes:
        outcomes: How leaves ended, the last ``KEPT``, oldest first.
        link: Of the policy: durations of its services are in ``link.times``.
        native: The tree of the bindings, for their loggers and ``Groot2Publisher``.
    """

    def __init__(self, factory: TreeFactory, lowered: Lowered, tree: str, where: str) -> None:
        """See ``TreeFactory.load``."""
        self.outcomes: deque[Outcome] = deque(maxlen=KEPT)
        self._node, self._policy, self._uses = factory.node, factory.policy, lowered.uses
        self._objects: dict[str, Any] = {}
        self._running: dict[int, tuple[Any, Ports]] = {}
        self._error: BaseException | None = None
        self._links: dict[str, PolicyLink] = {}
        try:
            self.link = self._linked(factory.policy)
            self._steps = ControlSteps(self.link, self._use_of)
            self.native = self._make(self._leaves(factory._own), lowered, tree, where)
        except BaseException:
            self.close()
            raise

    def tick(self) -> str:
        """Ticks it once; never waits.

        Returns:
            ``RUNNING``, ``SUCCESS`` or ``FAILURE``.

        Raises:
            Exception: What a leaf of one's own raised.
            InvalidArgumentError: It was closed.
        """
        if not self._links:
            raise InvalidArgumentError("tick: expected a tree that is open, found one closed")
        status = str(self.native.tick_exactly_once().name)
        self._raise()
        return status

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def entry(self, name: str) -> str:
        """A blackboard entry of the main tree, as text.

        Raises:
            NotFoundError: There is none.
        """
        try:
            return str(self.native.root_blackboard().get_string(name))
        except RuntimeError:
            raise NotFoundError(f"blackboard: expected entry {name!r}, found none") from None

    def write(self, name: str, value: str | bool | float) -> None:
        """Writes a blackboard entry of the main tree."""
        Ports("blackboard", "", {"": f"{{{name}}}"}, self.native.root_blackboard(), {}).write(
            "", value
        )

    def halt(self) -> None:
        """Halts it: what is under way is let go, and the next tick begins anew.

        Raises:
            Exception: What a leaf of one's own raised as it was closed.
        """
        self.native.halt_tree()
        self._raise()

    def close(self) -> None:
        """Halts it and gives its clients back; it is not ticked any more.

        Raises:
            Exception: See ``halt``; it is closed all the same.
        """
        try:
            if hasattr(self, "native"):
                self.halt()
        finally:
            links, self._links = self._links, {}
            for link in links.values():
                link.release()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Making

    def _linked(self, policy: str) -> PolicyLink:
        if policy not in self._links:
            self._links[policy] = PolicyLink.shared(self._node, policy)
        return self._links[policy]

    def _leaves(self, own: Mapping[str, Leaf]) -> dict[str, Leaf]:
        leaves: dict[str, Leaf] = dict(own)
        used = {use.id for use in self._uses.values()}
        for model in nodes().values():
            if model.service and model.id in used:
                leaves[model.id] = ServiceLeaf(model, self._link_of)
        for use in self._uses.values():
            service = nodes()[use.id].service if use.id in nodes() else ""
            if service:
                self._service(service, use.ports.get("service_name", DEFAULT_SERVICE))
        if "WaitUntilFresh" in used:
            self.link.watch()
            leaves["WaitUntilFresh"] = WaitUntilFresh(self.link)
        if LIMIT in used:
            leaves[LIMIT] = Limit(self.link)
        if used & set(STEPS):
            for service in OF_CONTROL:
                self.link.use(service)
            leaves.update(self._steps.leaves())
        return leaves

    def _service(self, verb: str, name: str) -> PolicyLink:
        """The link of a service, with its client: a service of another node may be named."""
        policy, _, last = name.rpartition("/")
        if name == DEFAULT_SERVICE:
            policy = self._policy
        elif last != verb or not policy:
            raise InvalidArgumentError(
                f"service_name: expected NODE/{verb}, found {name!r}; of a Python leaf it is "
                "fixed, no {entry}"
            )
        link = self._linked(policy)
        link.use(verb)
        return link

    def _link_of(self, verb: str, ports: Ports) -> PolicyLink:
        return self._service(verb, str(ports.read("service_name", DEFAULT_SERVICE)))

    def _make(self, leaves: Mapping[str, Leaf], lowered: Lowered, tree: str, where: str) -> Any:
        made = bt.BehaviorTreeFactory()
        for id_, leaf in leaves.items():
            start: Callable[[Any], Any] = partial(self._start, leaf)
            made.register_simple_stateful_action(id_, start, self._go_on, self._halted)
        try:
            made.register_behavior_tree_from_text(lowered.text)
            known = sorted(made.registered_behavior_trees())
            main = tree or lowered.main
            if main not in known:
                raise InvalidArgumentError(
                    f"{where}: expected the tree to be run, one of {known}, found {main!r}; name "
                    "it here or in main_tree_to_execute"
                )
            self._factory = made  # the tree refers to it
            return made.create_tree(main)
        except RuntimeError as error:
            raise InvalidArgumentError(f"{where}: {error}") from None

    def _use_of(self, ports: Ports) -> LeafUse:
        return self._uses[ports.name]

    # Called by BehaviorTree.CPP within a tick

    def _start(self, leaf: Leaf, node: Any) -> Any:
        name = node.name()
        ports = _Told(
            name,
            node.full_path(),
            self._uses[name].ports,
            node.config().blackboard,
            self._objects,
        )
        return self._advance(node, ports, lambda: leaf(ports))

    def _go_on(self, node: Any) -> Any:
        steps, ports = self._running[node.uid()]
        return self._advance(node, ports, lambda: steps)

    def _advance(self, node: Any, ports: Ports, get: Callable[[], Any]) -> Any:
        """One tick of a leaf: nothing may be raised here, where only C++ would hear of it."""
        try:
            done = get()
            if isgenerator(done):
                try:
                    next(done)
                except StopIteration as end:
                    done = end.value
                else:
                    self._running[node.uid()] = done, ports
                    return bt.NodeStatus.RUNNING
        except FlashRTError as error:
            ports.write("message", str(error))
            ports.write("error_code", int(error.code))
            done = False
        except BaseException as error:  # Ctrl-C, too
            self._error = error
            done = False
        self._running.pop(node.uid(), None)
        status = WORDS[bool(done)]
        self._note(ports, str(status.name))
        return status

    def _halted(self, node: Any) -> None:
        steps, ports = self._running.pop(node.uid())
        try:
            steps.close()
        except BaseException as error:  # as in ``_advance``
            self._error = error
        if self._uses[ports.name].id not in BESIDE:
            self._note(ports, "HALTED")

    def _note(self, ports: Ports, status: str) -> None:
        assert isinstance(ports, _Told)
        self.outcomes.append(Outcome(ports.name, status, ports.message))


class _Told(Ports):
    """Ports that remember the message, also where XML does not want it.

    Attributes:
        message: The last one.
    """

    message = ""

    def write(self, port: str, value: object) -> None:
        """See ``Ports``."""
        if port == "message":
            self.message = str(value)
        super().write(port, value)
