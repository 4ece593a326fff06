"""A running policy node with a robot that feeds it and a client that watches it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract_examples import JOINT_STATE, contract_dict
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from flashrt_ros.msg import ActionChunk, CapsuleEvent, PolicyStatus, PolicyStep
from flashrt_ros.srv import (
    Command,
    DropCapsule,
    Fork,
    GetCapsule,
    ListCapsules,
    LoadCapsule,
    MoveCapsule,
    Preview,
    ResetEpisode,
    Restore,
    Rollback,
    SaveCapsule,
    Snapshot,
)
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from node_peer import RELIABLE, Peer, Pending, Robot, watch
from node_process import Domain, NodeProcess
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState

from flashrt_ros.errors import ErrorCode

SERVICES: Mapping[str, Any] = {
    "snapshot": Snapshot,
    "restore": Restore,
    "fork": Fork,
    "rollback": Rollback,
    "reset_episode": ResetEpisode,
    "list_capsules": ListCapsules,
    "get_capsule": GetCapsule,
    "drop_capsule": DropCapsule,
    "save_capsule": SaveCapsule,
    "load_capsule": LoadCapsule,
    "move_capsule": MoveCapsule,
    "preview": Preview,
    "pause": Command,
    "resume": Command,
    "stop": Command,
    "clear_stop": Command,
}
ALL_LATCHED = QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""With a depth of one a mode that does not last is overwritten while we are not scheduled."""
PATIENT_S = 10.0
"""How long ``on_miss`` holds: a busy machine stalls for seconds."""
WAYS_DOWN = {
    State.PRIMARY_STATE_ACTIVE: Transition.TRANSITION_DEACTIVATE,
    State.PRIMARY_STATE_INACTIVE: Transition.TRANSITION_CLEANUP,
}


MAX_AGE_MS = 10_000.0
"""A busy machine stalls for seconds."""


def arm_contract(max_age_ms: float = MAX_AGE_MS, **action: Any) -> dict[str, Any]:
    """One observation of positions and velocities, one command; patient with a busy machine.

    Args:
        max_age_ms: Oldest observation that counts.
        **action: Keys of the command to be replaced.
    """
    contract = contract_dict()
    contract["observations"] = contract["observations"][:1]
    contract["observations"][0]["max_age_ms"] = max_age_ms
    contract["start"]["max_age_ms"] = max_age_ms
    contract["actions"][0].update(action)
    return contract


def write_contract(folder: Path, contract: Mapping[str, Any], name: str = "arm") -> Path:
    """JSON is YAML too."""
    path = folder / f"{name}.contract.yaml"
    path.write_text(json.dumps(contract))
    return path


