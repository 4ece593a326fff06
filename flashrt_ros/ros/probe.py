"""Prints what ROS 2 can do here as one JSON line, then sends a message to itself.

Run by ``flashrt_ros doctor`` in a process of its own: a middleware that is half installed ends
processes, and one that loses messages lets them wait.
"""

from __future__ import annotations

import importlib
import json
import time
from importlib import metadata
from pathlib import Path

PATIENCE_S = 5.0


def main() -> None:
    """Prints one JSON line before, and one after the attempt: a crash leaves the first."""
    found: dict[str, object] = {"rclpy": "", "error": "", "rmw": "", "interfaces_error": ""}
    try:
        import rclpy
    except Exception as error:
        found["error"] = str(error)
        print(json.dumps(found), flush=True)
        return
    found["rclpy"] = _version(Path(rclpy.__file__))
    try:
        importlib.import_module("flashrt_ros.msg")
        importlib.import_module("flashrt_ros.srv")
    except Exception as error:
        found["interfaces_error"] = str(error)
    try:
        found["rmw"] = rclpy.utilities.get_rmw_implementation_identifier()
        print(json.dumps(found), flush=True)
        found["loop_ms"] = loop_ms()
    except Exception as error:
        found["loop_error"] = str(error) or repr(error)
    print(json.dumps(found), flush=True)


def loop_ms() -> float | None:
    """Returns the milliseconds from a publisher to a subscription; None where nothing came."""
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from std_msgs.msg import Int64

    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("flashrt_ros_doctor", context=context)
    arrivals: list[float] = []

    def arrive(message: Int64) -> None:
        arrivals.append(time.perf_counter() - message.data / 1e9)

    node.create_subscription(Int64, "~/loop", arrive, 10)
    publisher = node.create_publisher(Int64, "~/loop", 10)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    try:
        end = time.perf_counter() + PATIENCE_S
        while len(arrivals) < 5 and time.perf_counter() < end:
            publisher.publish(Int64(data=int(time.perf_counter() * 1e9)))
            executor.spin_once(timeout_sec=0.1)
    finally:
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()
    return min(arrivals) * 1e3 if arrivals else None


def _version(module: Path) -> str:
    """Version of rclpy: of the wheel, else of the package.xml of the sourced installation."""
    for name in ("ros-rclpy", "rclpy"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for folder in module.parents:
        manifest = folder / "share" / "rclpy" / "package.xml"
        if manifest.is_file():
            text = manifest.read_text(encoding="utf-8")
            return text.partition("<version>")[2].partition("</version>")[0]
    return "unknown"


if __name__ == "__main__":
    main()
