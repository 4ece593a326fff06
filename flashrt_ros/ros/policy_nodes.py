"""Entry point of the executable ``policy_nodes``: several policy nodes in one process.

    ros2 run flashrt_ros policy_nodes /left/policy /right/policy --ros-args --params-file two.yaml

Each has an executor, a control thread and a session of its own, and its parameters under its full
name in the file. What they share is Python's interpreter, the process and its fate: a robot whose
policy must not be disturbed by another one gets a process of its own.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from typing import Any

from flashrt_ros.errors import FlashRTError, InvalidArgumentError
from flashrt_ros.ros.allocator import keep_memory
from flashrt_ros.ros.runner import SWITCH_INTERVAL_S, StopSignal, make_executor, spin_once

ROS_ARGUMENTS = "--ros-args"
JOIN_S = 5.0
"""An executor looks around twice a second; in the middle of a configure it takes longer."""
_FULL_NAME = re.compile(r"((?:/[A-Za-z_][A-Za-z0-9_]*)*)/([A-Za-z_][A-Za-z0-9_]*)")
_RENAMES = re.compile(r"__(?:ns|node|name):=")


def names_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Namespace and name of each node, from a command line without the program.

    Raises:
        InvalidArgumentError: No names, one twice, one that is none, or a remap that would give
            all of them the same.
    """
    own = list(words[: words.index(ROS_ARGUMENTS)] if ROS_ARGUMENTS in words else words)
    if not own:
        raise InvalidArgumentError(
            "policy_nodes: expected full names such as /left/policy /right/policy, found none"
        )
    if renames := [word for word in words if _RENAMES.match(word)]:
        raise InvalidArgumentError(
            f"policy_nodes: {renames[0]} would rename all nodes alike; expected full names as "
            "arguments and no such remap"
        )
    found = []
    for word in own:
        parts = _FULL_NAME.fullmatch(word)
        if parts is None:
            raise InvalidArgumentError(
                f"policy_nodes: expected a full name such as /left/policy, found {word!r}"
            )
        found.append((parts[1] or "/", parts[2]))
    if twice := {name for name in found if found.count(name) > 1}:
        raise InvalidArgumentError(f"policy_nodes: expected each name once, found {sorted(twice)}")
    return found


class Spinner:
    """One node with an executor and a thread: a configure of one keeps no other waiting."""

    def __init__(self, node: Any, context: Any) -> None:
        """Starts the thread."""
        self.node = node
        self._executor = make_executor(context)
        self._executor.add_node(node)
        self._ending = False
        name = f"spin {node.get_fully_qualified_name()}"
        self._thread = threading.Thread(target=self._spin, name=name, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        while not self._ending:
            spin_once(self._executor, self.node)

    def end(self) -> None:
        """No callback begins after this."""
        self._ending = True

    def close(self) -> None:
        """Destroys the node, which sends its stop message."""
        self._thread.join(JOIN_S)
        self._executor.remove_node(self.node)
        self.node.destroy_node()
        if not self._thread.is_alive():
            self._executor.shutdown()


def main(args: Sequence[str] | None = None) -> int:
    """Runs the nodes until a signal ends them; returns the exit code."""
    words = list(sys.argv[1:] if args is None else args)
    keep_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stop = StopSignal()
    # Imported only now, as everything that takes time: a signal is heeded from here on.
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    spinners: list[Spinner] = []
    try:
        names = names_of(words)
        rclpy.init(args=["policy_nodes", *words], signal_handler_options=SignalHandlerOptions.NO)
        from flashrt_ros.ros.node import PolicyNode

        context = rclpy.get_default_context()
        for namespace, name in names:
            spinners.append(Spinner(PolicyNode(name, namespace=namespace), context))
        stop.wait()
    except FlashRTError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        stop.ignore()
        for spinner in spinners:
            stop.say(spinner.node)
            spinner.end()
        for spinner in spinners:
            spinner.close()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
