"""What a session will take of the memory that is there, computed before any of it is taken."""

from __future__ import annotations

from dataclasses import dataclass

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.hardware.memory import Memory, in_words
from flashrt_ros.runtime.buffers import Role, Slot, StateLayout, padded
from flashrt_ros.runtime.device import STAGING_BYTES, Device
from flashrt_ros.runtime.picture_slots import SLOTS
from flashrt_ros.runtime.policy import PlanKind, Policy
from flashrt_ros.runtime.row_pool import page_rows
from flashrt_ros.runtime.store import MAX_CAPSULES

COMFORT = 0.9
"""Share of the free memory up to which nothing is said; also what a refusal proposes to take."""
NOT_COUNTED = "what captured graphs keep for intermediate results"
"""Known only after a capture."""


@dataclass(frozen=True)
class Item:
    """One line of a forecast.

    Attributes:
        name: What it is.
        size_bytes: Its size.
        detail: What it consists of.
        host: It lies in the host's memory, which matters where that is not the device's.
        present: It is there already.
    """

    name: str
    size_bytes: int
    detail: str = ""
    host: bool = False
    present: bool = False


@dataclass(frozen=True)
class Forecast:
    """All that a session allocates; every size in bytes.

    Attributes:
        policy: Family of the policy.
        device: Name of the device.
        memory: What is free.
        items: What is taken.
        capsule_bytes: Weight of one capsule.
        store_bytes: As asked for.
        rollback_depth: As asked for.
        least_row_bytes: What capsules need for the rows of one whole live state.
        host_store_bytes: Host memory for capsules; 0 where it is the device's as well.
        row_pool_bytes: What of ``store_bytes`` is for rows: that, and half of what is left beside
            the ring and one capsule.
    """

    policy: str
    device: str
    memory: Memory
    items: tuple[Item, ...]
    capsule_bytes: int
    store_bytes: int
    rollback_depth: int
    least_row_bytes: int = 0
    row_pool_bytes: int = 0
    host_store_bytes: int = 0

    @property
    def slots(self) -> int:
        """Capsules with storage of their own that the pool holds."""
        return max(0, self.store_bytes - self.row_pool_bytes) // self.capsule_bytes

    @property
    def named_snapshots(self) -> int:
        """Snapshots that fit beside a full rollback ring; branches of them take no storage."""
        return _named(self.slots, self.rollback_depth)

    @property
    def needed_bytes(self) -> int:
        """Bytes of the device that are still to be taken; of both where they are one memory."""
        return sum(
            item.size_bytes
            for item in self.items
            if not item.present and (self.memory.shared or not item.host)
        )

    @property
    def host_needed_bytes(self) -> int:
        """Bytes of the host that are still to be taken, where it has a memory of its own."""
        if self.memory.shared:
            return 0
        return sum(item.size_bytes for item in self.items if item.host and not item.present)

    @property
    def tight(self) -> bool:
        """True if it fits, with little to spare."""
        free_bytes = self.memory.free_bytes
        return free_bytes is not None and self.needed_bytes > COMFORT * free_bytes

    def check(self) -> None:
        """Raises if this cannot fit.

        Raises:
            NoMemoryError: Says what is needed, what is there, and which parameter to set to what.
        """
        least_bytes = (self.rollback_depth + 1) * self.capsule_bytes + self.least_row_bytes
        if self.store_bytes < least_bytes:
            cure = "raise store_bytes"
            rows = ""
            if self.least_row_bytes:
                rows = f", and {self.least_row_bytes} bytes for the rows of one of them"
            if self.slots:
                cure += f", or lower rollback_depth to at most {self.slots - 1}"
            raise NoMemoryError(
                f"store_bytes: expected at least {least_bytes} for {self.rollback_depth} rollback"
                f" boundaries and one capsule of {self.capsule_bytes} bytes each{rows}, found"
                f" {self.store_bytes}; {cure}"
            )
        free_bytes = self.memory.free_bytes
        if free_bytes is not None and self.needed_bytes > free_bytes:
            raise NoMemoryError(
                f"policy {self.policy!r} does not fit: {self.line()}; {self._cure(free_bytes)}"
                f"{self._preview_cure()}"
            )

        host_free_bytes = self.memory.host_free_bytes
        if host_free_bytes is not None and self.host_needed_bytes > host_free_bytes:
            rest_bytes = self.host_needed_bytes - self.host_store_bytes
            most_bytes = max(0, int(COMFORT * host_free_bytes) - rest_bytes)
            raise NoMemoryError(
                f"policy {self.policy!r} does not fit: {in_words(self.host_needed_bytes)} of host"
                f" memory needed, {in_words(host_free_bytes)} free: {self.line()}; lower"
                f" host_store_bytes from {self.host_store_bytes} to at most {most_bytes}"
            )

    def line(self) -> str:
        """Returns the forecast as one line."""
        parts = ", ".join(
            f"{item.name} {in_words(item.size_bytes)}"
            + (f" ({item.detail})" if item.name == "pool" else "")
            for item in self.items
            if item.size_bytes and not item.present
        )
        if self.host_store_bytes and self.memory.host_free_bytes is not None:
            parts += f"; on the host {in_words(self.memory.host_free_bytes)} free"
        needed = in_words(self.needed_bytes)
        return f"memory on {self.device}: {needed} needed, {self.free_in_words()}: {parts}"

    def free_in_words(self) -> str:
        """Returns what is free, and of which memory."""
        if self.memory.free_bytes is None:
            return "free memory unknown"
        words = f"{in_words(self.memory.free_bytes)} free"
        if self.device != "cpu" and self.memory.shared:
            words += " (device and host share one memory)"
        return words

    def _preview_cure(self) -> str:
        for item in self.items:
            if item.name == "preview":
                return f"; preview_sets 0 takes {in_words(item.size_bytes)} less"
        return ""

    def _cure(self, free_bytes: int) -> str:
        pool_bytes = self.slots * self.capsule_bytes + self.row_pool_bytes
        rest_bytes = self.needed_bytes - pool_bytes + self.least_row_bytes
        slots = int(COMFORT * free_bytes - rest_bytes) // self.capsule_bytes
        if slots > self.rollback_depth:
            return (
                f"lower store_bytes from {self.store_bytes} to at most"
                f" {slots * self.capsule_bytes + self.least_row_bytes}, or free memory"
            )
        if slots > 0:
            return (
                f"lower rollback_depth from {self.rollback_depth} to at most {slots - 1} and"
                f" store_bytes from {self.store_bytes} to"
                f" {slots * self.capsule_bytes + self.least_row_bytes}, or free memory"
            )
        least = in_words(rest_bytes + self.capsule_bytes)
        return f"without any rollback it still takes {least}: free memory, or use another device"


