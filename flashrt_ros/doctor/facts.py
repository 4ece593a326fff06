"""The facts that the doctor judges by; ``gather`` reads them, tests write them down."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


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
class Gpu:
    """One GPU, as the driver describes it.

    Attributes:
        name: Product name; of a MIG slice, it says so.
        capability: Compute capability.
        multiprocessors: Streaming multiprocessors.
        total_bytes: Memory of the device.
        integrated: Shares its memory with the host.
        unified: Managed memory may be touched by both at once.
        virtual_memory: Memory can be reserved and mapped by hand.
    """

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    total_bytes: int = 143_000 * MIB
    integrated: bool = False
    unified: bool = True
    virtual_memory: bool = True


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        hardware: An NVIDIA device is on the bus or a device node exists.
        loaded: The driver's library could be opened and initialised.
        error: Why not.
        version: Release, e.g. ``570.86.15``; empty where it cannot be read.
        cuda: Newest CUDA that it can run.
        gpus: Devices visible to this process.
        visible: ``CUDA_VISIBLE_DEVICES``, None where unset.
    """

    hardware: bool = False
    loaded: bool = False
    error: str = ""
    version: str = ""
    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[Gpu, ...] = ()
    visible: str | None = None


@dataclass(frozen=True)
class Torch:
    """The installed torch.

    Attributes:
        version: Empty where it cannot be imported.
        error: Why not.
        cuda: CUDA that it was built with, None for a CPU build.
        architectures: Kernel images that it holds, e.g. ``sm_90``, ``compute_90``.
        available: ``torch.cuda.is_available()``.
        threads: Threads that one operation takes on the CPU.
        triton: Version of Triton, empty where absent.
        capture: Milliseconds of a small capture and replay; None where it was not tried.
        capture_error: Why it failed; empty where it did not.
        free_bytes: Free memory of the GPU.
        bindings: Version of cuda.bindings, empty where absent.
    """

    version: str = "2.9.0"
    error: str = ""
    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    available: bool = False
    threads: int = 1
    triton: str = ""
    capture: float | None = None
    capture_error: str = ""
    free_bytes: int = 0
    bindings: str = ""


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
        loop_ms: Time of one message from a publisher to a subscription; None where none arrived.
        loop_error: Why none arrived.
        domain: ``ROS_DOMAIN_ID``.
        discovery_range: ``ROS_AUTOMATIC_DISCOVERY_RANGE``.
        localhost_only: ``ROS_LOCALHOST_ONLY``, deprecated.
        profiles: Fast DDS profile files set, and whether they exist.
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
    loop_ms: float | None = 1.0
    loop_error: str = ""
    domain: str = ""
    discovery_range: str = "LOCALHOST"
    localhost_only: str = ""
    profiles: dict[str, bool] = field(default_factory=dict)
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
