"""Puts policy, session and control step together in the control thread, and says what it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flashrt_ros.contract import Contract
from flashrt_ros.contract.versions import versions
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.hardware.finding import Level
from flashrt_ros.hardware.memory import in_words
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.ros import ranges
from flashrt_ros.ros.commander import Commander
from flashrt_ros.ros.control import Control
from flashrt_ros.ros.intake import Intake
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.outlet import RosOutlet
from flashrt_ros.ros.parameters import Parameters
from flashrt_ros.ros.plan_timing import PlanTiming
from flashrt_ros.ros.planner import Planner
from flashrt_ros.ros.records import Outlet, ProvenanceRecord
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.storage import Storage
from flashrt_ros.ros.trial import Trial
from flashrt_ros.ros.watchdog import Watchdog
from flashrt_ros.ros.worker import Report, ignore
from flashrt_ros.runtime.policy import PlanKind
from flashrt_ros.runtime.session import PolicySession

WATCHED = ("watchdog_periods", "miss_limit_s")


def make_stepper(
    settings: Parameters,
    policy_name: str,
    contract: Contract,
    intake: Intake,
    commander: Commander,
    motion: Motion,
    outlet: Outlet,
    storage: Storage,
    report: Report = ignore,
) -> Stepper:
    """Loads the policy, checks the contract against it, allocates, captures, warms up.

    Called in the control thread: what is made on a device here belongs to that thread.

    Raises:
        FlashRTError: Policy, contract, device or sizes do not fit; says what was expected.
    """
    policy = load_policy(policy_name, settings["trust_policy_files"], settings["numerics"])
    contract.check(policy.ports(), policy.layout())
    plans = PlanTiming(policy, contract.period_s, settings["plan_ahead"])
    session = PolicySession(
        policy,
        device=settings["device"],
        seed=settings["seed"],
        store_bytes=settings["store_bytes"],
        rollback_depth=settings["rollback_depth"],
        rollback_period_steps=settings["rollback_period_steps"],
        warm_up=settings["warm_up_replays"],
        spare_states=Trial.STATES,
        preview_sets=settings["preview_sets"],
        host_store_bytes=settings["host_store_bytes"],
        folder=storage.folder,
        pictures=intake.sampler.pictures,
    )
    intake.sampler.stage = session.stage_picture
    _introduce(session, settings["host_store_bytes"], outlet)
    session.host.task = session.check_task(settings["task"])
    planner = None
    if policy.plan_kind is PlanKind.BESIDE:
        planner = Planner(session, settings["torch_threads"], report)
    stepper = Stepper(
        session,
        contract,
        intake,
        commander,
        motion,
        outlet,
        settings.options,
        time.monotonic_ns,
        storage,
        planner,
        plans,
    )
    outlet.provenance(provenance_of(session, contract, stepper.run))
    for name, points in (("nvtx", ranges.nvtx), ("tracing", ranges.trace_points)):
        if settings[name]:
            _mark(stepper, intake, outlet, name, points)
    return stepper


def provenance_of(session: PolicySession, contract: Contract, run: str) -> ProvenanceRecord:
    """What computes the actions of a session."""
    return ProvenanceRecord(
        run=run,
        policy=session.policy.family,
        device=session.device.name,
        state_id=session.state_id,
        exec_id=session.exec_id,
        noise_key=session.seed,
        state_facts=session.state_fingerprint.fields,
        exec_facts=session.exec_fingerprint.fields,
        contract=contract.document,
        contract_source=contract.source,
        versions=versions(),
    )


def _mark(
    stepper: Stepper,
    intake: Intake,
    outlet: Outlet,
    name: str,
    points: Callable[[], tuple[Callable[[str], Any], Callable[[], Any]]],
) -> None:
    """Puts ranges around the work, and says so, or why not."""
    try:
        names = ranges.mark(stepper, intake, *points())
    except UnsupportedError as error:
        outlet.log("warn", str(error))
        return
    outlet.log("info", f"{name}: ranges {', '.join(names)}")


def apply_change(
    settings: Parameters,
    name: str,
    value: Any,
    commander: Commander | None,
    control: Control | None,
    watchdog: Watchdog | None,
) -> bool:
    """Hands a parameter that is being changed to whom it concerns, if they are there.

    Returns:
        Whether the status is another one now.
    """
    if watchdog is not None and name in WATCHED:
        # The new value is set only after this.
        watchdog.heed({**{each: settings[each] for each in WATCHED}, name: value})
    if commander is not None and name == "miss_limit_s":
        commander.limit_misses(value)
    stepper = control.stepper if control is not None else None
    if stepper is not None and name == "rollback_period_steps":
        stepper.session.set_rollback_period(value)
    return commander is not None and name == "dry_run" and commander.shadow(value)


def _introduce(session: PolicySession, asked_bytes: int, outlet: Outlet) -> None:
    """Logs what the device is and what the session took of its memory."""
    device, forecast = session.device, session.forecast
    sound = [f"{f.subject}: {f.text}" for f in device.findings if f.level is Level.OK]
    if sound:
        outlet.log("info", f"device {device.name}: {'; '.join(sound)}")
    for finding in device.findings:
        if finding.level is not Level.OK:
            words = f"{finding.subject}: {finding.text}; {finding.cure}"
            outlet.log("warn", f"device {device.name}: {words}")
    outlet.log("info", forecast.line())
    for words in (*session.policy.origin, *session.policy.remarks):
        outlet.log("info", words)
    if session.plain:
        outlet.log("warn", f"plans run without a capture: {session.plain}")
    if session.arena.memory.sets:
        outlet.log("info", session.arena.memory.words)
    _introduce_tiers(session, asked_bytes, outlet)
    if forecast.tight:
        outlet.log("warn", f"that leaves little: {forecast.free_in_words()} before configure")


def _introduce_tiers(session: PolicySession, asked_bytes: int, outlet: Outlet) -> None:
    """Says where capsules may lie, and warns if the host tier that was asked for is not there."""
    disk = "none" if session.folder is None else str(session.folder.path)
    host_bytes = session.store.host_bytes_budget
    host = in_words(host_bytes) if host_bytes else "none"
    outlet.log("info", f"capsule tiers: device; host: {host}; disk: {disk}")
    if asked_bytes and not host_bytes:
        words = f"host_store_bytes {asked_bytes} has no effect: {session.host_reason}"
        outlet.log("warn", words)


def introduce(
    outlet: RosOutlet, settings: Parameters, policy_name: str, contract: Contract
) -> None:
    """Logs what was configured, and what the contract leaves open."""
    reads = ", ".join(outlet.resolved.values())
    sends = ", ".join(outlet.topic_name(output.topic) for output in contract.actions)
    outlet.log(
        "info",
        f"policy {policy_name} on {settings['device']}, robot {contract.robot} at "
        f"{contract.control_rate_hz:g} Hz; reads {reads}; commands {sends}"
        + (" (dry run: not published)" if settings["dry_run"] else ""),
    )
    for words in contract.cautions():
        outlet.log("warn", f"{contract.source}: {words}")
