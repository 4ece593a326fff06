"""The behaviour that calls one service, against a policy node without ROS.

Pinned: that a tick never waits and never raises; which words say what went wrong; that a retry
after a time-out does the work once and a new call does it anew; and that neither clients nor
requests outlive the tree. Each has a control beside it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import py_trees
import pytest
from py_trees.common import Status
from std_srvs.srv import Trigger
from tree_rig import FakeNode, Plant, RefusalError

from flashrt_ros import trees
from flashrt_ros.errors import ErrorCode, InvalidArgumentError
from flashrt_ros.trees.call import Call, VerbTimes
from flashrt_ros.trees.link import SERVICES

ALL: dict[str, Any] = {
    "snapshot": trees.Snapshot(capsule="c", replace=True),
    "restore": trees.Restore(capsule="c"),
    "fork": trees.Fork(),
    "rollback": trees.Rollback(steps=3),
    "preview": trees.Preview(),
    "reset_episode": trees.ResetEpisode(),
    "list_capsules": trees.ListCapsules(),
    "get_capsule": trees.GetCapsule(capsule="c"),
    "drop_capsule": trees.DropCapsule(capsule="c"),
    "save_capsule": trees.SaveCapsule(capsule="c"),
    "load_capsule": trees.LoadCapsule(file="f"),
    "move_capsule": trees.MoveCapsule(capsule="c", tier="host"),
    "pause": trees.Pause(),
    "resume": trees.Resume(),
    "stop": trees.Stop(),
    "clear_stop": trees.ClearStop(),
}

pytestmark = pytest.mark.usefixtures("no_link_left")


def plant(root: Any, node: FakeNode | None = None) -> Any:
    return Plant(root, node)


def test_every_service_has_a_behaviour() -> None:
    assert set(ALL) == set(SERVICES)
    assert {kind.verb for kind in vars(trees).values() if hasattr(kind, "verb")} == {
        "",
        *SERVICES,
    }


@pytest.mark.parametrize("verb", ALL)
def test_each_asks_once_and_says_what_the_node_said(verb: str) -> None:
    with_capsule = FakeNode()
    with_capsule.server.capsules["c"] = (0, "")
    tree = plant(ALL[verb], with_capsule)
    assert tree.tick() is Status.RUNNING
    assert tree.tick() is Status.SUCCESS
    assert tree.server.verbs == [verb]
    assert tree.root.feedback_message == f"{verb} done"
    assert tree.pending == 0
    tree.close()


@pytest.mark.parametrize("verb", ALL)
def test_a_refusal_is_a_failure_with_code_and_words(verb: str) -> None:
    tree = plant(ALL[verb])

    def refuse(request: Any) -> None:
        raise RefusalError(ErrorCode.NO_MEMORY, "no room for 768 bytes")

    tree.server.refuse[verb] = refuse
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == f"{verb}: NO_MEMORY: no room for 768 bytes"
    assert tree.root.response.error_code == ErrorCode.NO_MEMORY
    tree.close()


def test_fields_reach_the_request() -> None:
    restore = trees.Restore(capsule="c", publish=True, allow_inexact=True, seed=7)
    tree = plant(py_trees.composites.Sequence("s", memory=True, children=[restore]))
    tree.server.capsules["c"] = (0, "")
    assert tree.run() is Status.SUCCESS
    (request,) = tree.server.requests("restore")
    assert (request.name, request.publish, request.allow_inexact) == ("c", True, True)
    assert (request.set_seed, request.seed) == (True, 7)
    tree.close()
    tree = plant(trees.Restore(capsule="c"))
    tree.server.capsules["c"] = (0, "")
    assert tree.run() is Status.SUCCESS
    (request,) = tree.server.requests("restore")
    assert (request.publish, request.set_seed) == (False, False)  # safe by default
    tree.close()


class Home(trees.ServiceBehaviour):
    verb, kind = "home", Trigger


def test_a_service_of_the_robots_own() -> None:
    tree = plant(Home(policy="arm"))
    assert tree.run() is Status.SUCCESS
    assert tree.root.feedback_message == "home done"
    tree.server.refuse["home"] = lambda request: (_ for _ in ()).throw(
        RefusalError(ErrorCode.NONE, "jammed")
    )
    assert tree.run() is Status.FAILURE
    assert tree.root.feedback_message == "home: jammed"
    assert [c.srv_name for c in tree.node.clients] == ["/arm/home"]
    tree.close()


# The blackboard


def test_results_go_to_the_blackboard_and_arguments_come_from_it() -> None:
    key = trees.Key("episode/before")
    root = py_trees.composites.Sequence(
        "s",
        memory=True,
        children=[
            trees.Snapshot(capsule="here", capsule_key="episode/before", response_key="answer"),
            trees.Fork(source=key, count=2, branches_key="branches"),
            trees.Preview(branches=trees.Key("branches"), chunks_key="chunks"),
            trees.Restore("by attribute", capsule=trees.Key("answer.capsule.name")),
        ],
    )
    tree = plant(root)
    assert tree.run() is Status.SUCCESS
    board = py_trees.blackboard.Blackboard
    assert board.get("/episode/before") == "here"
    assert board.get("/branches") == ["made-0", "made-1"]
    assert [chunk.horizon for chunk in board.get("/chunks")] == [2, 2]
    assert tree.server.requests("fork")[0].name == "here"
    assert tree.server.requests("restore")[0].name == "here"
    tree.close()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "expected blackboard key '/absent', which nobody has written"),
        (3.5, "back: capsule: expected string, found 3.5"),
        (["x" * 200], "found ['xxx"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_a_failure_with_words(value: Any, words: str) -> None:
    if value is not None:
        writer = py_trees.blackboard.Client(name="writer")
        writer.register_key("absent", py_trees.common.Access.WRITE)
        writer.set("absent", value)
    tree = plant(trees.Restore("back", capsule=trees.Key("absent")))
    assert tree.tick() is Status.FAILURE
    assert words in tree.root.feedback_message
    assert len(tree.root.feedback_message) < 140
    assert tree.root.feedback_message.startswith("back: ")
    assert tree.server.log == []
    tree.close()


def test_a_key_whose_value_has_no_such_attribute_says_what_it_has() -> None:
    children = [
        trees.Snapshot(response_key="answer"),
        trees.Restore(capsule=trees.Key("answer.capsule.nam")),
    ]
    tree = plant(py_trees.composites.Sequence("s", memory=True, children=children))
    assert tree.run() is Status.FAILURE
    words = tree.root.children[1].feedback_message
    assert "'/answer.capsule.nam', but '/answer.capsule' has no 'nam'; it has id, name," in words
    tree.close()


def test_an_argument_out_of_range_is_a_failure_with_words() -> None:
    tree = plant(trees.Restore(capsule="c", seed=-1))
    assert tree.tick() is Status.FAILURE
    assert "restore: seed: expected uint64, found -1" in tree.root.feedback_message
    tree.close()


def test_keys_that_cannot_work_are_refused_when_the_tree_is_built() -> None:
    with pytest.raises(InvalidArgumentError, match="found ''"):
        trees.Key("")
    with pytest.raises(InvalidArgumentError, match=r"without dots for a result, found 'a\.b'"):
        trees.Snapshot(capsule_key="a.b")


# Time


def test_an_absent_service_is_named_within_the_timeout() -> None:
    tree = plant(trees.Snapshot(policy="/left/policy", timeout_s=1.0))
    tree.node.there = False
    ticks = 0
    while tree.tick(0.125) is Status.RUNNING:
        ticks += 1
    assert ticks == 8
    assert "expected service /left/policy/snapshot" in tree.root.feedback_message
    assert tree.root.feedback_message.endswith("this name? policy nodes here: /right/policy")
    assert tree.pending == 0
    tree.close()


def test_a_service_that_comes_late_is_called() -> None:
    tree = plant(trees.Snapshot(timeout_s=1.0))
    tree.node.there = False
    for _ in range(5):
        assert tree.tick(0.1) is Status.RUNNING
        assert tree.root.feedback_message == "waits for service /policy/snapshot"
    tree.node.there = True
    assert tree.run() is Status.SUCCESS
    tree.close()


def test_silence_is_a_failure_within_the_timeout() -> None:
    tree = plant(trees.Snapshot(timeout_s=1.0))
    tree.server.silent.add("snapshot")
    begin_s = tree.node.now_s
    assert tree.run(passed_s=0.125) is Status.FAILURE
    assert tree.node.now_s - begin_s == 1.125  # with the tick that found it
    assert "snapshot: no answer from /policy/snapshot within 1 s" in tree.root.feedback_message
    assert tree.pending == 0
    tree.close()


def test_an_unanswered_request_is_repeated_with_its_id() -> None:
    tree = plant(trees.Snapshot(timeout_s=5.0))
    tree.server.silent.add("snapshot")
    for _ in range(25):
        assert tree.tick(0.1) is Status.RUNNING
    tree.server.silent.clear()  # the server comes back
    assert tree.run(passed_s=0.1) is Status.SUCCESS
    (client,) = [c for c in tree.node.clients if c.srv_name == "/policy/snapshot"]
    assert len(client.sent) == 4
    assert len({request.request_id for request in client.sent}) == 1
    assert tree.server.verbs == ["snapshot"]
    assert tree.pending == 0
    tree.close()


def test_a_node_that_is_gone_is_a_failure() -> None:
    tree = plant(trees.Snapshot())
    tree.node.broken = True
    assert tree.tick() is Status.FAILURE
    assert "could not be sent: RuntimeError: the node is gone" in tree.root.feedback_message
    tree.close()


# Idempotence


def lost_then_again(tree: Any, rest_s: float = 0.0) -> tuple[str, str]:
    """Request ids of a call whose answer is lost, and of the next one."""
    tree.server.lossy.add("snapshot")
    assert tree.run(passed_s=0.1) is Status.FAILURE
    tree.server.lossy.clear()
    tree.node.now_s += rest_s
    assert tree.run(passed_s=0.1) is Status.SUCCESS
    (client,) = [c for c in tree.node.clients if c.srv_name == "/policy/snapshot"]
    return client.sent[0].request_id, client.sent[-1].request_id


def test_a_retry_after_a_time_out_does_nothing_twice() -> None:
    tree = plant(trees.Snapshot(capsule="c", timeout_s=1.0, replace=True))
    first, second = lost_then_again(tree)
    assert first == second
    assert tree.server.verbs == ["snapshot"]
    assert tree.run() is Status.SUCCESS  # the next is a new call
    assert tree.server.verbs == ["snapshot", "snapshot"]
    tree.close()


def test_long_after_a_time_out_it_is_a_new_call() -> None:
    tree = plant(trees.Snapshot(capsule="c", timeout_s=1.0, replace=True))
    first, second = lost_then_again(tree, rest_s=2.0)
    assert first != second
    tree.close()


def test_after_another_verb_it_is_a_new_call() -> None:
    pause, snapshot = trees.Pause(), trees.Snapshot(capsule="c", timeout_s=1.0, replace=True)
    tree = plant(py_trees.composites.Parallel("p", py_trees.common.ParallelPolicy.SuccessOnAll()))
    tree.root.add_children([snapshot, pause])
    py_trees.trees.setup(tree.root, node=tree.node)
    for link in tree.links():
        link.clock = lambda: tree.node.now_s
    first, second = lost_then_again(tree)
    assert first != second
    tree.close()


def test_another_request_is_a_new_call() -> None:
    snapshot = trees.Snapshot(capsule=trees.Key("name"), timeout_s=1.0)
    writer = py_trees.blackboard.Client(name="writer")
    writer.register_key("name", py_trees.common.Access.WRITE)
    writer.set("name", "one")
    tree = plant(snapshot)
    tree.server.lossy.add("snapshot")
    assert tree.run(passed_s=0.1) is Status.FAILURE
    tree.server.lossy.clear()
    writer.set("name", "two")
    assert tree.run() is Status.SUCCESS
    assert set(tree.server.capsules) == {"one", "two"}
    tree.close()


# Cancelling, and what is left


def test_an_interrupted_call_is_forgotten_and_asked_anew() -> None:
    tree = plant(trees.Snapshot())
    tree.server.silent.add("snapshot")
    assert tree.tick() is Status.RUNNING
    assert tree.pending == 1
    tree.root.stop(Status.INVALID)
    assert tree.pending == 0
    tree.server.silent.clear()
    assert tree.run() is Status.SUCCESS
    (client,) = [c for c in tree.node.clients if c.srv_name == "/policy/snapshot"]
    assert len({request.request_id for request in client.sent}) == 2
    tree.close()


def test_behaviours_of_a_node_share_clients_and_leave_none() -> None:
    children = [trees.Snapshot(str(n)) for n in range(20)] + [
        trees.Pause(),
        trees.WaitUntilFresh(),
    ]
    root = py_trees.composites.Sequence("s", memory=True, children=children)
    other = trees.Snapshot("of another tree")
    tree = plant(root)
    beside = plant(other, tree.node)
    assert [c.srv_name for c in tree.node.clients] == ["/policy/snapshot", "/policy/pause"]
    assert len(tree.node.subscriptions) == 2
    tree.close()
    assert [c.srv_name for c in tree.node.clients] == ["/policy/snapshot", "/policy/pause"]
    beside.close()
    assert tree.node.clients == []
    assert tree.node.subscriptions == []


def test_two_policies_have_clients_of_their_own() -> None:
    children = [trees.Pause("l", policy="/left"), trees.Pause("r", policy="/right")]
    tree = plant(py_trees.composites.Sequence("s", memory=True, children=children))
    assert [c.srv_name for c in tree.node.clients] == ["/left/pause", "/right/pause"]
    tree.close()


def test_setting_up_twice_takes_one_shutdown() -> None:
    tree = plant(trees.Pause())
    py_trees.trees.setup(tree.root, node=tree.node)
    assert len(tree.node.clients) == 1
    tree.close()
    assert tree.node.clients == []


def test_a_tree_without_a_node_says_how_to_set_it_up() -> None:
    pause = trees.Pause()
    with pytest.raises(InvalidArgumentError, match="setup of 'pause': expected node=NODE"):
        pause.setup()
    pause.tick_once()
    assert pause.status is Status.FAILURE
    assert "call py_trees.trees.setup(root, node=NODE)" in pause.feedback_message
    with pytest.raises(InvalidArgumentError, match="policy: expected the name of a node"):
        trees.Pause(policy="/").setup(node=FakeNode())


@pytest.mark.parametrize("delivered", [True, False])
def test_a_time_is_known_before_the_executor_gets_to_say_it(delivered: bool) -> None:
    """Callbacks of a future that an executor completed are tasks of that executor, run later."""
    later: list[Any] = []
    response = SERVICES["pause"].Response(success=True)
    future = SimpleNamespace(
        add_done_callback=later.append,
        done=lambda: True,
        exception=lambda: None,
        result=lambda: response,
    )
    client = SimpleNamespace(
        srv_name="/policy/pause",
        service_is_ready=lambda: True,
        call_async=lambda request: future,
        remove_pending_request=lambda future: None,
    )
    times = VerbTimes()
    call = Call("pause", client, None, 5.0, 1.0, lambda: 0.0, times)
    for callback in later if delivered else []:
        callback(future)
    assert call.poll()
    assert 0.0 <= times.took_ms[0] < 60_000.0, "not the time of day"
