"""Starts a command line that runs a node, asks the node, and ends it as Ctrl-C does.

Also a program, for the checks of an installation:

    python test/running_node.py PREFIX/lib/flashrt_ros/policy_node --ros-args -p autostart:=false
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor

READY_S = 120.0
"""A generous limit: it only decides how long a failure takes."""
AGAIN_S = 2.0


class Asker:
    """A node in a context of its own that calls services."""

    def __init__(self, domain: int) -> None:
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain)
        self._node = rclpy.create_node("asker", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)

    def close(self) -> None:
        self._executor.shutdown()
        self._node.destroy_node()
        self._context.try_shutdown()

    def call(self, kind: Any, name: str, request: Any, process: subprocess.Popen[str]) -> Any:
        """The response of a service that may be asked more than once, as soon as it exists.

        Raises:
            AssertionError: The process ended, or the service did not answer in time.
        """
        client = self._node.create_client(kind, name)
        end_s = time.monotonic() + READY_S
        while not client.service_is_ready():
            assert process.poll() is None, f"the node ended with code {process.returncode}"
            assert time.monotonic() < end_s, f"{name} did not appear within {READY_S} s"
            self._executor.spin_once(timeout_sec=0.1)
        futures = []
        again_s = time.monotonic()
        while not any(future.done() for future in futures):
            if time.monotonic() >= again_s:
                # A server does not answer a client that it has not discovered yet.
                futures.append(client.call_async(request))
                again_s = time.monotonic() + AGAIN_S
            assert process.poll() is None, f"the node ended with code {process.returncode}"
            assert time.monotonic() < end_s, f"{name} did not answer within {READY_S} s"
            self._executor.spin_once(timeout_sec=0.1)
        self._node.destroy_client(client)
        return next(future.result() for future in futures if future.done())


@contextlib.contextmanager
def running(
    command: Sequence[str], domain: int, log_dir: str, extra: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], Asker]]:
    """The process and somebody to ask it; afterwards it must end by itself with code 0."""
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    env = {**os.environ, **(extra or {}), "ROS_DOMAIN_ID": str(domain), "ROS_LOG_DIR": log_dir}
    asker = Asker(domain)
    process = subprocess.Popen(list(command), env=env, text=True)
    try:
        yield process, asker
        process.send_signal(signal.SIGINT)
        code = process.wait(READY_S)
        assert code == 0, f"after SIGINT the node ended with code {code}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        asker.close()


def main(command: list[str]) -> int:
    """Fails unless the policy node of this command line answers and ends well."""
    from flashrt_ros.srv import ListCapsules

    domain = int(os.environ.get("ROS_DOMAIN_ID", "0"))
    with (
        tempfile.TemporaryDirectory() as logs,
        running(command, domain, logs) as (process, asker),
    ):
        request = ListCapsules.Request()
        response = asker.call(ListCapsules, "/policy/list_capsules", request, process)
        print(f"{command[0]} answers: {response.message}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
