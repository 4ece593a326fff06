"""Judges ROS 2: import, middleware, discovery, logs, and our generated interfaces."""

from __future__ import annotations

from flashrt_ros.doctor.facts import Machine, Ros
from flashrt_ros.hardware.finding import Area, Finding

DOMAINS = range(0, 233)
"""DDS-RTPS 9.6.2: the ports of higher ones are above 65535."""
FIRST_PORT, PORTS = 7400, 250
"""Of domain 0, and of each domain."""
RANGES = ("SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT")
IMAGE_BUFFER_BYTES = 4_000_000
"""Receive buffer with which CycloneDDS lost no image of two cameras of 640 x 480."""
WHEELS = "pip install 'ros-jazzy-rclpy[fastrtps]' ros-jazzy-common-interfaces"


def judge_ros(ros: Ros, machine: Machine) -> list[Finding]:
    """Returns the findings on ROS 2."""
    area = Area("ros")
    if not ros.rclpy:
        area.fail("rclpy", f"cannot be imported: {ros.error}", _import_cure(ros, machine))
    else:
        area.ok("rclpy", f"{ros.rclpy}, {ros.distro or 'unknown distribution'} ({ros.source})")
        area.ok("RMW", ros.rmw)
        _judge_interfaces(area, ros)
    _judge_discovery(area, ros)
    if ros.rclpy:
        _judge_loop(area, ros)
    _judge_profiles(area, ros)
    _judge_receive_buffers(area, ros)
    _judge_security(area, ros)
    if ros.log_dir_writable:
        area.ok("logs", ros.log_dir)
    else:
        area.fail(
            "logs",
            f"{ros.log_dir} cannot be written: rclpy.init fails",
            "export ROS_LOG_DIR=/tmp/ros_log",
        )
    return area.findings


def _import_cure(ros: Ros, machine: Machine) -> str:
    error = ros.error
    if ros.foreign_wheels:
        return (
            "unset LD_LIBRARY_PATH _ROS_WHEELS_BOOTSTRAP_COMPLETE: they come from another "
            "virtual environment"
        )
    if "librmw_fastrtps" in error:
        return "pip install ros-jazzy-rmw-fastrtps-cpp (with the prefix of your distribution)"
    if "_rclpy_pybind11" in error and "No module" in error:
        return (
            "this Python is not the one that the sourced ROS was built for: use "
            "/usr/bin/python3, or a virtual environment made from it with "
            "--system-site-packages"
        )
    if machine.architecture == "aarch64":
        return (
            "source /opt/ros/jazzy/setup.bash (apt install ros-jazzy-ros-base; there are no "
            "wheels of rclpy for aarch64)"
        )
    return f"source /opt/ros/jazzy/setup.bash, or {WHEELS}"


def _judge_interfaces(area: Area, ros: Ros) -> None:
    if not ros.interfaces_error:
        if ros.interfaces_differing:
            area.warn(
                "interfaces",
                "installed otherwise than the source tree has them: "
                + ", ".join(ros.interfaces_differing),
                "pip install . in the source tree, or colcon build and source install/setup.bash",
            )
            return
        area.ok("interfaces", "flashrt_ros.msg and flashrt_ros.srv can be imported")
        return
    cure = "pip install . in the source tree, or colcon build and source install/setup.bash"
    if ros.source_tree:
        cure += " (this is a source tree, whose msg and srv are not generated)"
    area.fail("interfaces", f"cannot be imported: {ros.interfaces_error}", cure)


