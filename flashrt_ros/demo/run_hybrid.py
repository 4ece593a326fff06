"""The hybrid policy drives the arm through its node: ``python -m flashrt_ros.demo.run_hybrid``.

Arm and policy are processes of their own, as in the demonstration. In each episode three places
are shown, then one is asked for by number, and the tip must reach it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flashrt_ros.demo.recall import QUESTION, RATE_HZ, Recall, draw_recalls, goals
from flashrt_ros.demo.trial import episodes, wilson
from flashrt_ros.errors import DeadlineError
from flashrt_ros.exit_code import in_words
from flashrt_ros.process import Process, free_domain, node_command, set_environment
from flashrt_ros.ros.share import shared

START_S = 60.0
CONTRACT = "config/demo_recall.contract.yaml"


def commands(policy: str) -> dict[str, list[str]]:
    """Command lines of the two nodes, by name."""
    return {
        "arm": node_command("flashrt_ros.demo.arm_node", {"seed": 0}),
        "policy": node_command(
            "flashrt_ros.ros.policy_node",
            {
                "policy": policy,
                "contract": shared(CONTRACT),
                "autostart": True,
                "torch_threads": 1,
                # Of an arm or a client that other work on this machine keeps waiting.
                "start_timeout_s": 30.0,
                "service_timeout_s": 40.0,
            },
        ),
    }


class Questioner:
    """Shows places and asks; everything else is the experiment's client."""

    def __init__(self, client: Any, alive: Callable[[], None]) -> None:
        """Prepares to ask.

        Args:
            client: A ``demo.client.Client``.
            alive: Called at each tick; raises if going on is pointless.
        """
        from std_msgs.msg import Float64

        from flashrt_ros.demo.experiment import Experiment
        from flashrt_ros.demo.tree import Builder

        self._client, self._type = client, Float64
        self._question = client.create_publisher(Float64, "question", 10)
        self._experiment = Experiment(client, alive=alive)
        self._builder = Builder(client, RATE_HZ)

    def episode(self, recall: Recall) -> bool:
        """Plays one; whether the place asked for was reached.

        Raises:
            DeadlineError: It could not be carried through.
        """
        from py_trees.common import Status

        root = self._tree(recall)
        ending = self._experiment.tick_through(root)
        if problem := ending.fault or ending.refused:
            raise DeadlineError(f"an episode could not be carried through: {problem}")
        return bool(root.status is Status.SUCCESS)

    def _tree(self, recall: Recall) -> Any:
        from py_trees.composites import Sequence

        builder, root = self._builder, Sequence("recall", memory=True)
        root.add_child(builder.fresh(recall.seed))
        for place, shown, gap in zip(
            recall.places, recall.shown_steps, recall.gap_steps, strict=True
        ):
            root.add_child(builder.see("place", goals()[place], shown / RATE_HZ))
            root.add_child(builder.wait("gap", gap / RATE_HZ))
        wanted = builder.seen_steps(recall.asked_steps / RATE_HZ)

        def asked() -> bool:
            # It stands for as long as it is published.
            self._question.publish(self._type(data=float(recall.number)))
            return bool(self._client.seen(QUESTION) >= wanted)

        root.add_child(builder.until("ask", asked))
        root.add_child(builder.reach(goals()[recall.goal]))
        return root


def play(episodes: int, seed: int, policy: str, log_directory: Path) -> int:
    """Starts both nodes in a ROS domain of their own and counts successes.

    Raises:
        DeadlineError: They did not become ready, or an episode could not be carried through.
    """
    set_environment(free_domain(), log_directory)
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from flashrt_ros.demo.client import Client, Spinner

    with ExitStack() as stack:
        processes = [
            stack.enter_context(Process(name, command, log_directory))
            for name, command in commands(policy).items()
        ]
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        stack.callback(rclpy.try_shutdown)
        client = Client()
        stack.callback(client.destroy_node)
        spinner = stack.enter_context(Spinner(client))

        def alive() -> None:
            spinner.check()
            for process in processes:
                process.check()

        client.wait_until_ready(START_S, alive)
        questioner, reached = Questioner(client, alive), 0
        for number, recall in enumerate(draw_recalls(seed, episodes), 1):
            good = questioner.episode(recall)
            reached += good
            print(
                f"episode {number}: shown {recall.places}, asked for number {recall.number}: "
                f"{'reached' if good else 'not reached'}",
                flush=True,
            )
        return reached


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the module.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        Exit status: 0 if most episodes were a success.
    """
    parser = argparse.ArgumentParser(description="The hybrid policy through its node.")
    parser.add_argument("--episodes", type=episodes, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="hybrid_reach", help="directory of other weights")
    options = parser.parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="flashrt_ros_recall_"))
    reached = play(options.episodes, options.seed, options.policy, directory)
    low, high = wilson(reached, options.episodes)
    print(f"reached {reached} of {options.episodes}  (95 %: {low:.1%} to {high:.1%})")
    return 0 if 2 * reached > options.episodes else 1


if __name__ == "__main__":
    raise SystemExit(in_words(main))
