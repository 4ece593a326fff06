"""Runs one node in one process until SIGINT or SIGTERM, and ends with code 0.

rclpy's own signal handler shuts the context down in another thread while the main thread may
already be tearing the node down, which can end in a crash. Here a signal only makes the executor
return; the main thread then tears down alone and in order, deaf to further signals: launch files
and impatient people send several.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from flashrt_ros.errors import FlashRTError
from flashrt_ros.ros.allocator import keep_memory

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SWITCH_INTERVAL_S = 5e-4
"""Longest time that one thread keeps the interpreter while another wants it: a tenth of Python's
default, as the control thread must not wait for a callback that converts a message."""
LOOK_AROUND_S = 0.5


def make_executor(context: Any = None) -> Any:
    """The events executor, whose work does not grow with the number of entities, or the plain one.

    Its own ``spin`` is broken in several releases; ``spin_once`` in a loop is not. The
    multi-threaded executor is never used: it stalls for seconds in the releases that robots have.
    """
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:
        from rclpy.executors import SingleThreadedExecutor

        return SingleThreadedExecutor(context=context)
    return EventsExecutor(context=context)


class StopSignal:
    """Set by the first SIGINT or SIGTERM, which also makes ``spin_once`` return at once.

    Attributes:
        name: Of that signal; empty before.
    """

    def __init__(self) -> None:
        """Takes over both signals; in the main thread."""
        self.name = ""
        self._event = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._executor: Any = None
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, _: self._heed(number))
        # Python runs handlers only between bytecodes of the main thread, which may wait in C; the
        # interpreter writes to this socket at once.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait, name="stop-signal", daemon=True)

    def wake(self, executor: Any) -> None:
        """From now on a signal wakes ``executor``."""
        self._executor = executor
        self._thread.start()

    def is_set(self) -> bool:
        """True after a signal."""
        return self._event.is_set()

    def _wait(self) -> None:
        while byte := self._reader.recv(1):
            self._heed(byte[0])
            # A task makes spin_once return; wake alone does not.
            self._executor.create_task(lambda: None)

    def _heed(self, number: int) -> None:
        self.name = self.name or signal.Signals(number).name
        self._event.set()

    def say(self, node: Any) -> None:
        """Logs that the node ends by a signal, if there was one."""
        if not self.is_set():
            return
        # Nothing may come between a signal and the stop message that destroy_node sends.
        with contextlib.suppress(Exception):
            node.get_logger().info(
                f"{self.name}: the node ends, after its stop message if it moves"
            )

    def wait(self) -> None:
        """Returns at the first signal; in the main thread, where no executor spins."""
        while not self._event.wait(LOOK_AROUND_S):
            pass

    def ignore(self) -> None:
        """Further signals do nothing; the thread ends."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._writer.close()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()


def run(factory: Callable[[], Any], args: Sequence[str] | None = None) -> int:
    """Makes a node, spins it until a signal comes, destroys it.

    Args:
        factory: Makes the node; called after ``rclpy.init``.
        args: Command line; None: that of the process.

    Returns:
        0, or 1 if the node could not be made.
    """
    keep_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stop = StopSignal()
    # Imported only now, as everything that takes time: a signal is heeded from here on.
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    executor = make_executor(rclpy.get_default_context())
    stop.wake(executor)
    node = None
    try:
        node = factory()
        executor.add_node(node)
        while rclpy.ok() and not stop.is_set():
            spin_once(executor, node)
    except FlashRTError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        stop.ignore()
        if node is not None:
            stop.say(node)
            executor.remove_node(node)
            node.destroy_node()
        executor.shutdown()
        rclpy.try_shutdown()
    return 0


def spin_once(executor: Any, node: Any) -> None:
    """One round; what a callback raises is logged and does not end the node."""
    try:
        executor.spin_once(timeout_sec=LOOK_AROUND_S)
    except Exception:
        node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}")
