"""One control period: input, step, checks, command, record. No thread and no ROS of its own.

While the node waits, holds, is paused or stopped, the policy does not step: its execution state
stays as it is, to the bit.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from flashrt_ros.contract import Contract, Sample
from flashrt_ros.errors import InvalidArgumentError, SupersededError, UnsafeStartError
from flashrt_ros.ros.ahead import rows_ahead
from flashrt_ros.ros.behind import Behind
from flashrt_ros.ros.commander import Commander, Outcome, Verdict
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.plan_timing import PlanTiming
from flashrt_ros.ros.planner import Planner
from flashrt_ros.ros.previewer import Previewer
from flashrt_ros.ros.records import (
    ChunkRecord,
    EventKind,
    EventRecord,
    Outlet,
    PlanOrigin,
    StatusRecord,
    StepRecord,
)
from flashrt_ros.ros.resumption import Options, Resumption
from flashrt_ros.ros.source import Source
from flashrt_ros.ros.status import element_names, is_news, same_kind, status_of
from flashrt_ros.ros.storage import Storage
from flashrt_ros.ros.timing import Timing
from flashrt_ros.ros.trial import Trial
from flashrt_ros.ros.warmth import Warmth
from flashrt_ros.runtime.capsule import new_id
from flashrt_ros.runtime.policy import Action
from flashrt_ros.runtime.preview import CHUNK


class Stepper:
    """Drives one session; used by the control thread alone.

    Attributes:
        session: The policy with its execution state.
        sample: What the last control period saw; None before the first.
        plans: How late plans beside are.
    """

    def __init__(
        self,
        session: Any,
        contract: Contract,
        source: Source,
        commander: Commander,
        motion: Motion,
        outlet: Outlet,
        options: Options,
        clock_ns: Callable[[], int],
        storage: Storage,
        planner: Planner | None = None,
        plans: PlanTiming | None = None,
    ) -> None:
        """Takes over ``session``, which stands at step 0.

        Args:
            session: A ``PolicySession``.
            contract: Checked against the session's policy.
            source: Observations.
            commander: Commands.
            motion: Rules about motion.
            outlet: Records.
            options: See ``Options``.
            clock_ns: Steady clock.
            storage: Capsule files.
            planner: For policies that plan beside; None for others.
            plans: Says when a plan beside begins; None: once the chunk is used up.
        """
        self.session = session
        self.sample: Sample | None = None
        self.commander = commander
        self.motion = motion
        self.source = source
        self.outlet = outlet
        self.options = options
        self.timing = Timing()
        self.plans = plans or PlanTiming(session.policy, contract.period_s)
        self.clock_ns = clock_ns
        self.storage = storage
        self._contract = contract
        self._planner = planner
        self._trial = Trial(session)
        self.warmth = Warmth(session, self._trial, options)
        self._names = element_names(contract, session.policy)
        self._keys = frozenset(observation.key for observation in contract.observations)
        self.resumption = Resumption(motion, options, clock_ns)
        self.previewer = Previewer(
            session,
            motion,
            outlet,
            contract.period_s,
            self._names,
            clock_ns,
            self._plan_ns,
            self.forget_plan,
        )
        self._sends_chunks = any(output.is_chunk for output in contract.actions)
        self._faults = ""
        self._task_sequence = 0
        self.behind = Behind()
        # Tells the records of this session from those of another one in the same recording.
        self.run = new_id()
        self._status = self._status_now()

    # One period

    def tick(self, now_ns: int) -> None:
        """Runs one control period that began at ``now_ns``, steady clock."""
        last_ns, self.timing.last_tick_ns = self.timing.last_tick_ns, now_ns
        period_ms = (now_ns - last_ns) / 1e6 if last_ns else float("nan")
        if last_ns:
            self.timing.period_ms.add(period_ms)
        self._heed_jump()
        self.heed_task()
        self.resumption.check()
        sample = self.source.sample(now_ns, self.motion.not_before_ns)
        self.sample = sample
        faults = self._input_faults(sample)
        words = "; ".join(faults)
        # Diagnostics at once, but of what the fault has led to.
        report = not same_kind(words, self._faults) and not self.motion.starting
        self._faults = words
        if not self.motion.wants_to_move:
            self.resumption.overtaken()
        elif faults:
            self._miss(faults, now_ns)
        else:
            self.motion.input_good()
            self._step(sample, now_ns, period_ms)
        self.publish_status()
        if report:
            self.outlet.fault()

    def sample_now(self) -> Sample:
        """Observations as of now, for a verb."""
        return self.source.sample(self.clock_ns(), self.motion.not_before_ns)

    def _plan_ns(self) -> int:
        if self._planner is not None:
            return self._planner.took_ns
        if not len(self.timing.latency_ms):
            return 0
        return round(self.timing.latency_ms.percentiles(90.0)[0] * 1e6)

    def _input_faults(self, sample: Sample) -> tuple[str, ...]:
        """Words for each input that hinders a step now."""
        faults = sample.faults
        if self.motion.starting and self._contract.start is not None and sample.measured is None:
            # Only a first command needs it, and without it the policy must not step either.
            topic = self._contract.start.measured.topic
            faults = (*faults, f"start.measured ({topic}): {sample.measured_fault}")
        return faults

    def _heed_jump(self) -> None:
        jump = self.source.take_jump()
        if jump is None:
            return
        received_ns, words = jump
        self.forget_lineage()
        if self._contract.on_time_jump == "reset":
            words += ": on_time_jump reset, a new episode begins"
            begun_ns = self.clock_ns()
            self.session.reset_(self.session.host.task, None)
            self.event(EventKind.RESET, begun_ns)
        else:
            words += ": on_time_jump hold, intake and chunk are dropped, the policy remembers"
            self.session.host.cursor = self.session.host.length
        self.outlet.log("warn", words)
        self.motion.time_jumped(received_ns)

    def heed_task(self) -> None:
        """Takes over a task text that has come; before each control step and each verb.

        So a verb that names a task, or brings back a capsule's, has the last word over texts that
        came before it, and a text over verbs that came before.
        """
        said = self.source.task()
        if said is None or said.sequence == self._task_sequence:
            return
        self._task_sequence = said.sequence
        host, asked = self.session.host, self._contract.task
        if said.text == host.task:
            return
        try:
            host.task = self.session.check_task(said.text)
        except InvalidArgumentError as error:
            self.outlet.log("warn", f"task stays {host.task!r}: {error}")
            return
        self.outlet.log("info", f"task is now {said.text!r}")
        if asked is not None and asked.on_change == "replan":
            self.forget_plan()
            host.cursor = host.length

    def _step(self, sample: Sample, now_ns: int, period_ms: float) -> None:
        epoch = self.motion.epoch
        self.warmth.used(now_ns)
        first = self.motion.starting
        here = self._here()
        if first:
            self._trial.begin()
        action = self._advance(sample, now_ns)
        if action is None:
            self.plans.late += not self.motion.starting
            self.commander.miss(now_ns)
            if self.motion.starting:
                self.motion.input_fault("no plan yet")
            return
        if self.motion.starting:
            # The step may have taken long: where is the arm now?
            sample = self.sample_now()
            if self._blind(sample, epoch) and self._trial.take_back():
                self.behind.forget()
                self._miss(self._input_faults(sample), now_ns)
                return
        values = action.values.numpy()
        ahead = rows_ahead(self.session, action) if self._sends_chunks else None
        outcome = self.commander.command(values, sample.measured, self.clock_ns(), epoch, ahead)
        taken_back = outcome.verdict is Verdict.UNSAFE and self._trial.take_back()
        self._trial.commit()
        self._judge(outcome, taken_back)
        if taken_back:
            self.behind.forget()
            return  # as if it had never been: not a control step
        latency_ms = ((done_ns := self.clock_ns()) - now_ns) / 1e6
        self.timing.latency_ms.add(latency_ms)
        age_ms = self.behind.age_ms(done_ns, self._keys)
        if not np.isnan(age_ms):
            self.timing.observation_age_ms.add(age_ms)
        digested = self.options.publish_state_digest
        self.outlet.step(
            StepRecord(
                step=action.step,
                generation=action.generation,
                chunk_id=action.chunk,
                chunk_index=action.index,
                names=self._names,
                predicted=values.astype(np.float64),
                latency_ms=latency_ms,
                period_ms=period_ms,
                observation_age_ms=age_ms,
                state_digest=self.session.state_digest() if digested else "",
                noise_key=self.session.noise_key,
                **here,
                **outcome.facts(),
                **self.behind.facts(),
            )
        )
        self.behind.end()

    def _miss(self, faults: tuple[str, ...], now_ns: int) -> None:
        """No control step in this period, for want of input."""
        self.motion.input_fault(words := "; ".join(faults))
        # However long this lasts, what comes after it must not be planned from before it.
        self.forget_plan()
        self.commander.miss(now_ns)
        self.resumption.tire(now_ns, words)

    def _blind(self, sample: Sample, epoch: int) -> bool:
        """Whether a first command can be compared with nothing, as its step took too long."""
        leaves = epoch == self.motion.epoch and not self.commander.dry_run
        return leaves and self._contract.start is not None and sample.measured is None

    def _here(self) -> dict[str, Any]:
        """Where the live state stands before a control step."""
        host, session = self.session.host, self.session
        where = {"tick": session.tick, "episode": host.episode, "task": host.task}
        return {**where, "capsule": session.capsule_id, "run": self.run}

    def _advance(self, sample: Sample, now_ns: int) -> Action | None:
        """The next action; None while a plan is under way and nothing is left of the last one."""
        session = self.session
        observations, digested = sample.observations, self.options.publish_state_digest
        if self._planner is None:
            chunk, origin = session.host.chunk, PlanOrigin(session.tick, session.host.task)
            action: Action = session.step(observations)
            planned = session.host.chunk != chunk
            self.behind.stepped(sample, origin if planned else None, digested)
            if planned:
                self._publish_chunk()
            return action
        if self._planner.ticket is not None and self._planner.begun_ns < self.motion.not_before_ns:
            self.forget_plan()  # it saw the world before the last verb
        ticket = self._planner.take()
        if ticket is not None:
            adopted = session.adopt(ticket)
            self.plans.end(now_ns, self._planner.took_ns, adopted)
            if adopted:
                self.behind.adopt(session.host.cursor)
                self._publish_chunk()
            else:
                session.withdraw_plan()
        rows_left = session.rows_left
        if rows_left <= self._plan_ahead() and not self._planner.occupied:
            delay = self.plans.begin(now_ns, rows_left, self.motion.starting)
            self._planner.begin(session.begin_plan(observations, delay), now_ns)
            origin = PlanOrigin(session.tick, session.host.task, delay)
            self.behind.begin(sample, origin, digested)
        if not rows_left:
            return None
        taken: Action = session.act(observations)
        if session.policy.act_observes:
            self.behind.saw(sample)
        return taken

    def _plan_ahead(self) -> int:
        if self.previewer.waiting:
            # Its branches need boundaries without a plan under way.
            return min(self.plans.plan_ahead, self.plans.needed)
        return self.plans.plan_ahead

    def _judge(self, outcome: Outcome, taken_back: bool) -> None:
        """Draws the consequences of what became of an action."""
        verdict = outcome.verdict
        if verdict in (Verdict.SENT, Verdict.DRY):
            self.resumption.end(None)
            return
        if verdict is Verdict.OVERTAKEN:
            self.resumption.overtaken()
            return
        self.commander.halt()
        reason = outcome.reason
        if verdict is Verdict.UNSAFE:
            if taken_back:
                self.forget_plan()
                reason += "; the step was taken back"
            reason += "; bring the arm nearer, then call ~/resume"
        else:
            reason += "; restore, roll back or reset, or call ~/resume to go on regardless"
        self.motion.hold(reason)
        self.outlet.log("error", f"holding: {reason}")
        self.outlet.fault()
        self.resumption.end(UnsafeStartError(reason))

    def fail(self, error: BaseException) -> None:
        """The policy raised: holds until resumed, with the traceback in the log."""
        self.commander.halt()
        self.forget_plan()
        reason = (
            f"the policy failed: {type(error).__name__}: {error}; reset, or clean up and configure"
        )
        self.motion.hold(reason)
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        self.outlet.log("error", f"holding: {reason}\n{''.join(lines)}")
        self.outlet.fault()
        self.resumption.end(error)
        self.publish_status()

    def forget_plan(self) -> None:
        """Drops a plan under way, as the world or the state that it saw is another one now."""
        if self._planner is not None:
            self._planner.drop()
            self.session.withdraw_plan()

    def forget_lineage(self) -> None:
        """Drops a plan under way, and the messages that the present chunk was planned from.

        For verbs: the chunk of a capsule was planned from messages of its own time, which the
        records of that time name.
        """
        self.forget_plan()
        self.behind.forget()

    def close(self) -> None:
        """Frees session and planner."""
        self.resumption.end(SupersededError("the node was cleaned up"))
        self.previewer.end(SupersededError("the node was cleaned up"))
        if self._planner is not None:
            self._planner.close()
        self.session.close()

    # Reports

    def _publish_chunk(self) -> None:
        rows = self.session.arena.state.get(CHUNK)
        if not self.options.publish_chunk or rows is None:
            return
        host = self.session.host
        rows_HA = rows.detach().to("cpu").numpy().astype(np.float64)
        period_s = self._contract.period_s
        self.outlet.chunk(
            ChunkRecord(self.session.generation, host.chunk, period_s, self._names, rows_HA)
        )

    def event(self, kind: EventKind, begun_ns: int, **fields: Any) -> None:
        """Reports a verb that was carried out on the session."""
        self.outlet.event(self.event_record(kind, begun_ns, **fields))

    def event_record(self, kind: EventKind, begun_ns: int, **fields: Any) -> EventRecord:
        """A verb that was carried out on the session up to now."""
        host = self.session.host
        return EventRecord(
            kind=kind,
            tick=self.session.tick,
            step=host.step,
            episode=host.episode,
            generation=self.session.generation,
            duration_ms=(self.clock_ns() - begun_ns) / 1e6,
            run=self.run,
            **{"task": host.task, "noise_key": self.session.noise_key, **fields},
        )

    @property
    def plans_beside(self) -> bool:
        """Whether plans run beside the control steps."""
        return self._planner is not None

    @property
    def occupied(self) -> bool:
        """True while a plan or a preview is under way."""
        return self.previewer.waiting or (self._planner is not None and self._planner.occupied)

    @property
    def last_status(self) -> StatusRecord:
        """As of the last period or verb; for other threads."""
        return self._status

    def _status_now(self) -> StatusRecord:
        return status_of(
            self.session,
            self.motion.standing,
            self.commander.dry_run,
            self.plans.inference_delay,
        )

    def publish_status(self) -> None:
        """Publishes the status if something besides counters has changed."""
        status = self._status_now()
        last, self._status = self._status, status
        if is_news(last, status):
            self.outlet.status(status)
