"""The lifecycle node ``policy``: a learned policy between observation and command topics."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from flashrt_ros.contract import Contract
from flashrt_ros.contract.loops import refuse_loops
from flashrt_ros.errors import FlashRTError, InternalError
from flashrt_ros.ros.assembly import apply_change, introduce, make_stepper
from flashrt_ros.ros.commander import Commander
from flashrt_ros.ros.company import Company
from flashrt_ros.ros.control import Control
from flashrt_ros.ros.diagnostics import (
    Diagnostics,
    Entry,
    motion_entry,
    stop_entry,
    storage_entry,
    threads_entry,
    watchdog_entry,
)
from flashrt_ros.ros.intake import Intake
from flashrt_ros.ros.messages import require_interfaces
from flashrt_ros.ros.motion import Mode, Motion
from flashrt_ros.ros.outlet import RosOutlet
from flashrt_ros.ros.parameters import Parameters, contract_path
from flashrt_ros.ros.qos_watch import QosWatch
from flashrt_ros.ros.records import StatusRecord
from flashrt_ros.ros.services import Services
from flashrt_ros.ros.status import ModeLog, tell
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.stop_guard import StopGuard
from flashrt_ros.ros.storage import Storage
from flashrt_ros.ros.subscriptions import subscribe
from flashrt_ros.ros.transitions import (
    ControlLostError,
    guard_transitions,
    guarded,
    require_control,
)
from flashrt_ros.ros.verbs import Answer, done
from flashrt_ros.ros.waiting import Waiting
from flashrt_ros.ros.watchdog import Watchdog
from flashrt_ros.ros.worker import Losses

SUCCESS = TransitionCallbackReturn.SUCCESS
FAILURE = TransitionCallbackReturn.FAILURE
ERROR = TransitionCallbackReturn.ERROR
WATCH_S = 0.05
"""How often overdue services are looked for."""


class PolicyNode(LifecycleNode):
    """See docs/node.md.

    Callbacks run in one executor thread; they hand work to the control thread and never wait for
    an inference, with two exceptions: configure and clean-up.
    """

    def __init__(self, name: str = "policy", **kwargs: Any) -> None:
        """Creates services, topics and parameters; everything else comes at configure.

        Args:
            name: Of the node.
            **kwargs: For rclpy's Node, such as ``context``.
        """
        super().__init__(name, **kwargs)
        guard_transitions(self)
        self._settings = Parameters(self)
        self._settings.on_change = self._change
        self._motion = Motion()
        self._outlet = RosOutlet(self)
        # Set by the control thread, which must not spend its time on diagnostics.
        self._fault = threading.Event()
        self._outlet.on_fault = self._fault.set
        self._losses = Losses(self._outlet, self._motion, self._halt)
        self._diagnostics = Diagnostics(self.get_fully_qualified_name())
        self._diagnostics_publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._mode_log = ModeLog()
        self._qos_watch = QosWatch(self, self._outlet, self._publish_diagnostics)
        self._company = Company(self, self._outlet)
        self._waiting = Waiting(self, self._outlet)
        self._contract: Contract | None = None
        self._intake: Intake | None = None
        self._commander: Commander | None = None
        self._control: Control | None = None
        self._storage: Storage | None = None
        self._stop_guard: StopGuard | None = None
        self._watchdog: Watchdog | None = None
        self._subscriptions_by_topic: dict[str, Any] = {}
        self._services_of_policy = Services(
            self,
            self._motion,
            self._settings.options,
            self._outlet,
            self._at_once,
            self._losses.failed,
        )
        # Timers on the steady clock: a simulated clock may stand still or jump.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0, guarded(self, self._report), clock=steady)
        self.create_timer(WATCH_S, guarded(self, self._watch), clock=steady)
        backwards = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        self._jump_handle = self.get_clock().create_jump_callback(
            backwards, post_callback=self._on_clock_jump
        )
        if self._settings["autostart"]:
            self._autostart = self.create_timer(0.0, guarded(self, self._start_up), clock=steady)
        self._publish_status()

    # Lifecycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Loads, allocates, captures, warms up; FAILURE with a reason leaves all as it was."""
        return self._transition("configure", self._configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begins to move, as soon as every input is newer than this."""
        return self._transition("activate", lambda: self._activate(state))

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """The declared stop message, then silence."""
        return self._transition("deactivate", lambda: self._deactivate(state))

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Frees everything."""
        return self._transition("cleanup", lambda: self._clean_up(state))

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """The stop message, then as clean-up."""
        return self._transition("shutdown", lambda: self._clean_up(state))

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """The stop message, then as clean-up: the node can be configured again."""
        return self._transition("error", lambda: self._clean_up(state))

    def _transition(self, name: str, work: Callable[[], None]) -> TransitionCallbackReturn:
        """Runs a transition; rclpy would swallow what it raises."""
        begun_s = time.monotonic()
        if name != "error":  # what led to on_error is still worth knowing after it
            self._motion.transition_begins()
        try:
            work()
        except FlashRTError as error:
            self._transition_failed(f"{name} failed: {error}")
            if name == "configure":
                self._release()
            self._publish_status()
            return FAILURE
        except ControlLostError as error:
            self._transition_failed(str(error))
            self._publish_status()
            return ERROR
        except Exception as error:
            self._transition_failed(f"{name} failed: {error}", traceback.format_exc())
            self._publish_status()
            return ERROR
        self._publish_status()
        self.get_logger().info(f"{name} took {time.monotonic() - begun_s:.3f} s")
        return SUCCESS

    def _transition_failed(self, words: str, trace: str = "") -> None:
        self._motion.transition_failed(words)
        self._outlet.log("error", f"{words}\n{trace}".rstrip())

    def _configure(self) -> None:
        settings = self._settings
        policy_name = settings.needed("policy")
        contract = Contract.load(contract_path(settings.needed("contract")))
        require_interfaces(contract)
        refuse_loops(contract, self.resolve_topic_name)
        self._contract = contract
        settings.locked = True
        self._losses.clear()
        commander = Commander(
            contract, self._motion, self._outlet, settings["dry_run"], settings["miss_limit_s"]
        )
        self._commander = commander
        threads, far = settings["torch_threads"], settings["device"].startswith("cuda")
        # Where nothing crosses, floats are made by the intake's thread, not by the control thread.
        intake = self._intake = Intake(contract, self._outlet, threads, self._losses.failed, far)

        def make() -> Stepper:
            assert self._storage is not None
            return make_stepper(
                settings,
                policy_name,
                contract,
                intake,
                commander,
                self._motion,
                self._outlet,
                self._storage,
                self._losses.failed,
            )

        self._control = Control(
            make,
            self._outlet,
            contract.period_s,
            settings["torch_threads"],
            settings["realtime_priority"],
            settings["cpu_affinity"],
            report=self._losses.failed,
        )
        self._storage = Storage(
            settings["capsule_dir"], self._control.queue, self._outlet, self._losses.failed
        )
        self._control.start()
        self._outlet.open(contract, self.create_lifecycle_publisher, self._qos_watch.endpoint)
        commander.start()
        self._watchdog = Watchdog(
            commander, self._motion, self._outlet, self._control, self._publish_status
        )
        self._watchdog.start(settings, self._losses.failed)
        self._subscriptions_by_topic = subscribe(self, contract, intake, self._qos_watch)
        for topic, subscription in self._subscriptions_by_topic.items():
            self._outlet.resolved[topic] = subscription.topic_name
        self._subscribe_stop(contract, commander)
        self._services_of_policy.queue = self._control.queue
        self._motion.configure(settings["hold"])
        self._control.wake()
        introduce(self._outlet, settings, policy_name, contract)

    def _subscribe_stop(self, contract: Contract, commander: Commander) -> None:
        if contract.stop is None:
            return
        guard = self._stop_guard = StopGuard(
            contract.stop, self._motion, commander, self._outlet, self._stop_now
        )
        subscription = guard.listen(self, self._tell, self._qos_watch.endpoint)
        self._subscriptions_by_topic[contract.stop.topic] = subscription

    def _activate(self, state: LifecycleState) -> None:
        self._forward(super().on_activate(state), "activate")
        self._motion.activate(time.monotonic_ns())
        if self._control is not None:
            self._control.wake()

    def _deactivate(self, state: LifecycleState) -> None:
        self._halt_for_good()
        require_control(self._control)
        self._forward(super().on_deactivate(state), "deactivate")

    def _clean_up(self, state: LifecycleState) -> None:
        self._halt_for_good()
        # Publishers of commands are switched off by deactivate alone, not by shutdown or error.
        self._forward(super().on_deactivate(state), "clean-up")
        self._release()

    @staticmethod
    def _forward(result: TransitionCallbackReturn, name: str) -> None:
        if result != SUCCESS:
            raise InternalError(f"{name}: a publisher answered {result}")

    def _halt(self) -> None:
        if self._commander is not None:
            self._commander.halt()

    def _halt_for_good(self) -> None:
        """The stop message while it can still be sent, and nothing after it."""
        with self._motion.lock:
            if self._commander is not None:
                self._commander.halt(wait=True)
            self._motion.deactivate()
        if self._control is not None:
            self._control.wake()

    def _release(self) -> None:
        """Frees what configure made, however far it came."""
        self._motion.clean_up()
        self._services_of_policy.queue = None
        self._services_of_policy.ledger.clear()
        # Before the control thread, which loads need for their end.
        if self._storage is not None and not self._storage.close():
            self.get_logger().error("clean-up: a capsule file is not done; it is left behind")
        if self._control is not None and not self._control.close():
            self.get_logger().error("clean-up: the control thread does not end; it is left behind")
        if self._watchdog is not None and not self._watchdog.close():
            self.get_logger().error("clean-up: the watchdog does not end; it is left behind")
        if self._commander is not None and not self._commander.close():
            self.get_logger().error("clean-up: the relay does not end; it is left behind")
        for subscription in self._subscriptions_by_topic.values():
            self.destroy_subscription(subscription)
        if self._intake is not None:
            self._intake.close()
        self._outlet.close(self.destroy_lifecycle_publisher)
        self._subscriptions_by_topic.clear()
        self._outlet.resolved.clear()
        self._diagnostics.reset()
        self._qos_watch.reset()
        self._control = self._intake = self._commander = self._contract = None
        self._storage = self._stop_guard = self._watchdog = None
        self._settings.locked = False

    def destroy_node(self) -> None:
        """Also the end by a signal: the stop message goes out first."""
        try:
            self._halt_for_good()
            self._release()
        except Exception:
            self.get_logger().fatal(f"tear-down:\n{traceback.format_exc()}")
        self._services_of_policy.close()
        self._jump_handle.unregister()
        super().destroy_node()

    def _start_up(self) -> None:
        self._autostart.cancel()
        if self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    # Callbacks

    def _at_once(self, name: str) -> Answer:
        """Carries out pause, stop or clear_stop in the callback, see ``services.AT_ONCE``."""
        motion, commander = self._motion, self._commander
        with motion.lock:
            if name == "clear_stop":
                words = "cleared; on hold until ~/resume" if motion.clear_stop() else "no stop"
                if words != "no stop":
                    self._outlet.say("info", f"stop {words}")
            elif name == "stop":
                self._stop_now("by ~/stop: call ~/clear_stop, then ~/resume")
                words = "stopped until ~/clear_stop"
            else:
                motion.pause()
                if commander is not None:
                    commander.halt()
                words = "paused until ~/resume"
        self._tell()
        return done(words)

    def _stop_now(self, reason: str) -> None:
        """Latches the stop, with the message: once stopped the lifecycle state does not matter."""
        with self._motion.lock:
            if self._commander is not None:
                self._commander.halt(all_outputs=True)
            fresh = not self._motion.stopped
            self._motion.stop(reason)
        if fresh:
            # At once, as the mode alone is looked at once a second: it may be cleared by then.
            self._outlet.say("warn", f"STOPPED: {reason}")
            self._mode_log.news(self._status(), reason)

    def _change(self, name: str, value: Any) -> None:
        parts = (self._commander, self._control, self._watchdog)
        if apply_change(self._settings, name, value, *parts):
            self._tell()

    def _tell(self) -> None:
        """The mode may be another one now."""
        if self._control is not None:
            self._control.wake()
        self._publish_status()

    def _watch(self) -> None:
        """Overdue services, a stop input that fell silent, new faults, a lost control thread."""
        self._services_of_policy.expire()
        if self._stop_guard is not None:
            self._stop_guard.check(time.monotonic_ns())
        if self._control is not None and self._control.lost is not None:
            # The way of an error in the lifecycle: on_error cleans up, managers see it.
            self.trigger_deactivate() if self._motion.active else self.trigger_cleanup()
        if self._fault.is_set():
            self._fault.clear()
            self._publish_diagnostics()

    def _on_clock_jump(self, jump: Any) -> None:
        if self._intake is not None:
            back_s = abs(jump.delta.nanoseconds) / 1e9
            self._intake.clock_jumped(f"the ROS clock went back by {back_s:.3f} s")

    # Reports

    def _status(self) -> StatusRecord:
        """The status as of now, from any thread: the mode now, the rest of the last period."""
        control = self._control
        stepper = control.stepper if control is not None else None
        standing = self._motion.standing
        last = stepper.last_status if stepper is not None else StatusRecord()
        return replace(
            last,
            mode=standing.mode,
            reason=standing.reason,
            dry_run=self._settings.options.dry_run,
        )

    def _publish_status(self) -> None:
        tell(self._status, self._outlet.status)

    def _report(self) -> None:
        self._qos_watch.look_again()
        self._company.look(self._contract, self._settings.options.dry_run)
        status = tell(self._status, self._outlet.status)
        if (news := self._mode_log.news(status, self._outlet.last_error)) is not None:
            self._outlet.log(*news)
        if self._intake is not None:
            self._waiting.look(Mode(status.mode), self._intake.figures)
        self._publish_diagnostics()

    def _publish_diagnostics(self) -> None:
        status = self._status()
        entries: list[Entry] = [motion_entry(status)]
        contract, intake, control = self._contract, self._intake, self._control
        stepper = control.stepper if control is not None else None
        if contract is not None and intake is not None and stepper is not None:
            entries.append(self._diagnostics.timing(stepper.timing, contract.period_s * 1e3))
            if stepper.plans_beside:
                entries.append(self._diagnostics.plans(stepper.plans))
            entries.append(storage_entry(status))
            self._diagnostics.incompatible = self._qos_watch.incompatible
            if self._watchdog is not None:
                entries.append(watchdog_entry(self._watchdog))
            if (guard := self._stop_guard) is not None:
                entries.append(stop_entry(guard, self.count_publishers(guard.stop.topic)))
            entries += self._diagnostics.inputs(
                intake,
                stepper.sample,
                dict(self._outlet.resolved),
                self.count_publishers,
                time.monotonic_ns(),
                self._motion.active,
            )
            outputs = self._diagnostics.outputs(contract, self._outlet.topic_name)
            entries += self._company.mark(outputs, self._motion.active)
        entries += [self._company.entry(), Entry("parameters", values=self._settings.changeable())]
        if (losses := self._losses.found()) or control is not None:
            entries.append(threads_entry(losses))
        if (commander := self._commander) is not None:
            entries.append(self._diagnostics.limits(commander.limited, commander.limited_words))
            if commander.relay is not None:
                entries.append(self._diagnostics.relay(commander.relay))
        hardware = contract.robot if contract is not None else ""
        message = self._diagnostics.message(entries, hardware, self._outlet.stamp_ns())
        self._diagnostics_publisher.publish(message)