def make_forecast(
    policy: Policy,
    layout: StateLayout,
    device: Device,
    store_bytes: int,
    rollback_depth: int,
    spare_states: int = 0,
    preview_sets: int = 0,
    host_store_bytes: int = 0,
    picture_bytes: int = 0,
) -> Forecast:
    """Returns the forecast of a session; nothing is allocated.

    Args:
        policy: Wherever its weights are now.
        layout: Its complete layout.
        device: Where it is to run.
        store_bytes: As the session's.
        rollback_depth: As the session's.
        spare_states: Copies of the state that whoever has the session will make besides.
        preview_sets: As the session's.
        host_store_bytes: As the session's.
        picture_bytes: Room for pictures that cross as bytes, on the device and on the host; more
            of them wait there.
    """
    weight, memory = layout.fixed_bytes, device.memory()
    copies = ["live", "initial"]
    if policy.plan_kind is PlanKind.BESIDE:
        copies.append("the planner's")
    copies += ["the caller's"] * spare_states
    least_row_bytes, row_pool_bytes = _row_pool(layout, store_bytes, rollback_depth)
    slots = max(0, store_bytes - row_pool_bytes) // weight
    scratch_bytes = _role_bytes(layout.outputs, Role.SCRATCH)
    items = [
        *_weights(policy, device),
        Item("state", len(copies) * weight, f"{', '.join(copies)}: {in_words(weight)} each"),
        Item("inputs", layout.input_bytes * (2 if _copies_inputs(policy) else 1)),
        Item("pictures", picture_bytes, "as bytes, on their way"),
        Item("outputs", layout.output_bytes - scratch_bytes),
        Item("scratch", scratch_bytes),
        Item(
            "pool",
            slots * weight,
            f"{slots} slots of {in_words(weight)}: {rollback_depth} rollback boundaries and"
            f" {_named(slots, rollback_depth)} named snapshots; branches take none",
        ),
    ]
    if layout.capacity:
        items += [
            Item("rows", layout.capacity * layout.row_bytes, f"{layout.capacity} live rows"),
            Item("row pool", row_pool_bytes, "rows of all capsules; what they share counts once"),
        ]
    if preview_sets:
        live_bytes = weight + layout.capacity * layout.row_bytes
        all_bytes = device.state_bytes(weight, layout.capacity * layout.row_bytes, preview_sets)
        items.append(
            Item(
                "preview",
                all_bytes - live_bytes,
                f"spare states for preview_sets {preview_sets}, as the device exchanges them",
            )
        )
    mirror_bytes = _slot_bytes(layout.outputs, policy.ports().action.buffer)
    if device.torch_device.type == "cuda":
        items.append(Item("workspaces", device.workspace_bytes, "of kernels, an estimate"))
        mirror_bytes += layout.input_bytes + (1 + SLOTS) * picture_bytes
        items.append(Item("staging", STAGING_BYTES, "of copies to and from the host", host=True))
    items.append(Item("mirrors", mirror_bytes, "what crosses to the host and back", host=True))
    if memory.shared:
        host_store_bytes = 0
    if host_store_bytes:
        items.append(
            Item(
                "host store",
                device.host_bytes(host_store_bytes),
                "capsules that were moved there",
                host=True,
            )
        )
    return Forecast(
        policy.family,
        device.name,
        memory,
        tuple(items),
        weight,
        store_bytes,
        rollback_depth,
        least_row_bytes,
        row_pool_bytes,
        host_store_bytes,
    )


