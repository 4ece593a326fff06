"""What ``~/status`` says, and when it is worth saying at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flashrt_ros.contract import Contract
from flashrt_ros.contract.observing import NONE_YET, TOO_EARLY
from flashrt_ros.ros.motion import NOTHING_FRESH, Mode, Standing
from flashrt_ros.ros.records import CapsuleRecord, StatusRecord

_WITHOUT_NUMBERS = str.maketrans("", "", "0123456789.")


def same_kind(one: str, other: str) -> bool:
    """True if two reasons differ in numbers only, such as a growing age."""
    return one.translate(_WITHOUT_NUMBERS) == other.translate(_WITHOUT_NUMBERS)


def is_news(last: StatusRecord, status: StatusRecord) -> bool:
    """Whether two statuses differ in more than counters."""
    calm = replace(
        last,
        tick=status.tick,
        step=status.step,
        capsules=status.capsules,
        bytes_used=status.bytes_used,
        inference_delay=status.inference_delay,
        reason=status.reason if same_kind(last.reason, status.reason) else last.reason,
    )
    return calm != status


def tell(now: Callable[[], StatusRecord], publish: Callable[[StatusRecord], None]) -> StatusRecord:
    """Publishes the status, and again while it has become another one meanwhile.

    Two threads publish statuses, each as it finds things: one that is published late must not stay
    the latched one for as long as nothing else changes.

    Args:
        now: Finds the status.
        publish: Publishes it.

    Returns:
        What was published last, which is how things are.
    """
    status = now()
    publish(status)
    while is_news(status, later := now()):
        publish(status := later)
    return status


class ModeLog:
    """Says in the log what the node does now, for whoever reads logs alone.

    Asked once a second, so a fault that comes and goes at the control rate does not flood it.
    """

    def __init__(self) -> None:
        """The node begins unconfigured, which is not worth a word."""
        self._mode, self._reason = Mode.UNCONFIGURED, ""

    def news(self, status: StatusRecord, last_error: str) -> tuple[str, str] | None:
        """Says what is new since it was asked last.

        Args:
            status: As of now.
            last_error: The log's last error: a reason that stands in it is not said again.

        Returns:
            Level and words; None if mode and reason are as before, or known from the error.
        """
        mode, reason = Mode(status.mode), status.reason
        if mode is self._mode and same_kind(reason, self._reason):
            return None
        lost = self._mode in (Mode.RUNNING, Mode.HOLDING) and mode is Mode.WAITING
        self._mode, self._reason = mode, reason
        if reason and reason in last_error:
            return None
        # A wait that a verb began is meant; one that interrupts motion is a sensor's.
        lost = lost and not reason.endswith((NOTHING_FRESH, NONE_YET, TOO_EARLY))
        level = "warn" if lost or mode in (Mode.HOLDING, Mode.STOPPED) else "info"
        return level, f"{mode.name}: {reason}" if reason else mode.name


def status_of(
    session: Any, standing: Standing, dry_run: bool, inference_delay: int = 0
) -> StatusRecord:
    """The status of a configured node; on the control thread."""
    host = session.host
    return StatusRecord(
        mode=standing.mode,
        reason=standing.reason,
        dry_run=dry_run,
        policy=session.policy.family,
        device=session.device.name,
        tick=session.tick,
        step=host.step,
        episode=host.episode,
        generation=session.generation,
        task=host.task,
        capsule=session.capsule_id,
        state_id=session.state_id,
        exec_id=session.exec_id,
        capsules=len(session.store),
        bytes_used=session.store.bytes_used,
        bytes_budget=session.store.bytes_budget,
        inference_delay=inference_delay,
    )


def capsule_record(session: Any, capsule: Any) -> CapsuleRecord:
    """What one capsule is; on the control thread."""
    host = capsule.host
    return CapsuleRecord(
        id=capsule.id,
        name=capsule.name,
        parent_id=capsule.parent_id,
        created_ns=capsule.created_ns,
        tick=capsule.tick,
        step=host.step,
        episode=host.episode,
        generation=capsule.generation,
        task=host.task,
        tier=capsule.segment.tier.value,
        pinned=capsule.pinned,
        automatic=capsule.automatic,
        size_bytes=capsule.size_bytes,
        unique_bytes=session.store.unique_bytes(capsule),
        state_id=capsule.state_id,
        exec_id=capsule.exec_id,
    )


def element_names(contract: Contract, policy: Any) -> Sequence[str]:
    """Names of the elements of the action vector: the policy's own, else the contract's."""
    port = policy.ports().action
    if port.names:
        return tuple(port.names)
    names = [f"action[{i}]" for i in range(int(np.prod(port.shape)))]
    for output in contract.actions:
        for i, name in zip(output.index, output.elements or output.names, strict=True):
            names[i] = name
    return tuple(names)
