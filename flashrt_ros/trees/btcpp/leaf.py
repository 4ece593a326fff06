"""What leaves do: functions, or generators that yield while they are RUNNING."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from flashrt_ros.errors import ErrorCode, InvalidArgumentError
from flashrt_ros.trees.btcpp.model import NodeModel
from flashrt_ros.trees.btcpp.ports import Ports, listed
from flashrt_ros.trees.call import Call
from flashrt_ros.trees.link import PolicyLink

Steps = Generator[None, None, Any]
"""Yields where a tick ends; what it returns, as a truth, is SUCCESS or FAILURE."""
Leaf = Callable[[Ports], Any]
"""Returns that truth, or ``Steps``. Halted, the steps are closed where they stand."""

DEFAULT_SERVICE = "__default__placeholder__"
TIMEOUT_MS = "5000"
"""Default of all nodes."""
FIELDS = {"capsule": "name", "source": "name"}
"""Ports that are called otherwise than the field of the request."""
LISTS = {"seeds": "seeds", "names": "names", "branches": "names"}
"""Ports of text with semicolons, and their fields."""


def call(
    link: PolicyLink,
    verb: str,
    fields: Mapping[str, Any],
    timeout_s: float,
    before: Call | None = None,
    begun: Callable[[Call], None] = lambda call: None,
) -> Steps:
    """Calls a service; a step of a leaf.

    Args:
        link: Of the policy.
        verb: The service.
        fields: Of the request.
        timeout_s: For the answer.
        before: The same leaf's call before, whose id a retry keeps.
        begun: Given the call.

    Returns:
        The call, which is over.
    """
    try:
        under_way = link.begin(verb, fields, timeout_s, before)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{verb}: {error}") from None
    begun(under_way)
    try:
        while not under_way.poll():
            yield
    finally:
        under_way.let_go()
    if not under_way.problem:
        link.heard(under_way.response)
    return under_way


class ServiceLeaf:
    """Calls one service, as its ports say."""

    def __init__(self, model: NodeModel, link_of: Callable[[str, Ports], PolicyLink]) -> None:
        """Prepares it.

        Args:
            model: Of the node.
            link_of: Gives the link for a service and the ports of a leaf.
        """
        self._model, self._link_of = model, link_of
        self._before: dict[str, Call] = {}

    def __call__(self, ports: Ports) -> Steps:
        """One call."""
        link = self._link_of(self._model.service, ports)
        fields, before = self._fields(ports), self._before.get(ports.path)
        over = yield from call(
            link,
            self._model.service,
            fields,
            timeout_of(ports),
            before,
            lambda begun: self._before.__setitem__(ports.path, begun),
        )
        return self._conclude(ports, over)

    def _conclude(self, ports: Ports, over: Call) -> bool:
        ports.write("error_code", int(over.code))
        if over.problem:
            ports.write("message", over.problem)
            return False
        ports.write("message", over.response.message)
        for port in sorted(self._model.outputs - {"message", "error_code"}):
            if port in ports:
                ports.write(port, _output(over.response, port))
        return True

    def _fields(self, ports: Ports) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for port, (kind, default) in self._model.inputs.items():
            if port in ("service_name", "timeout_ms"):
                continue
            if port in LISTS:
                named = port != "seeds"
                parts = listed(str(ports.read(port, default))) if named else seeds_of(ports)
                fields[LISTS[port]] = parts
            elif kind == "bool":
                fields[port] = ports.truth(port, default)
            elif kind == "std::string":
                fields[FIELDS.get(port, port)] = str(ports.read(port, default))
            else:
                fields[port] = ports.number(port, default)
        for value, given in (("seed", "set_seed"), ("task", "set_task")):
            if fields.get(value) and not fields[given]:
                raise InvalidArgumentError(
                    f'{ports.name}: {value}: expected {given}="true" beside it, found '
                    f'{value}="{fields[value]}" alone, which the service would not heed'
                )
        return fields


def seeds_of(ports: Ports) -> list[int]:
    """Noise keys, from ``seeds``.

    Raises:
        InvalidArgumentError: One is no number.
    """
    parts = listed(str(ports.read("seeds")))
    for part in parts:
        if not part.isdecimal():
            raise InvalidArgumentError(
                f"{ports.name}: seeds: expected whole numbers with ';' between, found {part!r}"
            )
    return [int(part) for part in parts]


def timeout_of(ports: Ports) -> float:
    """Seconds, from ``timeout_ms``."""
    return ports.number("timeout_ms", TIMEOUT_MS) / 1e3


def _output(response: Any, port: str) -> Any:
    """What a response has for a port."""
    if port in ("branches", "capsules"):
        return ";".join(info.name for info in getattr(response, port))
    if port == "chunks":
        return list(response.chunks)
    capsule = getattr(response, "capsule", None)
    if port in ("capsule_name", "capsule_id"):
        return getattr(capsule, port.partition("_")[2])
    value = getattr(response if hasattr(response, port) else capsule, port)
    return value if isinstance(value, str | int) else ";".join(value)


class WaitUntilFresh:
    """RUNNING until the policy runs, as ~/status says."""

    def __init__(self, link: PolicyLink) -> None:
        """Args: link: of the policy."""
        self._link = link

    def __call__(self, ports: Ports) -> Steps:
        """One wait."""
        end_s = self._link.clock() + timeout_of(ports)
        while True:
            words = self._link.watch().why_not_running()
            ports.write("message", words)
            if not words:
                return True
            if self._link.clock() >= end_s:
                return False
            yield


class Limit:
    """RUNNING until a time is over, then FAILURE."""

    def __init__(self, link: PolicyLink) -> None:
        """Args: link: whose clock counts."""
        self._link = link

    def __call__(self, ports: Ports) -> Steps:
        """One wait, of ``msec``."""
        end_s = self._link.clock() + ports.number("msec") / 1e3
        while self._link.clock() < end_s:
            yield
        return False


def refused(ports: Ports, over: Call) -> bool:
    """Whether a call of a control node failed; says why."""
    if over.problem:
        ports.write("message", over.problem)
    return over.code is not ErrorCode.NONE
