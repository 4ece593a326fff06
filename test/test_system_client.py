"""`flashrt_ros call` and `flashrt_ros status` at a running node: for machines without `ros2`.

A person types these when a robot does something odd, so what they get wrong is said in one line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import puppet
import pytest
from flashrt_ros.msg import PolicyStatus
from node_peer import DEADLINE_S
from rclpy.task import Future
from stage import SERVICES, WAYS_DOWN, Stage

from flashrt_ros import cli, status_command
from flashrt_ros.errors import DeadlineError
from flashrt_ros.ros import client
from flashrt_ros.ros.client import read_fields
from flashrt_ros.ros.verb_names import TRANSITIONS, VERBS

pytestmark = pytest.mark.ros
Type = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("client")) as stage:
        yield stage


@pytest.fixture
def type_(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Type:
    """Types a command; returns its code and what it printed."""
    monkeypatch.setenv("ROS_DOMAIN_ID", str(stage.domain))
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path))

    monkeypatch.setattr(status_command, "ANSWER_S", DEADLINE_S)

    def typed(*words: str) -> tuple[int, str, str]:
        limit = () if "--timeout" in words else ("--timeout", str(DEADLINE_S))
        code = cli.main([*words, *limit])
        said = capsys.readouterr()
        return code, said.out, said.err

    return typed


def test_every_service_and_transition_has_its_word() -> None:
    assert {name: kind.__name__ for name, kind in SERVICES.items()} == dict(VERBS)
    assert len(TRANSITIONS) == 2 + len(WAYS_DOWN)


def test_verbs_and_transitions_do_what_they_say(stage: Stage, type_: Type) -> None:
    stage.prepare()
    assert type_("call", "configure") == (0, "/policy: configure done\n", "")
    assert type_("call", "activate", "--node", "policy")[0] == 0
    stage.wait_running()
    code, out, _ = type_("call", "snapshot", "name=cut", "pin=true")
    assert code == 0
    assert out.startswith("capsule 'cut' holds the state")
    assert "pinned: true" in out
    code, out, _ = type_("call", "fork", "name=cut", "count=2", "seeds=[1, 2]", "--json")
    answer = json.loads(out)
    assert (code, answer["success"], len(answer["branches"])) == (0, True, 2)
    code, out, _ = type_("call", "list_capsules")
    lines = out.splitlines()
    assert lines[1].split() == ["name", "episode", "step", "tier", "size", "id"]
    assert lines[2].split()[0] == "cut"
    assert "  pinned  " in lines[2]
    named = len(lines) - 3
    assert f" capsules: {named} named, " in type_("status")[1]
    code, out, _ = type_("call", "restore", "name=nowhere")
    assert code == 1
    assert out.startswith("NOT_FOUND: ")
    code, out, _ = type_("call", "deactivate")
    assert code == 0
    assert type_("call", "deactivate")[0] == 1, "refused, since it is done already"


def test_status_says_why_the_arm_does_not_move(stage: Stage, type_: Type) -> None:
    stage.run()
    code, out, _ = type_("status")
    assert code == 0
    assert out.startswith("/policy: RUNNING\n")
    assert "policy puppet on cpu" in out
    stage.robot.velocity = [puppet.RAISES, 0.0]
    stage.wait_status(PolicyStatus.HOLDING)
    code, out, _ = type_("status", "--node", "/policy")
    assert out.startswith("/policy: HOLDING: the policy failed: RuntimeError: the puppet's string")
    assert "error: motion: holding" in out
    assert "rate_hz" in type_("status", "--all")[1]
    stage.robot.velocity = [0.0, 0.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["call", "jump"], "no verb 'jump'; there are snapshot"),
        (
            ["call", "snapshot", "nam=x"],
            "expected NAME=VALUE of request_id (string), name (string), ",
        ),
        (["call", "snapshot", "pin=perhaps"], "pin: expected boolean, found 'perhaps'"),
        (["call", "rollback", "steps=-1"], "steps: expected uint"),
        (["call", "fork", "seeds=[1,"], "seeds: expected sequence<uint64>, found '[1,'"),
        (["call", "activate", "now=1"], "activate: expected no fields"),
        (
            ["call", "stop", "--node", "/other", "--timeout", "1"],
            "expected policy node /other within 1 s in ROS domain",
        ),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], message: str, type_: Type) -> None:
    code, _, err = type_(*words)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_the_node_that_is_there_is_named(type_: Type) -> None:
    for limit_s in (2, 4, 8, 16, 32):  # a busy machine may discover nobody within the first
        _, _, err = type_("status", "--node", "robot1/policy", "--timeout", str(limit_s))
        assert f"expected policy node /robot1/policy within {limit_s} s" in err
        if "policy nodes here: /policy" in err:
            return
    raise AssertionError(err)


class Forgetful:
    """A client whose first answers are lost, as those of a server that has not found it yet."""

    srv_name = "/policy/snapshot"

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.asked: list[Any] = []

    def service_is_ready(self) -> bool:
        return True

    def call_async(self, request: Any) -> Future:
        future = Future()
        if len(self.asked) >= self.lost:
            future.set_result(f"answer {len(self.asked)}")
        self.asked.append(request)
        return future


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    with client.connected(DEADLINE_S) as ours:
        server = Forgetful(2)
        request = SERVICES["snapshot"].Request(request_id="one")
        assert ours._ask(server, request, again_s=0.01) == "answer 2"
        assert server.asked == [request] * 3
    with client.connected(0.3) as ours:
        server = Forgetful(1)
        with pytest.raises(DeadlineError, match=r"expected an answer within 0\.3 s, none"):
            ours._ask(server, request, again_s=math.inf)
        assert len(server.asked) == 1, "control: a transition is asked for once"


def test_what_is_asked_again_has_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which the node knows that it is to be done once."""
    with client.connected(DEADLINE_S) as ours:
        server = Forgetful(1)
        monkeypatch.setattr(ours._node, "create_client", lambda *_: server)
        assert ours.call("/policy", "snapshot", {"name": "cut"}) == "answer 1"
        assert server.asked[0].request_id
        assert [asked.request_id for asked in server.asked] == [server.asked[0].request_id] * 2
        assert ours.call("/policy", "snapshot", {"request_id": "mine"}) == "answer 2"
        assert server.asked[2].request_id == "mine"
        assert ours.call("/policy", "snapshot", {}) == "answer 3"
        assert server.asked[3].request_id != server.asked[0].request_id, "control: another call"


def test_fields_are_read_by_their_types() -> None:
    assert read_fields("snapshot", ["name=12", "pin=true"]) == {"name": "12", "pin": True}
    assert read_fields("fork", ["seeds=7", "names=[a, b]"]) == {"seeds": [7], "names": ["a", "b"]}
    assert read_fields("reset_episode", ["task=go: there", "set_task=true"])["task"] == "go: there"
