"""``flashrt_ros demo``: starts arm and policy, runs the experiment, prints the table."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from flashrt_ros.demo.report import Report
from flashrt_ros.demo.trial import Way
from flashrt_ros.errors import DeadlineError, InvalidArgumentError
from flashrt_ros.process import Process, free_domain, log_folder, node_command, set_environment
from flashrt_ros.ros.share import shared

START_S = 60.0
ATTACH_S = 10.0
"""What is attached to has been started by somebody else."""
"""A loaded machine with a cold disk takes long to import torch."""
CONTRACT = "config/demo_arm.contract.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--episodes", type=int, default=4, help="for each of the three ways to go on (default 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that chance decides")
    parser.add_argument(
        "--bag", type=Path, help="directory of the MCAP bag (default: demo_<date>_<time>)"
    )
    parser.add_argument("--no-bag", action="store_true", help="do not write a bag")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--viewer", action="store_true", help="open MuJoCo's window")
    parser.add_argument(
        "--keep", action="store_true", help="leave arm and policy running until Ctrl-C"
    )
    parser.add_argument(
        "--attach",
        action="store_true",
        help="run on the arm and policy that demo.launch.py has started in this ROS domain",
    )
    parser.add_argument("--policy", default="cue_reach", help="directory of other weights")
    parser.add_argument(
        "--domain-id", type=int, help="ROS domain (default: a free one is looked for)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the demonstration.

    Args:
        arguments: As ``add_arguments`` declares them.

    Returns:
        0 if every episode was carried through and restoring did better than both other ways.

    Raises:
        FlashRTError: Something did not start, or ended too early; says what to do.
    """
    if arguments.episodes < 1:
        raise InvalidArgumentError(f"--episodes: expected at least 1, found {arguments.episodes}")
    signal.signal(signal.SIGTERM, _interrupt)
    with log_folder("demo") as (log_directory, well):
        report = _report(arguments, log_directory)
        as_expected = report.as_expected and not report.faults
        if as_expected:
            well()
    return 0 if as_expected else 1


def _report(arguments: argparse.Namespace, log_directory: Path) -> Report:
    if not arguments.attach:
        domain = free_domain() if arguments.domain_id is None else arguments.domain_id
        set_environment(domain, log_directory)
    bag = None
    if not arguments.no_bag:
        bag = arguments.bag or Path(time.strftime("demo_%Y%m%d_%H%M%S"))
    report = _play(arguments, log_directory, bag)
    if bag is not None:
        print(f"bag: {bag}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.to_dict(), indent=1), encoding="utf-8")
    return report


def _play(arguments: argparse.Namespace, log_directory: Path, bag: Path | None) -> Report:
    # rclpy reads the environment when it is loaded.
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from flashrt_ros.demo.client import Client, Spinner
    from flashrt_ros.demo.experiment import Experiment
    from flashrt_ros.demo.record import Recorder

    domain = os.environ.get("ROS_DOMAIN_ID", "0")
    commands = {} if arguments.attach else _commands(arguments)
    with ExitStack() as stack:
        begin = "looking for" if arguments.attach else "starting"
        print(f"{begin} arm and policy in ROS domain {domain}", flush=True)
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        stack.callback(rclpy.try_shutdown)
        client = Client()
        stack.callback(client.destroy_node)
        recorder = None
        if bag is not None:
            # Before there is anything to record: not even the first control step may be missing.
            recorder = stack.enter_context(Recorder(client, bag))
            stack.callback(recorder.drain)
        processes = [
            stack.enter_context(Process(name, command, log_directory))
            for name, command in commands.items()
        ]
        spinner = stack.enter_context(Spinner(client))

        def alive() -> None:
            spinner.check()
            for process in processes:
                process.check()

        try:
            if arguments.attach:
                client.wait_until_ready(ATTACH_S, alive)
            else:
                client.bring_up(START_S, alive, recorder.unheard if recorder else list)
        except DeadlineError as error:
            words = (
                f"; start arm and policy in this ROS domain ({domain}) first: ros2 launch "
                "flashrt_ros demo.launch.py; or leave --attach out, and they are started here"
            )
            if processes:
                logs = [f"{p.name}, {p.log}:\n{p.last_words()}" for p in processes]
                words = "\n".join(["; what the nodes said last:", *logs])
            raise DeadlineError(f"{error}{words}") from None
        episodes = arguments.episodes * len(Way)
        print(f"{episodes} episodes and a fork: about {episodes * 3.8 + 12:.0f} s", flush=True)
        experiment = Experiment(client, arguments.seed, _say, alive)
        report = experiment.run(arguments.episodes)
        print(f"\n{report.table()}", flush=True)
        if arguments.keep:
            print(f"left running: export ROS_DOMAIN_ID={domain}; Ctrl-C ends", flush=True)
            _until_interrupted(alive)
        return report


def _commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    return {
        "arm": node_command(
            "flashrt_ros.demo.arm_node", {"viewer": arguments.viewer, "seed": arguments.seed}
        ),
        "policy": node_command(
            "flashrt_ros.ros.policy_node",
            {
                "policy": arguments.policy,
                "contract": shared(CONTRACT),
                "torch_threads": 1,
                # Of an arm or a client that other work on this machine keeps waiting.
                "start_timeout_s": 30.0,
                "service_timeout_s": 40.0,
            },
        ),
    }


def _until_interrupted(alive: Callable[[], None]) -> None:
    try:
        while True:
            alive()
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass


def _say(line: str) -> None:
    print(line, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """The demonstration alone: ``python -m flashrt_ros.demo.run``.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        Exit status.
    """
    from flashrt_ros.cli import main as command

    return command(["demo", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    raise SystemExit(main())