def _judge_discovery(area: Area, ros: Ros) -> None:
    free = _free_of(*ros.ephemeral)
    if ros.domain and not (ros.domain.isdigit() and int(ros.domain) in DOMAINS):
        area.fail(
            "ROS_DOMAIN_ID",
            f"{ros.domain!r}, expected a number from 0 to {DOMAINS[-1]}",
            f"export ROS_DOMAIN_ID=N with the number of your robot's nodes, best {free}",
        )
    elif ros.domain and _shares_ports(int(ros.domain), *ros.ephemeral):
        first, last = ros.ephemeral
        area.warn(
            "ROS_DOMAIN_ID",
            f"{ros.domain}: works, but its ports are among those that this system gives to any "
            f"program ({first} to {last}): now and then a node may not start",
            f"a domain of {free} for all nodes of the robot, if that happens",
        )
    else:
        area.ok("ROS_DOMAIN_ID", ros.domain or "unset (0)")
    if ros.localhost_only not in {"", "0"}:
        area.warn(
            "ROS_LOCALHOST_ONLY",
            "set; deprecated since Iron",
            "unset it and export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST",
        )
    name = "ROS_AUTOMATIC_DISCOVERY_RANGE"
    if not ros.discovery_range:
        area.warn(
            name,
            "unset (SUBNET): nodes are found from, and send multicast to, the whole network",
            f"export {name}=LOCALHOST where the robot is one machine",
        )
    elif ros.discovery_range not in RANGES:
        area.fail(
            name,
            f"{ros.discovery_range!r}, expected one of {', '.join(RANGES)}",
            f"export {name}=LOCALHOST",
        )
    elif ros.discovery_range == "OFF":
        area.fail(name, "OFF: nodes find nobody", f"export {name}=LOCALHOST")
    else:
        area.ok(name, ros.discovery_range)


def _shares_ports(domain: int, first: int, last: int) -> bool:
    begin = FIRST_PORT + PORTS * domain
    return begin <= last and begin + PORTS > first


def _free_of(first: int, last: int) -> str:
    """The domains none of whose ports is in a range."""
    free = [domain for domain in DOMAINS if not _shares_ports(domain, first, last)]
    ends = [d for d in free if d - 1 not in free or d + 1 not in free]
    return " or ".join(f"{a} to {b}" for a, b in zip(ends[::2], ends[1::2], strict=False))


def _judge_loop(area: Area, ros: Ros) -> None:
    if ros.loop_ms is not None:
        area.ok("a message", f"went from a publisher to a subscription in {ros.loop_ms:.1f} ms")
    else:
        cure = "clear /dev/shm (`fastdds shm clean`)"
        if "cyclonedds" in ros.rmw:
            cure = "check CYCLONEDDS_URI (interfaces, SocketReceiveBufferSize)"
        area.fail(
            "a message",
            f"did not get from a publisher to a subscription: {ros.loop_error or 'lost'}",
            f"{cure}, check the loopback interface and the domain",
        )


def _judge_receive_buffers(area: Area, ros: Ros) -> None:
    if "cyclonedds" not in ros.rmw or not ros.rmem_max:
        return
    words = f"net.core.rmem_max {ros.rmem_max}"
    if ros.rmem_max < IMAGE_BUFFER_BYTES:
        area.warn(
            "receive buffers",
            f"{words}: CycloneDDS loses camera images",
            "sudo sysctl -w net.core.rmem_max=8388608, and more (docs/node.md, Cameras)",
        )
    else:
        area.ok("receive buffers", f"{words}; images need a CYCLONEDDS_URI, docs/node.md, Cameras")


def _judge_security(area: Area, ros: Ros) -> None:
    enable, strategy = ros.security
    if not enable and not strategy:
        return
    words = f"ROS_SECURITY_ENABLE {enable!r}, ROS_SECURITY_STRATEGY {strategy!r}"
    if ros.security == ("true", "Enforce"):
        area.ok("security", words)
    else:
        area.warn(
            "security",
            f"{words}: nodes start unprotected, or may do so",
            "export ROS_SECURITY_ENABLE=true ROS_SECURITY_STRATEGY=Enforce, spelled like this",
        )


def _judge_profiles(area: Area, ros: Ros) -> None:
    if "fastrtps" not in ros.rmw:
        return
    for name, exists in ros.profiles.items():
        if not exists:
            area.fail("Fast DDS profile", f"{name} is set, but there is no such file", "unset it")
    if any(ros.profiles.values()):
        area.ok("Fast DDS profile", "set")
    elif not ros.profiles:
        area.ok(
            "Fast DDS profile",
            "unset, which suffices for messages up to 512 KiB; whoever publishes raw images needs "
            "config/fastdds_large_messages.xml (docs/node.md, Cameras); our launch files set it",
        )
