"""The execution state of a running node: what a verb brings back, to the bit, and what it drops.

Pinned here because episodes began with the actions of the one before, because arms snapped back to
where a held observation had seen them, and because the same seed gave other outcomes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import puppet
import pytest
from flashrt_ros.msg import ActionChunk, CapsuleEvent, PolicyStatus
from held import held
from lifecycle_msgs.msg import Transition
from rclpy.time import Time
from stage import MAX_AGE_MS, Stage

from flashrt_ros.errors import ErrorCode

pytestmark = pytest.mark.ros
STEPS = 15
"""Control steps that are compared."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("state")) as stage:
        yield stage


Trace = list[tuple[str, list[float]]]


def trace(stage: Stage, generation: int, step: int, count: int = STEPS) -> Trace:
    """Digest of the state after, and action of, the control steps from ``step`` on."""

    def found() -> Any:
        wanted = range(step, step + count)
        steps = [s for s in stage.steps if s.generation == generation and s.step in wanted]
        return steps if len(steps) == count else None

    def seen() -> Any:
        return [(s.generation, s.step) for s in stage.steps]

    what = f"{count} steps of generation {generation} from {step} on"
    steps = stage.peer.wait(found, what, seen=seen)
    assert [s.step for s in steps] == list(range(step, step + count))
    return [(s.state_digest, list(s.action)) for s in steps]


def assert_no_step_is_alike(one: Trace, other: Trace) -> None:
    """The control of all that follows: the digests tell states apart."""
    assert not {digest for digest, _ in one} & {digest for digest, _ in other}


# Restore


