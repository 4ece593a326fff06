"""What each service does, on the control thread, without ROS.

Every handler takes the request (any object with the fields of the .srv) and the verb, and returns
the answer, or None where the answer comes later.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from flashrt_ros.errors import StaleInputError
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.records import EventKind
from flashrt_ros.ros.status import capsule_record
from flashrt_ros.ros.tier_handlers import TierHandlers, tier_of
from flashrt_ros.ros.verbs import Answer, Verb, done
from flashrt_ros.runtime.place import Tier

Handler = Callable[[Any, Verb], "Answer | None"]


class Handlers(TierHandlers):
    """The verbs on one session."""

    def find(self, name: str) -> Handler:
        """The handler of a service by its name, as its turn comes."""
        self._stepper.heed_task()
        handler: Handler = getattr(self, name)
        return handler

    # Verbs on the live state

    def snapshot(self, request: Any, verb: Verb) -> Answer | None:
        """See Snapshot.srv; in another tier it is answered when it lies there."""
        tier = tier_of(request.tier or Tier.DEVICE.value)
        if tier is Tier.DEVICE:
            answer = self._snapshot(request, verb)
            self.tidy()
            return answer
        self._stepper.storage.require_room()
        self._session.check_room(tier)
        answer = self._snapshot(request, verb)
        self._stepper.storage.run(verb, self.moved_snapshot(answer, tier, verb))
        return None

    def _snapshot(self, request: Any, verb: Verb) -> Answer:
        begun_ns = self._stepper.clock_ns()
        capsule = self._session.snapshot(request.name, request.pin, request.replace)
        evicted = self._evictions(begun_ns)
        self._event(EventKind.SNAPSHOT, begun_ns, verb, capsule)
        return done(
            f"capsule {capsule.name!r} holds the state before step {capsule.host.step} of episode "
            f"{capsule.host.episode} (tick {capsule.tick})",
            capsule=capsule_record(self._session, capsule),
            evicted=evicted,
        )

    def restore(self, request: Any, verb: Verb) -> Answer | None:
        """See Restore.srv; from another tier it is moved to the device before."""
        if request.publish:
            self._motion.refuse_if_overtaken(verb.epoch)
        seed = request.seed if request.set_seed else None

        def target() -> Any:
            return [self._session.check_restore(request.name, request.allow_inexact, seed)]

        def then() -> Answer:
            if request.publish:
                self._motion.refuse_if_overtaken(verb.epoch)
            begun_ns = self._stepper.clock_ns()
            capsule = self._session.restore(request.name, request.allow_inexact, seed)
            words = self._state_changed(
                f"restore of {capsule.name!r}", request.publish, begun_ns, verb
            )
            source = {**_source(capsule), "noise_key": self._session.noise_key}
            self._event(EventKind.RESTORE, begun_ns, verb, capsule, seed, **source)
            return done(
                f"capsule {capsule.name!r} is live; {words}",
                capsule=capsule_record(self._session, capsule),
                generation=self._session.generation,
            )

        return self.on_device(target, then, verb)

    def rollback(self, request: Any, verb: Verb) -> Answer | None:
        """See Rollback.srv; a parent in another tier is moved to the device before."""
        if request.publish:
            self._motion.refuse_if_overtaken(verb.epoch)
        seed = request.seed if request.set_seed else None

        def then() -> Answer:
            if request.publish:
                self._motion.refuse_if_overtaken(verb.epoch)
            begun_ns = self._stepper.clock_ns()
            source = _source(self._session.rollback_target(request.steps))
            steps_back = self._session.rollback(request.steps, seed)
            words = self._state_changed("rollback", request.publish, begun_ns, verb)
            self._event(
                EventKind.ROLLBACK,
                begun_ns,
                verb,
                seed=seed,
                id=self._session.capsule_id,
                **source,
            )
            return done(
                f"{steps_back} control steps back; {words}",
                steps_back=steps_back,
                step=self._session.host.step,
                generation=self._session.generation,
            )

        return self.on_device(lambda: [self._session.rollback_target(request.steps)], then, verb)

    def reset_episode(self, request: Any, verb: Verb) -> Answer:
        """See ResetEpisode.srv."""
        begun_ns = self._stepper.clock_ns()
        seed = request.seed if request.set_seed else None
        task = request.task if request.set_task else self._session.host.task
        self._session.reset_(task, seed)
        words = self._state_changed("reset", not request.hold, begun_ns, verb, end_pause=False)
        self._event(EventKind.RESET, begun_ns, verb, seed=seed)
        return done(
            f"episode {self._session.host.episode} begins; {words}",
            episode=self._session.host.episode,
            generation=self._session.generation,
        )

    def _state_changed(
        self, what: str, publish: bool, begun_ns: int, verb: Verb, end_pause: bool = True
    ) -> str:
        """Intake, plan and a waiting resume belong to the state before; says what comes next."""
        stepper = self._stepper
        stepper.resumption.supersede(what)
        stepper.forget_lineage()
        stepper.commander.halt()
        stepper.source.clear()
        hold = "" if publish else f"after {what}: call ~/resume to go on"
        self._motion.state_changed(begun_ns, hold, end_pause, verb.epoch)
        standing = self._motion.standing
        if standing.mode in (Mode.WAITING, Mode.RUNNING):
            return "goes on with the first input newer than this"
        if standing.mode is Mode.INACTIVE:
            return "on hold until ~/resume" if hold else "the node is inactive"
        return f"{standing.mode.name.lower()}: {standing.reason}"

    def fork(self, request: Any, verb: Verb) -> Answer:
        """See Fork.srv."""
        begun_ns = self._stepper.clock_ns()
        seeds = [int(seed) for seed in request.seeds]
        source = _source(self._session.store.get(request.name)) if request.name else {}
        branches = self._session.fork(
            request.name or None, request.count, seeds, list(request.names)
        )
        evicted = self._evictions(begun_ns)
        for position, branch in enumerate(branches):
            seed = seeds[position] if seeds else None
            self._event(EventKind.FORK, begun_ns, verb, branch, seed, **source)
        self.tidy()
        return done(
            f"{len(branches)} branches: {', '.join(branch.name for branch in branches)}",
            branches=[capsule_record(self._session, branch) for branch in branches],
            evicted=evicted,
        )

    def resume(self, request: Any, verb: Verb) -> Answer | None:
        """See Command.srv; answered with the first command."""
        self._stepper.resumption.require_none()
        if self._motion.mode is Mode.RUNNING:
            return done("running already")
        self._motion.resume(self._stepper.clock_ns(), verb.epoch)
        self._stepper.resumption.begin(verb)
        return None

    def preview(self, request: Any, verb: Verb) -> Answer | None:
        """See Preview.srv; branches run between control periods, then it is answered."""
        names = list(request.names)

        def then() -> None:
            self._stepper.previewer.require_none()
            capsules = self._session.check_preview(names)
            sample = self._stepper.sample_now()
            if sample.faults:
                raise StaleInputError(f"preview: {'; '.join(sample.faults)}; nothing was run")
            run = self._session.begin_preview(capsules, sample.observations)
            self._stepper.previewer.begin(verb, run)

        self._stepper.previewer.require_none()
        return self.on_device(lambda: self._session.check_preview(names), then, verb)

    # Housekeeping

    def list_capsules(self, request: Any, verb: Verb) -> Answer:
        """See ListCapsules.srv."""
        store = self._session.store
        capsules = [c for c in store.list() if request.include_automatic or not c.automatic]
        return done(
            f"{len(capsules)} capsules",
            capsules=[capsule_record(self._session, capsule) for capsule in capsules],
            bytes_used=store.bytes_used,
            bytes_budget=store.bytes_budget,
            host_bytes_used=store.host_bytes_used,
            host_bytes_budget=store.host_bytes_budget,
        )

    def get_capsule(self, request: Any, verb: Verb) -> Answer:
        """See GetCapsule.srv."""
        session = self._session
        capsule = session.store.get(request.name)
        path = session.path_of(capsule)
        metadata = {
            "file": "" if path is None else str(path),
            "host": dataclasses.asdict(capsule.host),
            "noise_key": capsule.noise_key,
            "state": dict(capsule.state_fingerprint.fields),
            "exec": dict(capsule.exec_fingerprint.fields),
            "buffers": [
                {
                    "name": slot.spec.name,
                    "shape": list(slot.spec.shape),
                    "dtype": str(slot.spec.dtype).removeprefix("torch."),
                    "unit": slot.spec.unit,
                    "offset": slot.offset,
                    "size_bytes": slot.size_bytes,
                }
                for slot in session.layout.state
            ],
            # Offsets are within the row of a token.
            "rows": [
                {
                    "name": slot.spec.name,
                    "shape": list(slot.spec.shape),
                    "dtype": str(slot.spec.dtype).removeprefix("torch."),
                    "unit": slot.spec.unit,
                    "offset": slot.offset,
                    "size_bytes": slot.size_bytes,
                }
                for slot in session.layout.rows
            ],
        }
        return done(
            f"capsule {capsule.name!r}",
            capsule=capsule_record(session, capsule),
            lineage=self._lineage(capsule),
            metadata=json.dumps(metadata),
        )

    def _lineage(self, capsule: Any) -> list[str]:
        """Ids from the parent to the root, as far as capsules on the way still exist."""
        ids: list[str] = []
        parent = capsule.parent_id
        while parent and parent not in ids:
            ids.append(parent)
            parent = (
                self._session.store.get(parent).parent_id
                if parent in (self._session.store)
                else ""
            )
        return ids

    def drop_capsule(self, request: Any, verb: Verb) -> Answer | None:
        """See DropCapsule.srv; where it lies in a file, answered when that is gone."""
        begun_ns = self._stepper.clock_ns()
        capsule = self._session.store.get(request.name)
        freed = self._session.drop(request.name, request.force)
        self._event(EventKind.DROP, begun_ns, verb, capsule)
        answer = done(f"capsule {capsule.name!r} dropped", bytes_freed=freed)
        if not self._session.files_to_remove:
            return answer
        self._stepper.storage.run(verb, self.removed_files(answer), background=True)
        return None


def _source(capsule: Any) -> dict[str, Any]:
    """Which state a verb took, as an event says it."""
    return {
        "source_id": capsule.id,
        "source_tick": capsule.tick,
        "source_automatic": capsule.automatic,
    }