def _copies_inputs(policy: Policy) -> bool:
    return policy.plan_kind is PlanKind.BESIDE and policy.act_observes


def _row_pool(layout: StateLayout, store_bytes: int, rollback_depth: int) -> tuple[int, int]:
    if not layout.capacity:
        return 0, 0
    page_bytes = page_rows(layout.row_bytes) * layout.row_bytes
    least_bytes = -(-layout.capacity * layout.row_bytes // page_bytes) * page_bytes
    spare_bytes = store_bytes - (rollback_depth + 1) * layout.fixed_bytes - least_bytes
    return least_bytes, least_bytes + max(0, spare_bytes) // 2


def _named(slots: int, rollback_depth: int) -> int:
    return min(max(slots - rollback_depth, 0), MAX_CAPSULES)


def _weights(policy: Policy, device: Device) -> list[Item]:
    sizes = {True: 0, False: 0}
    for tensor in (*policy.module().parameters(), *policy.module().buffers()):
        sizes[tensor.device == device.torch_device] += tensor.numel() * tensor.element_size()
    items = [Item("weights", sizes[False])] if sizes[False] or not sizes[True] else []
    if sizes[True]:
        items.append(Item("weights", sizes[True], "there already", present=True))
    return items


def _role_bytes(slots: tuple[Slot, ...], role: Role) -> int:
    return sum(padded(slot.size_bytes) for slot in slots if slot.spec.role is role)


def _slot_bytes(slots: tuple[Slot, ...], name: str) -> int:
    return sum(slot.size_bytes for slot in slots if slot.spec.name == name)
