"""The facts that the doctor judges by; ``gather`` reads them, tests write them down."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashrt_ros.hardware.facts import MIB, Driver, Torch


@dataclass(frozen=True)
class Machine:
    """Processor, memory and system.

    Attributes:
        python: Version of this interpreter.
        architecture: As ``uname -m`` says.
        cores: Cores that this process may use.
        free_bytes: Memory available.
        governors: CPU frequency governors in use; empty where none can be read.
        realtime_limit: Highest realtime priority that this user may set, 0 for none.
        shm_free_bytes: Free space of ``/dev/shm``; None where there is no such file system.
        shm_leftovers: Shared-memory files of DDS participants that have gone.
        omp_threads: ``OMP_NUM_THREADS``, empty where unset.
        jetson: Release line of a Jetson, empty elsewhere.
    """

    python: tuple[int, int, int] = (3, 12, 3)
    architecture: str = "x86_64"
    cores: int = 8
    free_bytes: int = 16_000 * MIB
    governors: tuple[str, ...] = ()
    realtime_limit: int = 0
    shm_free_bytes: int | None = 8_000 * MIB
    shm_leftovers: int = 0
    omp_threads: str = ""
    jetson: str = ""


@dataclass(frozen=True)
class Ros:
    """The ROS 2 that this interpreter reaches.

    Attributes:
        rclpy: Version of rclpy, empty where it cannot be imported.
        error: Why not.
        distro: ``ROS_DISTRO``, or the distribution of the wheels.
        source: ``sourced`` or ``wheels``.
        rmw: Middleware in use.
        interfaces_error: Why our messages and services cannot be imported; empty where they can.
        source_tree: This package is imported from a source tree.
        interfaces_differing: Definitions that are installed otherwise than the source tree's.
        loop_ms: Time of one message from a publisher to a subscription; None where none arrived.
        loop_error: Why none arrived.
        domain: ``ROS_DOMAIN_ID``.
        ephemeral: First and last port that the system gives to programs that ask for any.
        discovery_range: ``ROS_AUTOMATIC_DISCOVERY_RANGE``.
        localhost_only: ``ROS_LOCALHOST_ONLY``, deprecated.
        profiles: Fast DDS profile files set, and whether they exist.
        security: ``ROS_SECURITY_ENABLE`` and ``ROS_SECURITY_STRATEGY``; empty where unset.
        rmem_max: Bytes that a socket may have to receive; 0: not known.
        log_dir: Where log files go.
        log_dir_writable: Whether they can.
        foreign_wheels: Library paths of another virtual environment were inherited.
    """

    rclpy: str = "7.1.6"
    error: str = ""
    distro: str = "jazzy"
    source: str = "wheels"
    rmw: str = "rmw_fastrtps_cpp"
    interfaces_error: str = ""
    source_tree: bool = False
    interfaces_differing: tuple[str, ...] = ()
    loop_ms: float | None = 1.0
    loop_error: str = ""
    domain: str = ""
    ephemeral: tuple[int, int] = (32768, 60999)
    discovery_range: str = "LOCALHOST"
    localhost_only: str = ""
    profiles: dict[str, bool] = field(default_factory=dict)
    security: tuple[str, str] = ("", "")
    rmem_max: int = 0
    log_dir: str = "/tmp/log"
    log_dir_writable: bool = True
    foreign_wheels: bool = False


@dataclass(frozen=True)
class Package:
    """This package.

    Attributes:
        version: Its version.
        policies: Registered policy names, and what is wrong with each (empty: nothing).
    """

    version: str = "0.1.0"
    policies: dict[str, str] = field(default_factory=lambda: {"recurrent": ""})


@dataclass(frozen=True)
class Facts:
    """All of them."""

    machine: Machine = field(default_factory=Machine)
    driver: Driver = field(default_factory=Driver)
    torch: Torch = field(default_factory=Torch)
    ros: Ros = field(default_factory=Ros)
    package: Package = field(default_factory=Package)