class Stage:
    """One node process in a domain, its peer and its robot; use it in a ``with`` block.

    Attributes:
        process: The node.
        peer: See ``Peer``.
        robot: See ``Robot``.
        statuses: All of ~/status; likewise ``steps``, ``chunks``, ``events``, ``commands`` and
            ``diagnostics``.
    """

    def __init__(
        self,
        folder: Path,
        domain: int | None = None,
        namespace: str = "",
        parameters: Mapping[str, Any] | None = None,
        node: str = "policy",
        remaps: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.namespace = namespace
        self.node = node
        self.remaps = dict(remaps or {})
        self._own_domain = Domain() if domain is None else None
        self.domain = self._own_domain.id if self._own_domain is not None else domain
        assert self.domain is not None
        self.peer = Peer(self.domain)
        record = self.peer.record
        self.statuses = record(PolicyStatus, self.name("status"), ALL_LATCHED)
        self.steps = record(PolicyStep, self.name("policy_step"))
        self.chunks = record(ActionChunk, self.name("action_chunk"))
        self.events = record(CapsuleEvent, self.name("capsule_event"))
        self.commands = record(JointState, self.topic("joint_command"))
        self.diagnostics = record(DiagnosticArray, "/diagnostics")
        self.robot = Robot(self.peer, self.topic("joint_states"), RELIABLE)
        self._parameters = dict(parameters or {})
        self.start()

    def start(self) -> None:
        """Starts the process, again if it has ended."""
        rules = [f"{name}:={to}" for name, to in self.remaps.items()]
        rules += [f"__node:={self.node}"] * (self.node != "policy")
        self.process = NodeProcess(
            self.folder, self.domain, self.namespace or "/", self._parameters, remaps=rules
        )
        watch(self.peer, self.process)
        self._wait_until_known()

    def _wait_until_known(self) -> None:
        """Waits until the node knows all our clients."""
        for service, kind in SERVICES.items():
            self.peer.client(kind, self.name(service))
        self.peer.client(ChangeState, self.name("change_state"))
        self.peer.client(SetParametersAtomically, self.name("set_parameters_atomically"))
        self.peer.client(GetState, self.name("get_state"))
        self.introduce()

    def introduce(self) -> None:
        """Waits until the node knows the clients that a test has made besides."""
        self.peer.introduce(GetState, self.name("get_state"))

    def name(self, of: str) -> str:
        """Full name of something private of the node."""
        return f"{self.namespace}/{self.node}/{of}"

    def topic(self, name: str) -> str:
        """Full name of a topic of the contract."""
        to = self.remaps.get(name, name)
        return to if to.startswith("/") else f"{self.namespace}/{to}"

    # Services

    def send(self, service: str, /, **fields: Any) -> Pending:
        return self.peer.send(SERVICES[service], self.name(service), **fields)

    def ask(self, service: str, /, **fields: Any) -> Any:
        """The response, whatever it says."""
        return self.send(service, **fields).result(self.peer.quote)

    def do(self, service: str, /, **fields: Any) -> Any:
        """The response, which must be one of success."""
        response = self.ask(service, **fields)
        assert response.success, f"{service} {fields}: {response.message}{self.peer.quote()}"
        assert response.error_code == ErrorCode.NONE
        return response

    # Lifecycle

    def state(self) -> int:
        response = self.peer.call(GetState, self.name("get_state"))
        return int(response.current_state.id)

    def change(self, transition: int) -> bool:
        request = Transition(id=transition)
        response = self.peer.call(ChangeState, self.name("change_state"), transition=request)
        return bool(response.success)

    def transit(self, transition: int) -> None:
        assert self.change(transition), f"transition {transition} failed{self.peer.quote()}"

    def set(self, **parameters: Any) -> Any:
        """Sets parameters all together; returns whether that was done, and why not."""
        values = [Parameter(n, value=v).to_parameter_msg() for n, v in parameters.items()]
        service = self.name("set_parameters_atomically")
        return self.peer.call(SetParametersAtomically, service, parameters=values).result

    def put_away(self) -> None:
        """Down to unconfigured, whatever the state is."""
        while (transition := WAYS_DOWN.get(self.state())) is not None:
            self.transit(transition)

    def prepare(
        self, policy: str = "puppet:Puppet", contract: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """An unconfigured node with new parameters; those not named are the tests' defaults."""
        self.robot.reset()
        self.put_away()
        self.ask("clear_stop")
        contract = arm_contract() if contract is None else contract
        path = write_contract(self.folder, contract)
        sent = [(action["topic"], action["type"]) for action in contract["actions"]]
        self._sends_commands = ("joint_command", JOINT_STATE) in sent
        defaults: dict[str, Any] = {
            "policy": policy,
            "contract": str(path),
            "device": "cpu",
            "seed": 7,
            "rollback_depth": 64,
            "preview_sets": 1,
            "plan_ahead": -1,
            "hold": False,
            "dry_run": False,
            "store_bytes": 1 << 20,
            "publish_state_digest": True,
            "publish_chunk": True,
            "start_timeout_s": 40.0,
            "service_timeout_s": 50.0,
            "capsule_dir": str(self.folder / "capsules"),
            "miss_limit_s": PATIENT_S,
            "watchdog_periods": 100_000,
        }
        result = self.set(**{**defaults, **more})
        assert result.successful, result.reason

    def run(self, policy: str = "puppet:Puppet", **more: Any) -> None:
        """Configures and activates anew and waits for the first step; the logs begin empty."""
        self.activate(policy, **more)
        self.wait_running()
        self.peer.wait(lambda: self.steps, "a first control step")

    def activate(self, policy: str = "puppet:Puppet", **more: Any) -> None:
        """Configures and activates anew; the logs begin empty."""
        self.prepare(policy, **more)
        matches = self.commands.matches
        self.transit(Transition.TRANSITION_CONFIGURE)
        if self._sends_commands:
            # Else the first ones are lost on a busy machine.
            self.peer.wait(lambda: self.commands.matches > matches, "the node's commands")
        self.clear()
        self.transit(Transition.TRANSITION_ACTIVATE)

    def clear(self) -> None:
        """Forgets what was received."""
        self.peer.settle()
        logs = (self.statuses, self.steps, self.chunks, self.events, self.commands)
        for log in (*logs, self.diagnostics):
            log.clear()

    # What the node says

    def wait_status(self, mode: int, words: str = "", since: int = 0) -> PolicyStatus:
        """Waits until the newest status has a mode, and words in its reason.

        Nothing orders a status with steps, commands or the answers of services: what is newest
        when one of these comes may be from before it. Only ``since`` tells.

        Args:
            mode: One of ``PolicyStatus``.
            words: A part of the reason.
            since: Generation that the status has at least; a verb's answer names its own.
        """

        def found() -> Any:
            last = self.statuses[-1] if self.statuses else None
            fits = last is not None and last.mode == mode and words in last.reason
            return last if fits and last.generation >= since else None

        what = f"status of mode {mode} with {words!r}, of generation {since} or later"
        return self.peer.wait(found, what, seen=lambda: self.statuses[-1:])

    def all_events(self, kind: int) -> list[CapsuleEvent]:
        """All of a kind until now: those are awaited that came before one that is provoked here.

        Nothing else says of an event that it is not on its way any more.
        """
        mark = f"mark-{len(self.events)}"
        self.do("snapshot", name=mark)
        self.peer.wait(lambda: any(event.name == mark for event in self.events), mark)
        self.do("drop_capsule", name=mark)
        marked = [event for event in self.events if event.name.startswith("mark-")]
        return [event for event in self.events if event.kind == kind and event not in marked]

    def wait_all_steps(self) -> None:
        """Waits for every control step so far, of which the control thread says how many."""
        tick = self.do("snapshot", name="mark-steps").capsule.tick
        self.do("drop_capsule", name="mark-steps")
        self.peer.wait(lambda: self.steps and self.steps[-1].tick + 1 >= tick, "the last step")

    def wait_running(self, since: int = 0) -> PolicyStatus:
        return self.wait_status(PolicyStatus.RUNNING, since=since)

    # The robot

    def move(
        self, position: list[float] | None = None, velocity: list[float] | None = None
    ) -> PolicyStep:
        """Has the robot measure something else, or tells ``puppet.Puppet`` what to do.

        Args:
            position: Of both joints, rad; None: as before.
            velocity: Likewise, rad/s.

        Returns:
            A control step that saw it.
        """
        self.robot.position = position or self.robot.position
        self.robot.velocity = velocity or self.robot.velocity
        return self.wait_step_on_new_input()

    def silence(self) -> None:
        """Has the robot say nothing more; a control step that saw its last word has come then.

        So nothing from before is on its way any more and taken for news by whatever comes next.
        """
        self.robot.quiet = True
        self._wait_step_on(-1, "a step that saw the last")

    def wait_step_on_new_input(self) -> PolicyStep:
        """Waits for a control step that saw what the robot publishes from now on.

        Control steps of before may still be on their way, however many of them are waited for.
        """
        return self._wait_step_on(self.robot.count(), "a control step on new input")

    def _wait_step_on(self, begun: int, what: str) -> PolicyStep:
        """Waits for one that saw what the robot has published from this message on."""

        def found() -> PolicyStep | None:
            step = self.steps[-1] if self.steps else None
            new = self.robot.published[begun:]
            return step if step and any(o.digest in new for o in step.observations) else None

        return self.peer.wait(found, what, seen=lambda: self.steps[-1:])

    def wait_steps(self, count: int) -> None:
        """Waits for so many control steps more, some of which may have been made already."""
        wanted = len(self.steps) + count
        self.peer.wait(lambda: len(self.steps) >= wanted, f"{count} more control steps")

    def end_hold(self) -> None:
        """Has ``on_miss`` end with the stop message now, and not after the patience of ``run``."""
        assert self.set(miss_limit_s=0.05).successful
        self.wait_status(PolicyStatus.WAITING)
        assert self.set(miss_limit_s=PATIENT_S).successful

    def wait_diagnostic(self, entry: str, words: str, level: int = 2) -> DiagnosticStatus:
        """Waits for an entry of /diagnostics with a name, words and a level since ``clear``."""

        def found() -> Any:
            for array in self.diagnostics:
                for status in array.status:
                    named = status.name == f"{self.namespace}/{self.node}: {entry}"
                    if named and words in status.message and ord(status.level) == level:
                        return status
            return None

        def seen() -> set[str]:
            entries = [s for array in self.diagnostics for s in array.status]
            return {f"{s.name} {s.level!r} {s.message}" for s in entries}

        what = f"diagnostic {entry!r} of level {level} with {words!r}"
        return self.peer.wait(found, what, seen=seen)

    def values(self, entry: str) -> dict[str, str]:
        """The newest values of an entry of /diagnostics since ``clear``; empty: none has come."""
        for array in reversed(list(self.diagnostics)):
            for status in array.status:
                if status.name == f"{self.namespace}/{self.node}: {entry}":
                    return {pair.key: pair.value for pair in status.values}
        return {}

    def close(self) -> None:
        self.process.close()
        self.robot.close()
        self.peer.close()
        if self._own_domain is not None:
            self._own_domain.close()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