def test_restore_continues_bit_equal(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(5)
    cut = stage.do("snapshot", name="cut").capsule
    first = trace(stage, cut.generation, cut.step)
    assert len({digest for digest, _ in first}) == STEPS
    restored = stage.do("restore", name="cut", publish=True)
    again = trace(stage, restored.generation, cut.step)
    assert again == first
    assert {s.capsule for s in stage.steps if s.generation == restored.generation} == {cut.id}
    # Controls: without a restore, with another seed, and with other observations.
    reset = stage.do("reset_episode")
    assert_no_step_is_alike(trace(stage, reset.generation, cut.step), first)
    seeded = stage.do("restore", name="cut", publish=True, set_seed=True, seed=99)
    assert_no_step_is_alike(trace(stage, seeded.generation, cut.step), first)
    stage.move([0.15, -0.1])
    moved = stage.do("restore", name="cut", publish=True)
    assert_no_step_is_alike(trace(stage, moved.generation, cut.step), first)
    stage.peer.wait(lambda: len(stage.events) >= 5, "five events", seen=lambda: stage.events)
    assert [e.kind for e in stage.events] == [
        CapsuleEvent.SNAPSHOT,
        CapsuleEvent.RESTORE,
        CapsuleEvent.RESET,
        CapsuleEvent.RESTORE,
        CapsuleEvent.RESTORE,
    ]
    assert (stage.events[3].seeded, stage.events[3].seed) == (True, 99)


def test_restore_holds_until_resume(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(5)
    cut = stage.do("snapshot", name="cut").capsule
    first = trace(stage, cut.generation, cut.step, 3)
    restored = stage.do("restore", name="cut")
    assert "~/resume" in restored.message
    stage.wait_status(PolicyStatus.HOLDING, "restore of 'cut'")
    assert_still(stage)
    stage.do("resume")
    assert trace(stage, restored.generation, cut.step, 3) == first


def rests(stage: Stage) -> bool:
    """Whether the newest command is the stop message, which is the last one until motion."""
    return bool(stage.commands) and list(stage.commands[-1].velocity) == [0.0, 0.0]


def assert_still(stage: Stage) -> None:
    """While good input goes on, neither a control step nor a command."""
    stage.peer.wait(lambda: rests(stage), "the stop message", seen=lambda: stage.commands[-1:])
    # The control thread answers between its steps: one that the stop met has been published,
    # though it may still be on its way to us, so that the stamps tell and not how many came.
    stage.ask("list_capsules")
    now_ns = stage.peer.node.get_clock().now().nanoseconds
    begun = len(stage.robot.published)
    stage.peer.wait(lambda: len(stage.robot.published) > begun + 15, "input for a while")
    stage.ask("list_capsules")  # it had time for some
    stage.peer.wait(lambda: rests(stage), "nothing behind it", seen=lambda: stage.commands[-1:])
    for message in (*stage.steps, *stage.commands):
        assert Time.from_msg(message.header.stamp).nanoseconds < now_ns, message


def test_unsafe_start_after_restore_does_not_use_the_capsule_up(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(5)
    cut = stage.do("snapshot", name="cut").capsule
    first = trace(stage, cut.generation, cut.step, 3)
    stage.move([0.1, -0.1], [puppet.FAR, 0.0])
    stage.do("pause")
    stage.do("restore", name="cut", publish=True)
    status = stage.wait_status(PolicyStatus.HOLDING, "unsafe start: a: command")
    assert "max_distance 0.3" in status.reason
    assert status.step == cut.step, "the policy's memory has moved on without a command"
    stage.wait_diagnostic("motion", "unsafe start")
    stage.robot.quiet = True
    stage.state()  # the node took what was sent before, of which it keeps one message
    stage.robot.reset()
    stage.do("resume")
    assert trace(stage, status.generation, cut.step, 3) == first


def test_rollback_goes_back_so_many_steps(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(20)
    stage.do("pause")
    stage.wait_status(PolicyStatus.PAUSED)
    now = stage.do("snapshot", name="end").capsule
    before = trace(stage, now.generation, now.step - 5, 5)
    back = stage.do("rollback", steps=5)
    assert (back.steps_back, back.step) == (5, now.step - 5)
    stage.do("resume")
    assert trace(stage, back.generation, back.step, 5) == before
    # To the parent, which is the capsule that was restored last.
    restored = stage.do("restore", name="end", publish=True)
    trace(stage, restored.generation, now.step, 7)
    parent = stage.do("rollback")
    assert parent.step == now.step
    assert parent.steps_back >= 1


def test_branches_differ_by_their_seeds_alone(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(3)
    made = stage.do("fork", names=["x", "y", "z"], seeds=[1, 2, 1])
    assert [b.name for b in made.branches] == ["x", "y", "z"]
    assert len({b.step for b in made.branches}) == 1
    step = made.branches[0].step
    traces = {}
    for name in ("x", "y", "z"):
        restored = stage.do("restore", name=name, publish=True)
        traces[name] = trace(stage, restored.generation, step, 5)
    assert traces["x"] == traces["z"]
    assert_no_step_is_alike(traces["x"], traces["y"])
    actions = {name: [action for _, action in one] for name, one in traces.items()}
    assert actions["x"] != actions["y"]
    seeded = stage.do("restore", name="y", publish=True, set_seed=True, seed=1)
    assert trace(stage, seeded.generation, step, 5) == traces["x"]
    unseeded = stage.do("fork", name="x", count=2).branches
    keys = set()
    for branch in unseeded:
        restored = stage.do("restore", name=branch.id, publish=True)
        keys.add(trace(stage, restored.generation, step, 1)[0][0])
    assert len(keys) == 2, "branches without seeds must not be twins"


# Reset


def test_first_action_after_reset_is_from_a_newer_observation(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(3)
    stage.silence()
    reset = stage.do("reset_episode", set_task=True, task="pick")
    stage.wait_status(PolicyStatus.WAITING, "observation.state (joint_states): ")
    stage.peer.wait(lambda: rests(stage), "the stop message")
    commands = len(stage.commands)
    stage.diagnostics.clear()
    stage.wait_diagnostic("motion", "waiting", level=1)  # up to a second later

    def since() -> Any:
        return [step for step in stage.steps if step.generation >= reset.generation]

    assert (since(), len(stage.commands)) == ([], commands), "it moves on old input"
    stage.robot.position = [0.25, 0.05]
    stage.robot.publish()
    first = stage.peer.wait(since, "a control step")[0]
    assert first.observations[0].digest == stage.robot.published[-1]
    assert (first.step, first.episode, first.task) == (0, reset.episode, "pick")
    assert first.generation == reset.generation
    stage.peer.wait(lambda: len(stage.commands) > commands, "the first command")
    assert abs(stage.commands[commands].position[0] - 0.25) <= 0.051


@pytest.mark.parametrize("verb", ["reset_episode", "restore", "rollback"])
def test_late_chunk_is_discarded(stage: Stage, verb: str) -> None:
    """A plan that was begun before the verb ends after it: none of its rows leaves."""
    before, late, after = 0.1, 0.2, 0.3
    stage.run("puppet:Planner")
    stage.peer.wait(lambda: before in chunk_places(stage.chunks), "a chunk")
    stage.do("snapshot", name="cut")
    request = {
        "reset_episode": {},
        "restore": {"name": "cut", "publish": True},
        "rollback": {"publish": True},
    }
    with held(stage, (late, -0.1)):
        commands = len(stage.commands)
        known = set(chunk_places(stage.chunks))
        stage.robot.position = [after, -0.1]
        stage.robot.alter = lambda message: None
        begun = len(stage.robot.published)
        stage.peer.wait(lambda: len(stage.robot.published) > begun + 2, "the new place")
        generation = stage.do(verb, **request[verb]).generation
    stage.peer.wait(
        lambda: after in chunk_places(chunks_of(stage, generation)), "a chunk of the new place"
    )
    places = set(chunk_places(chunks_of(stage, generation)))
    assert places == {after}, f"a chunk of {places - {after}} came after the {verb}"
    if verb == "reset_episode":
        # The last command was repeated beside the plan, until the reset's stop message.
        halted = stage.peer.wait(lambda: stop_then_more(stage, commands), "commands after it")
        sent = stage.commands[halted:]
        positions = [c.position[0] for c in sent]
        assert min(positions) > after - 0.01, "an old row left after the reset"
    assert late not in known, "control: only the slow plan saw it"


def stop_then_more(stage: Stage, since: int) -> int:
    """Index of the first command after the last stop message; 0 while there is none."""
    stops = [i for i, c in enumerate(stage.commands) if list(c.velocity) == [0.0, 0.0]]
    following = stops[-1] + 1 if stops and stops[-1] >= since else 0
    return following if following < len(stage.commands) else 0


def chunk_places(chunks: Iterable[ActionChunk]) -> list[float]:
    """Position of joint a that each chunk began with."""
    return [round(chunk.data[0], 3) for chunk in chunks]


def chunks_of(stage: Stage, generation: int) -> list[ActionChunk]:
    """Those that were adopted after a verb, whenever those from before it come."""
    return [chunk for chunk in stage.chunks if chunk.generation >= generation]


def test_control_of_the_above_a_late_chunk_is_adopted_without_a_verb(stage: Stage) -> None:
    stage.run("puppet:Planner")
    with held(stage, (0.2, -0.1)):
        stage.robot.position = [0.3, -0.1]
    stage.peer.wait(lambda: 0.3 in chunk_places(stage.chunks), "a chunk of the new place")
    places = chunk_places(stage.chunks)
    assert places[places.index(0.3) - 1] == 0.2


# Motion


def test_pause_and_resume(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(5)
    stage.do("pause")
    stage.wait_status(PolicyStatus.PAUSED, "~/resume")
    assert_still(stage)
    stood = stage.do("snapshot").capsule
    stage.do("resume")
    stage.wait_running()

    def following() -> Any:
        return next((s for s in stage.steps if s.tick >= stood.tick), None)

    step = stage.peer.wait(following, "the next control step")
    assert step.step == stood.step, "a pause is invisible to the policy"
    assert step.generation == stood.generation
    before = next(s for s in stage.steps if s.tick == stood.tick - 1)
    assert (before.step, before.generation) == (step.step - 1, step.generation)


def test_stop_is_latched_until_cleared_and_then_resumed(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(3)
    stage.do("stop")
    stage.wait_status(PolicyStatus.STOPPED, "~/clear_stop")
    stage.wait_diagnostic("motion", "stopped")
    assert_still(stage)
    stage.transit(Transition.TRANSITION_DEACTIVATE)
    stage.wait_status(PolicyStatus.INACTIVE)
    stage.transit(Transition.TRANSITION_ACTIVATE)
    stage.wait_status(PolicyStatus.STOPPED)
    commands, statuses = len(stage.commands), len(stage.statuses)
    generation = stage.do("reset_episode").generation
    assert stage.ask("resume").error_code == ErrorCode.STOPPED
    stage.wait_status(PolicyStatus.STOPPED, since=generation)
    stage.do("clear_stop")
    stage.wait_status(PolicyStatus.HOLDING, "~/resume")
    modes = {status.mode for status in stage.statuses[statuses:]}
    assert modes == {PolicyStatus.STOPPED, PolicyStatus.HOLDING}
    assert len(stage.commands) == commands, "clear_stop alone must not move the arm"
    stage.do("resume")
    stage.wait_running()


def test_hold_on_start(stage: Stage) -> None:
    stage.activate(hold=True)
    stage.wait_status(PolicyStatus.HOLDING, "on start, by the parameter hold")
    assert not stage.commands
    assert not stage.steps
    stage.do("resume")
    stage.wait_running()


def test_dry_run_does_all_but_publish_commands(stage: Stage) -> None:
    stage.run(dry_run=True)
    stage.wait_steps(STEPS)
    assert stage.statuses[-1].dry_run
    stage.wait_diagnostic("motion", "dry run", level=0)
    cut = stage.do("snapshot", name="cut").capsule
    first = trace(stage, cut.generation, cut.step, 3)
    restored = stage.do("restore", name="cut", publish=True)
    assert trace(stage, restored.generation, cut.step, 3) == first
    assert {(s.published, s.hold_reason) for s in stage.steps} == {(False, "dry run")}
    stage.do("pause")
    stage.do("stop")
    stage.transit(Transition.TRANSITION_DEACTIVATE)
    assert not stage.commands, "a dry run moved the arm"


# Provenance


def test_policy_step_tells_what_was_done_with_which_input(stage: Stage) -> None:
    published = stage.robot.published
    stage.run()
    stage.wait_steps(30)
    cut = stage.do("snapshot", name="cut").capsule
    stage.wait_steps(5)
    restored = stage.do("restore", name="cut", publish=True)
    trace(stage, restored.generation, cut.step, 10)
    steps = list(stage.steps)
    ticks = [s.tick for s in steps]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks))), "a tick never goes back"
    turn = next(i for i, s in enumerate(steps) if s.generation != steps[0].generation)
    assert steps[turn].step == cut.step
    assert steps[turn - 1].step >= cut.step, "control: the step was to go back"
    assert steps[turn].capsule == cut.id
    for before, after in itertools.pairwise(steps):
        a, b = before.observations[0], after.observations[0]
        assert b.sequence >= a.sequence
        # Numbers go up by what arrived between, which is at most what was sent between.
        assert b.sequence - a.sequence <= published.index(b.digest) - published.index(a.digest)
        assert (b.sequence == a.sequence) == (b.digest == a.digest)
    for step in steps:
        (stamp,) = step.observations
        assert (stamp.observation, stamp.topic) == ("observation.state", "/joint_states")
        assert stamp.present
        assert 0.0 <= stamp.age_ms <= MAX_AGE_MS
        assert stamp.stamp.sec > 0
        assert list(step.names) == ["a", "b"]
        assert step.published
        assert step.latency_ms >= 0.0
        assert (step.chunk_id, step.chunk_index) == (0, 0)
    sent = [list(c.position) for c in stage.commands if list(c.velocity) == []]
    recorded = [list(s.action) for s in steps]
    assert sent[: len(recorded)] == recorded[: len(sent)], "the record is not what left"


def test_chunk_rows_are_told(stage: Stage) -> None:
    stage.run("puppet:Planner")
    stage.peer.wait(lambda: len(stage.chunks) >= 3, "three chunks")
    stage.peer.wait(lambda: len(stage.steps) >= 8, "eight control steps")
    rows = [(s.chunk_id, s.chunk_index) for s in stage.steps]
    assert rows[:8] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]
    by_id = {c.chunk_id: c for c in stage.chunks}
    for step in stage.steps[:8]:
        chunk = by_id[step.chunk_id]
        row = chunk.data[2 * step.chunk_index : 2 * step.chunk_index + 2]
        assert list(step.action) == pytest.approx(list(row), abs=1e-9)
